"""What a reader's class does wrong in a pass is told; what it shows of a pass is compared."""

from typing import Any

import pytest
import torch as t

MANNERS = {
    "raises": ([("return out", "raise ValueError('not yet')")], "own.py, line 32: ValueError"),
    "shapes clash": ([("q @ k.transpose(-2, -1)", "q @ k")], "own.py, line 26: RuntimeError"),
    "no return": ([("        return out\n", "")], "gave NoneType, not a tensor: is a return"),
    "exit": ([("return out", "exit()")], "line 32: SystemExit"),
    "another argument": ([("forward(self, x)", "forward(self, x, mask)")], "called with one arg"),
    "no forward": ([("def forward", "def forwards")], 'missing the required "forward"'),
    "wrong shape": ([("return out", "return out[0]")], "the reference has shape (2, 7, 15)"),
    "NaN": (
        [("return out", "return out / 0 * 0")],
        "that are NaN or infinite, the first at [0, 0, 0]",
    ),
    "in place": ([("n = x", "x += 1; n = x")], "changes its input in place"),
    "its own weights": (
        [("n = x", "self.W_Q.data *= 1.0001; n = x")],
        "forward changes the module itself: W_Q",
    ),
    "float32 inside": ([("return out", "return out.float()")], "the output is of torch.float32"),
    "another type": ([("future = ", "k = k.float(); q @ k.mT; future = ")], "keeps its own dtype"),
    "dropout": (
        [
            ("self.cfg = cfg", "self.cfg = cfg; self.drop = nn.Dropout(0.1)"),
            ("return out", "return self.drop(out)"),
        ],
        "except after .eval(): there is dropout",
    ),
    "dropout left on": (
        [("return out", "return nn.functional.dropout(out, 0.1)")],
        "F.dropout is, unless training=False",
    ),
    "no words": (
        [
            ("class Attention", "class E(Exception):\n    __str__ = None\nclass Attention"),
            ("return out", "raise E"),
        ],
        "E while running forward on (2, 7, 15): no message",
    ),
    "too many words": ([("return out", "raise KeyError('x' * 5000)")], "xxx..."),
    "no module": (
        [("    def forward", "    def __new__(cls, cfg):\n        return 5\n\n    def forward")],
        "Attention(cfg) gave int, not a module",
    ),
    "sparse": ([("return out", "return out.to_sparse()")], "attn_out is no dense tensor"),
    "bfloat16": ([("return out", "return out.bfloat16()")], "the output is of torch.bfloat16"),
    "one sequence": ([("return out", "return out.squeeze()")], "squeeze() without a dimension"),
    "fixed size": (
        [("cfg.d_model, cfg.d_head)", "cfg.d_model, cfg.d_model // cfg.n_heads)")],
        "cfg.d_head should be read",
    ),
    "n_ctx": ([("torch.ones(n, n)", "torch.ones(8, 8)[:n, :n]")], "own.py, line 28: RuntimeError"),
    "config": ([("shape = (cfg.n_heads", "shape = (cfg.n_head")], "did you mean cfg.n_heads?"),
    "constructor": (
        [("(self, cfg)", "(self, d_model, n_heads)")],
        "called with one argument, the config",
    ),
    "in place, backwards": (
        [("z = (pattern @ v)", "z = pattern @ v; pattern.mul_(1); z = z")],
        "x = x + y",
    ),
}


@pytest.mark.parametrize("case", MANNERS)
def test_what_a_class_does_wrong_is_told(checked: Any, edited: Any, case: str) -> None:
    """Errors and bad manners are the report's, with file and line; they never end the check."""
    edits, told = MANNERS[case]
    text = (report := checked(edited(*edits))).text()
    assert not report.ok and told in text, text


@pytest.fixture
def tapped(edited: Any) -> str:
    """The attention, tapping q and the pattern by our names."""
    source: str = edited(
        ("from torch import nn", "from torch import nn\nfrom pvml.trace.tap import Tap"),
        ("self.cfg = cfg", "self.cfg = cfg; self.tap = Tap('attn')"),
        ("        scores = q", "        self.tap.at('q', q.transpose(1, 2))\n        scores = q"),
        ("        z = (", "        self.tap.at('attn_pattern', pattern)\n        z = ("),
    )
    return source


def test_tapped_tensors_are_compared(checked: Any, tapped: str) -> None:
    """What a class taps by our names stands in the table, and the first wrong of them is named."""
    report = checked(tapped)
    assert report.ok, report.text()
    names = [row.name for row in report.trials[0].rows]
    assert names[:3] == ["q", "attn_pattern", "attn_out"]
    wrong = checked(tapped.replace(" / self.cfg.d_head**0.5", ""))
    assert "first wrong: attn_pattern" in wrong.verdict()
    three = [(" / self.cfg.d_head**0.5", ""), ("triu(1)", "triu(2)"), ("+ self.b_O", "- self.b_O")]
    for old, new in three:
        tapped = tapped.replace(old, new)
    told = checked(tapped).verdict()
    assert "in attn_pattern, the scores are not divided by sqrt(d_head); and the mask is" in told
    unknown = checked(tapped.replace("Tap('attn')", "Tap('attention')"))
    assert "there is no Tap('attention')" in unknown.text()


def test_returned_tensors_are_compared(checked: Any, edited: Any) -> None:
    """A dict may hold the result and others by our names; of a tuple, the first is the result."""
    right = checked(edited(("return out", "return {'attn_out': out, 'z': z, 'mine': 1}")))
    assert right.ok and [row.name for row in right.trials[0].rows][:2] == ["z", "attn_out"]
    wrong = checked(edited(("return out", "return {'attn_out': out, 'z': 2 * z}")))
    assert "first wrong: z" in wrong.verdict()
    assert checked(edited(("return out", "return out, pattern"))).ok
    text = checked(edited(("return out", "return {'out': out}"))).text()
    assert "a dict without 'attn_out'" in text


def test_nothing_outside_is_changed(checked: Any, tapped: str) -> None:
    """Torch's generator and default type are as they were, and nobody listens afterwards."""
    before = t.random.get_rng_state()
    report = checked(tapped.replace("return out", "torch.set_default_dtype(x.dtype); return out"))
    assert report.ok and t.get_default_dtype() == t.float32
    assert t.equal(t.random.get_rng_state(), before)
    own = report.own.cls(report.cfg)
    assert own.tap.listeners == {}
