"""A reader's class is checked: right ones pass, wrong ones are told why; every kind of module."""

from pathlib import Path
from typing import Any

import pytest

import pvml.modules
from pvml.errors import PvmlError
from pvml.parity.own_code import find_class
from pvml.parity.own_module import check_module

OURS = {
    "Embed": "embedding",
    "PosEmbed": "embedding",
    "LayerNorm": "normalization",
    "Attention": "attention",
    "MLP": "mlp",
    "TransformerBlock": "block",
    "Unembed": "unembedding",
    "Transformer": "transformer",
}


@pytest.mark.parametrize("name", OURS)
def test_our_own_modules_pass(name: str) -> None:
    """Each of the kinds, as this package has it, passes every trial, padding included."""
    folder = Path(next(iter(pvml.modules.__path__)))
    report = check_module(find_class(f"{folder / OURS[name]}.py:{name}"))
    assert report.ok, report.text()
    says = " ".join(trial.says for trial in report.trials)
    assert ("padding" in says) == (name in ("PosEmbed", "Attention", "TransformerBlock"))
    assert ("shortformer" in says) == (name in ("Attention", "TransformerBlock"))


def test_a_readers_own_way_passes(checked: Any, attention: str) -> None:
    """A class that computes in another way, with no taps, passes: outputs and every gradient."""
    report = checked(attention)
    assert report.ok, report.text()
    assert report.verdict().startswith("Attention is right")
    names = [row.name for row in report.trials[0].rows]
    assert names[0] == "attn_out" and len(names) == 10
    assert {"grad W_Q", "grad b_K", "grad normalized_resid_pre"} <= set(names)
    assert {trial.dtype for trial in report.trials} == {"float64", "float32"}


def test_sizes_and_seed_may_be_chosen(checked: Any, attention: str) -> None:
    """Other sizes and numbers pass as well, down to one position and one head of one number."""
    for seed, sizes in ((1, {"d_model": 1, "n_heads": 1, "n_ctx": 1}), (2, {"d_model": 24})):
        report = checked(attention, seed=seed, sizes=sizes)
        assert report.ok, report.text()
        assert report.cfg.d_model == sizes["d_model"]
    norm = OTHERS["LayerNorm"][3]
    with pytest.raises(PvmlError, match="over d_model 2 gives the same whatever it reads"):
        checked(norm, "LayerNorm", sizes={"d_model": 2, "n_heads": 1})
    with pytest.raises(PvmlError, match="multiple of n_heads"):
        checked(attention, sizes={"d_model": 16})


SCALE = " / self.cfg.d_head**0.5"
WRONG = {
    "no scale": ([(SCALE, "")], "not divided by sqrt(d_head)"),
    "mask hides the diagonal": ([("triu(1)", "triu(0)")], "no position reads itself"),
    "mask after softmax": (
        [
            ('scores = scores.masked_fill(future, float("-inf"))', ""),
            ("softmax(dim=-1)", "softmax(dim=-1).masked_fill(future, 0)"),
        ],
        "the mask comes after the softmax",
    ),
    "softmax over heads": ([("dim=-1", "dim=1")], "runs over the heads"),
    "q and k swapped": ([("q @ k", "k @ q")], "queries and keys have changed places"),
    "heads not moved back": (
        [(".transpose(1, 2)\n", ".reshape(len(x), n, self.cfg.n_heads, -1)\n")],
        "while n_heads stands before posn",
    ),
    "residual inside": ([("return out", "return x + out")], "the block does that"),
    "mask upside down": ([("triu(1)", "tril(1)")], "the mask is upside down and off by one"),
    "two at once": (
        [(SCALE, ""), ("+ self.b_O", "")],
        "the scores are not divided by sqrt(d_head); and b_O is left out",
    ),
    "nothing that is known": ([("return out", "return out * 1.01")], "no mistake that is known"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_attention_is_told_why(checked: Any, edited: Any, mistake: str) -> None:
    """Each mistake fails the first trial at the output, and what is told is the one made."""
    edits, cause = WRONG[mistake]
    report = checked(edited(*edits))
    assert not report.ok
    assert report.first_bad == report.trials[0]
    assert "first wrong: attn_out" in report.verdict()
    assert cause in report.verdict(), report.text()


def test_a_bias_that_changes_no_output_is_missed_all_the_same(checked: Any, edited: Any) -> None:
    """Without b_K the output is the same to rounding: that no gradient reaches it tells."""
    report = checked(edited(("+ self.b_K[:, None]", "")))
    assert not report.ok and report.first_bad is not None
    assert any("no gradient reaches b_K" in problem for problem in report.first_bad.problems)


MIXED_UP = {
    "W_Q for W_K": ("x, self.W_K)", "x, self.W_Q)", "no gradient reaches W_K: forward does not"),
    "q for k": ("q @ k.tr", "q @ q.tr", "no gradient reaches W_K, b_K: forward does not use it"),
    "b_K for b_V": ("+ self.b_V[", "+ self.b_K[", "no gradient reaches b_V: forward does not use"),
}


@pytest.mark.parametrize("mistake", MIXED_UP)
def test_a_parameter_that_is_not_used_is_named(checked: Any, edited: Any, mistake: str) -> None:
    """Where the output is wrong, too, and nothing else can be told of it."""
    old, new, told = MIXED_UP[mistake]
    report = checked(edited((old, new)))
    assert f"mend first what is told above: {told}" in report.verdict(), report.text()
    assert told not in checked(edited((old, new)), backward=False).text()
    lost = checked(edited(("+ self.b_O", ""))).first_bad
    assert lost.causes == ("b_O is left out",) and "no gradient reaches b_O" in lost.problems[0]


CUT = {
    "detached": ([("pattern @ v", "pattern.detach() @ v")], "no gradient reaches W_Q"),
    "data": ([("self.W_V)", "self.W_V.data)")], "no gradient reaches W_V"),
    "one of two ways": ([("x, self.W_V)", "x.detach(), self.W_V)")], "the way back is not"),
    "all of it": ([("return out", "return out.detach()")], "no gradient can flow"),
}


@pytest.mark.parametrize("cut", CUT)
def test_what_cuts_the_gradient_is_told(checked: Any, edited: Any, cut: str) -> None:
    """A forward that is right and cannot learn fails at the gradients: what is cut is named."""
    edits, told = CUT[cut]
    report = checked(edited(*edits))
    assert not report.ok and told in report.text()
    assert checked(edited(*edits), backward=False).ok


def test_gradients_that_lack_digits_are_not_said_to_be_cut(checked: Any, edited: Any) -> None:
    """Off in the eleventh digit, where the output just passes: a constant's digits, no detach."""
    eleventh = "z = z + 1e-10 * (z - z.detach())"
    report = checked(edited(("        out =", f"        {eleventh}\n        out =")))
    assert report.first_bad.report.first_bad.name.startswith("grad")
    assert "right but for the last digits: a constant is written" in report.verdict()
    coarse = checked(
        edited(("        out =", f"        {eleventh.replace('1e-10', '1e-7')}\n        out ="))
    )
    assert "a .detach() or .data" in coarse.verdict()


OTHERS = {
    "LayerNorm": (
        "std = (x.var(-1, keepdim=True, unbiased=False) + self.cfg.layer_norm_eps).sqrt()",
        "std = x.std(-1, keepdim=True) + self.cfg.layer_norm_eps",
        "torch's std divides by N - 1",
        """
import torch
from torch import nn
class LayerNorm(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.w = cfg, nn.Parameter(torch.ones(cfg.d_model))
        self.b = nn.Parameter(torch.zeros(cfg.d_model))
    def forward(self, x):
        std = (x.var(-1, keepdim=True, unbiased=False) + self.cfg.layer_norm_eps).sqrt()
        return (x - x.mean(-1, keepdim=True)) / std * self.w + self.b
""",
    ),
    "MLP": (
        ", approximate='tanh'",
        "",
        "the GELU is the erf form",
        """
import torch
from torch import nn
class MLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        for name, *shape in (("W_in", cfg.d_model, cfg.d_mlp), ("b_in", cfg.d_mlp),
                             ("W_out", cfg.d_mlp, cfg.d_model), ("b_out", cfg.d_model)):
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
    def forward(self, x):
        post = nn.functional.gelu(x @ self.W_in + self.b_in, approximate='tanh')
        return post @ self.W_out + self.b_out
""",
    ),
    "TransformerBlock": (
        "x = x + self.mlp(self.ln2(x))",
        "x = x + self.mlp(x)",
        "ln2 is left out",
        """
from torch import nn
from pvml.modules.attention import Attention
from pvml.modules.mlp import MLP
from pvml.modules.normalization import LayerNorm
class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1, self.ln2 = LayerNorm(cfg), LayerNorm(cfg)
        self.attn, self.mlp = Attention(cfg), MLP(cfg)
    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return x
""",
    ),
    "PosEmbed": (
        "self.W_pos[: tokens.shape[1]]",
        "self.W_pos[1 : tokens.shape[1] + 1]",
        "counted from 1",
        """
import torch
from torch import nn
class PosEmbed(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.W_pos = nn.Parameter(torch.zeros(cfg.n_ctx, cfg.d_model))
    def forward(self, tokens):
        return self.W_pos[: tokens.shape[1]].expand(*tokens.shape, -1)
""",
    ),
    "Embed": (
        "return self.W_E[tokens]",
        "return self.W_E[tokens] * self.W_E.shape[1] ** 0.5",
        "multiplied by sqrt(d_model)",
        """
import torch
from torch import nn
class Embed(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.W_E = nn.Parameter(torch.zeros(cfg.d_vocab, cfg.d_model))
    def forward(self, tokens):
        return self.W_E[tokens]
""",
    ),
    "Unembed": (
        "self.b_U",
        "self.b_U).softmax((-1)",
        "it gives probabilities",
        """
import torch
from torch import nn
class Unembed(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.W_U = nn.Parameter(torch.zeros(cfg.d_model, cfg.d_vocab))
        self.register_buffer("b_U", torch.zeros(cfg.d_vocab))
    def forward(self, x):
        return (x @ self.W_U + self.b_U)
""",
    ),
}


def test_sparse_gradients_are_gradients(checked: Any) -> None:
    """An embedding whose gradient is sparse is right."""
    source = OTHERS["Embed"][3].replace(
        "self.W_E[tokens]", "nn.functional.embedding(tokens, self.W_E, sparse=True)"
    )
    assert "sparse" in source
    report = checked(source, "Embed")
    assert report.ok, report.text()


def test_a_window_is_not_called_a_table(checked: Any, edited: Any) -> None:
    """What is wrong over many positions alone is told with "perhaps"."""
    narrow = edited(("triu(1)", "triu(1).add(torch.ones(n, n).tril(-8))"))
    report = checked(narrow)
    assert not report.ok
    assert "only trials like this one fail: perhaps a table or mask is too small, or a" in (
        report.verdict()
    )


@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_passes_and_fails(checked: Any, edited: Any, name: str) -> None:
    """A plain class of each other kind passes, and with a mistake of its kind is told which."""
    right, wrong, cause, source = OTHERS[name]
    assert right in source
    report = checked(source, name)
    assert report.ok, report.text()
    report = checked(source.replace(right, wrong), name)
    assert not report.ok and report.first_bad is not None
    assert cause in report.first_bad.causes[0], report.text()


PADDED = [
    ("def forward(self, x)", "def forward(self, x, real=None)"),
    ("        pattern =", "        if real is not None:\n            HIDE\n        pattern ="),
]
HIDE = "scores = scores.masked_fill(~real[:, None, None, :], INSTEAD)"
OWN_ROWS = {
    "even shares of all, as in Hugging Face's": HIDE.replace("INSTEAD", "-1e300"),
    "reads itself": HIDE.replace("~real", "~torch.eye(n).bool() & ~real").replace(
        "INSTEAD", "-1e300"
    ),
    "nothing": "x = x * real[..., None]; " + HIDE.replace("INSTEAD", "-1e300"),
}
"""What padding's own rows read; -1e300 hides as -inf does, and leaves no row without any."""


@pytest.mark.parametrize("rule", OWN_ROWS)
def test_what_a_pad_reads_itself_is_no_mistake(checked: Any, edited: Any, rule: str) -> None:
    """Padding's own rows are a convention, which no real position sees: only theirs are judged."""
    float32 = OWN_ROWS[rule].replace("-1e300", "torch.finfo(x.dtype).min")
    report = checked(edited(PADDED[0], (PADDED[1][0], PADDED[1][1].replace("HIDE", float32))))
    assert "with padding" in report.trials[-1].says
    assert report.ok, report.text()


READ_ALL_THE_SAME = {
    "not hidden": ("pass", "padding is read like text"),
    "a little": (HIDE.replace("INSTEAD", "-25"), "cause: real positions read padding: its scores"),
    "nothing left to read": (HIDE.replace("INSTEAD", "float('-inf')"), "that are NaN or infinite"),
}


@pytest.mark.parametrize("mistake", READ_ALL_THE_SAME)
def test_padding_that_harms_others_is_told(checked: Any, edited: Any, mistake: str) -> None:
    """Pads that real positions read, and pads that become NaN, which the next layer spreads."""
    code, told = READ_ALL_THE_SAME[mistake]
    report = checked(edited(PADDED[0], (PADDED[1][0], PADDED[1][1].replace("HIDE", code))))
    assert not report.ok and report.first_bad.says.endswith("with padding")
    assert told in report.text(), report.text()


@pytest.mark.parametrize("instead", ["-40", "-100"])
def test_padding_that_shows_where_scores_are_large(checked: Any, edited: Any, instead: str) -> None:
    """A number that hides pads among small scores, and not among large ones."""
    hide = PADDED[1][1].replace("HIDE", HIDE.replace("INSTEAD", instead))
    report = checked(edited(PADDED[0], (PADDED[1][0], hide)))
    assert not report.ok and report.first_bad == report.trials[-1]
    assert report.first_bad.says.endswith("with padding and large scores")
    assert "likely cause: real positions read padding" in report.verdict(), report.text()
