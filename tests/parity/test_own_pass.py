"""What a reader's class does wrong in a pass is told; what it shows of a pass is compared."""

from typing import Any

import pytest
import torch as t

from pvml.parity.own_names import untaken

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
    "nanoGPT's config": ([("shape = (cfg.n_heads", "cfg.n_embd; shape = (0")], "mean cfg.d_model?"),
    "nanoGPT's n_ctx": ([("shape = (cfg.n_heads", "cfg.block_size; shape = (0")], "cfg.n_ctx?"),
    "constructor": (
        [("(self, cfg)", "(self, d_model, n_heads)")],
        "called with one argument, the config",
    ),
    "eval is another": (
        [("triu(1)", "triu(1 if self.training else 2)")],
        "after .eval() it gives something else; these models have no dropout",
    ),
    "eval fails": (
        [("return out", "assert self.training; return out")],
        "after .eval() it raises an error: own.py, line 32: AssertionError",
    ),
    "an argument in place": (
        [("(self, x)", "(self, x, real=None)"), ("n = x", "real is None or real.fill_(1); n = x")],
        "changes its argument real in place",
    ),
    "no super": (
        [
            ("        super().__init__()\n", ""),
            ("        shape =", "        return\n        shape ="),
        ],
        "Attention.__init__ does not call super().__init__()",
    ),
    "truths": ([("return out", "return out > 0")], "forward gave numbers of torch.bool"),
    "complex": ([("return out", "return out + 0j")], "forward gave numbers of torch.complex128"),
    "complex beside": (
        [("return out", "return {'attn_out': out, 'z': z + 0j}")],
        "z is no dense tensor of real numbers",
    ),
    "results kept by shape": (
        [
            ("self.cfg = cfg", "self.cfg = cfg; self.kept = {}"),
            ("return out", "return self.kept.setdefault((x.shape, torch.is_grad_enabled()), out)"),
        ],
        "a call on other sequences of the same shape gives something else than it should",
    ),
    "even lengths": (
        [("triu(1)", "triu(1 + (n == 4))")],
        "a call after a shorter one gives something else than it should",
    ),
    "no default": ([("(self, x)", "(self, x, real)")], "what the module reads: give any other a d"),
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
    right = checked(edited(("return out", "return {'attn_out': out, 'z': z}")))
    assert right.ok and [row.name for row in right.trials[0].rows][:2] == ["z", "attn_out"]
    wrong = checked(edited(("return out", "return {'attn_out': out, 'z': 2 * z}")))
    assert "first wrong: z" in wrong.verdict()
    several = checked(edited(("return out", "return out, pattern")))
    assert several.ok and several.text().endswith(
        "forward gives a tuple of 2: the first is taken for attn_out, and what follows is compared "
        "with nothing"
    )
    assert "is taken for" not in right.text()
    text = checked(edited(("return out", "return {'out': out}"))).text()
    assert "a dict without 'attn_out'" in text


@pytest.mark.parametrize(
    ("shows", "told"),
    [
        ("self.tap.at('pattern', 3 * pattern)", "tapped 'pattern', no name here: did you mean "),
        ("self.tap.at('blocks.0.attn.attn_pattern', x)", "did you mean attn_pattern?"),
        ("self.tap.at('hook_pattern', pattern)", "did you mean attn_pattern?"),
        ("self.tap.at('scores', pattern)", "did you mean attn_scores?"),
        ("self.tap.at('atn_pattern', pattern)", "did you mean attn_pattern?"),
        ("self.tap.at('', pattern)", "there are normalized_resid_pre, q, k, v"),
        ("out = {'attn_out': out, 'pattern': 3}", "returned 'pattern', no name here: did you mean"),
        ("out = {'attn_out': out, 5: 3}", "returned '5', no name here: there are"),
    ],
)
def test_what_is_shown_by_no_name_is_told(checked: Any, tapped: str, shows: str, told: str) -> None:
    """A name that is none is compared with nothing: it is told, and nothing is called right."""
    report = checked(tapped.replace("return out", f"{shows}; return out"))
    assert not report.ok and "compared with nothing: " in report.text()
    assert told in report.verdict() and "gives what it should, 7 of 7" in report.verdict()
    assert all(trial.ok for trial in report.trials)
    wrong = checked(
        tapped.replace("return out", f"{shows}; return out").replace("triu(1)", "triu(0)")
    )
    assert "is wrong" in wrong.verdict() and told in wrong.verdict()


def test_a_tap_of_another_kind_is_told(checked: Any, tapped: str) -> None:
    """A tensor that a tap knows and this kind of module has not is compared with nothing, too."""
    other = tapped.replace("        z = (", "        self.other.tap.at('post', x)\n        z = (")
    other = other.replace(
        "self.cfg = cfg", "self.cfg = cfg; self.other = nn.Identity(); self.other.tap = Tap('mlp')"
    )
    report = checked(other)
    assert not report.ok and "tapped 'other.post', no name here" in report.verdict()


def test_another_shape_is_the_answer(checked: Any, edited: Any) -> None:
    """Where the shape is wrong, the verdict says so, and sends nobody to look at numbers."""
    verdict = checked(edited(("return out", "return out.transpose(0, 1)"))).verdict()
    assert "attn_out has another shape than it should" in verdict
    assert "no mistake that is known" not in verdict


def test_no_class_spoils_the_next_ones_numbers(checked: Any, attention: str, edited: Any) -> None:
    """A backward that changes the gradient that came in does so to a copy."""
    hook = "out.register_hook(lambda gradient: gradient.zero_()); return out"
    assert not checked(edited(("return out", hook))).ok
    assert checked(attention).ok


def test_nothing_outside_is_changed(checked: Any, tapped: str) -> None:
    """Torch's generator and default type are as they were, and nobody listens afterwards."""
    before = t.random.get_rng_state()
    report = checked(tapped.replace("return out", "torch.set_default_dtype(x.dtype); return out"))
    assert report.ok and t.get_default_dtype() == t.float32
    assert t.equal(t.random.get_rng_state(), before)
    own = report.own.cls(report.cfg)
    assert own.tap.listeners == {}


@pytest.mark.parametrize(
    ("takes", "told"),
    [
        ("real=None, mask=None, *, past_kv_cache=None, **others", "forward's mask, past_kv_cache"),
        ("return_pattern=False", "forward's return_pattern"),
        ("real=None, positions=None, *others", None),
        ("", None),
    ],
)
def test_what_is_not_tried_is_told(checked: Any, edited: Any, takes: str, told: str | None) -> None:
    """A right class stays right; parameters of forward that were never given are named."""
    hides = "scores = scores.masked_fill(~real[:, None, None] & ~torch.eye(n).bool(), -1e30)"
    report = checked(
        edited(
            ("forward(self, x)", f"forward(self, x, {takes})"),
            ("        q =", "        qk = x if POSITIONS is None else x + POSITIONS\n        q ="),
            ("x, self.W_Q", "qk, self.W_Q"),
            ("x, self.W_K", "qk, self.W_K"),
            (
                "        pattern =",
                "        if REAL is not None:\n            HIDE\n        pattern =",
            ),
        )
        .replace("POSITIONS", "positions" if "positions" in takes else "None")
        .replace("REAL", "real" if "real" in takes else "None")
        .replace("HIDE", hides if "real" in takes else "pass")
    )
    assert report.ok, report.text()
    last = report.verdict().splitlines()[-1]
    assert last == (
        f"not tried: {told} (only real and positions are)" if told else report.verdict()
    )


def test_other_kinds_are_given_other_things() -> None:
    """By hand: of a position embedding's, places alone are given; of an MLP's, nothing is."""
    assert untaken(["places", "offset"], ["places"]) == (
        "not tried: forward's offset (only places is)"
    )
    assert untaken(["mask"], []) == "not tried: forward's mask"
    assert untaken(["places"], ["places"]) == ""


def test_what_is_returned_as_nothing_is_nothing(checked: Any, edited: Any) -> None:
    """A dictionary that has None beside the result, as models return a loss."""
    assert checked(edited(("return out", "return {'attn_out': out, 'loss': None}"))).ok


def test_a_trial_whose_tensors_agree_says_what_failed(checked: Any, edited: Any) -> None:
    """A line that counts all tensors as agreeing, and fails, tells why; another only fails."""
    first = checked(edited(("+ self.b_K[:, None]", ""))).trials[0].line()
    assert " 9 of 9 tensors agree, but FAILED: no gradient reaches b_K: forward does" in first
    first = checked(edited(("return out", "x += 1; return out + 1"))).trials[0].line()
    assert first.endswith(" 0 of 1 tensors agree, FAILED")


def kept(rule: str, use: str) -> list[tuple[str, str]]:
    """Edits: a mask that is made by this rule and kept."""
    mask = "torch.ones(n, n).triu(1) == 1"
    return [
        ("self.cfg = cfg", "self.cfg = cfg; self.kept = None"),
        (f"future = {mask}", f"if {rule}: self.kept = {mask}\n        future = {use}"),
    ]


ANEW = "self.kept is None or len(self.kept) < n"


@pytest.mark.parametrize(
    ("rule", "use", "told"),
    [
        ("self.kept is None", "self.kept", "a call with fewer positions raises: is something kept"),
        (
            "self.kept is None",
            "self.kept[:n, :n]",
            "a call after a shorter one raises: is something",
        ),
        (
            ANEW,
            "self.kept[-n:, -n:].roll(len(self.kept) - n, 1)",
            "fewer positions gives something",
        ),
        (ANEW, "self.kept[:n, :n]", ""),
    ],
)
def test_a_mask_of_another_length_is_told(
    checked: Any, edited: Any, rule: str, use: str, told: str
) -> None:
    """What one call keeps must do for a shorter and a longer one: each way round is tried."""
    report = checked(edited(*kept(rule, use)))
    assert report.ok == (not told), report.text()
    if told:
        assert report.first_bad == report.trials[0] and report.first_bad.rows
        assert told in report.first_bad.problems[0]
        assert f"mend first what is told above: {report.first_bad.problems[0][:20]}" in (
            report.verdict()
        )


def test_fewer_positions_come_as_any_input_does(checked: Any, edited: Any) -> None:
    """The shorter input is contiguous: a class may view it."""
    report = checked(edited(("n = x.shape[1]", "n = x.shape[1]; x = x.view(-1).view(x.shape)")))
    assert report.ok, report.text()
