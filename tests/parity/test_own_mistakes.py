"""Mistakes as readers make them in code: each is told by its sentence."""

from typing import Any

import pytest

LOOP = """
import torch
from torch import nn
class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        for a in "QKV":
            shape = cfg.n_heads, cfg.d_model, cfg.d_head
            self.register_parameter(f"W_{a}", nn.Parameter(torch.zeros(shape)))
            self.register_parameter(f"b_{a}", nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head)))
        self.W_O = nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head, cfg.d_model))
        self.b_O = nn.Parameter(torch.zeros(cfg.d_model))
    def forward(self, x):
        n, n_heads = x.shape[1], len(self.W_O)
        out = 0
        for i in range(n_heads):
            q = x @ self.W_Q[i] + self.b_Q[i]
            k = x @ self.W_K[i] + self.b_K[i]
            v = x @ self.W_V[i] + self.b_V[i]
            scores = q @ k.mT / q.shape[-1] ** 0.5
            scores = scores.masked_fill(torch.ones(n, n).triu(1) == 1, -1e9)
            out = out + scores.softmax(-1) @ v @ self.W_O[i]
        return out + self.b_O
"""
HEADS = {
    "the last": ("out = out + ", "out = ", "only the last head is used: = where += belongs"),
    "the first": (
        "@ self.W_O[i]",
        "@ self.W_O[i]; break",
        "only the first head is used: is there a return within the loop?",
    ),
    "all but the last": ("range(n_heads)", "range(n_heads - 1)", "head 2 is left out"),
    "all but the first": ("range(n_heads)", "range(1, n_heads)", "head 0 is left out"),
    **{
        f"{name} of the first": (f"{name}[i]", f"{name}[0]", f"every head reads {name} of head 0")
        for name in ("W_Q", "W_K", "W_V", "W_O")
    },
}


@pytest.mark.parametrize("mistake", HEADS)
def test_a_wrong_loop_over_heads_is_told(checked: Any, mistake: str) -> None:
    """Heads that are lost, and a matrix that is read for all of them."""
    old, new, told = HEADS[mistake]
    assert old in LOOP and (mistake != "the last" or checked(LOOP).ok)
    (cause, *_) = checked(LOOP.replace(old, new)).first_bad.causes
    assert cause.startswith(told)


FILLED = 'scores = scores.masked_fill(future, float("-inf"))'
FUSED = (
    "z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=MASK).transpose(1, 2)",
    "z = (pattern @ v).transpose(1, 2)",
)
MASKS = {
    "inverted, fused": ("fused", "future", "the mask hides what it should show: every position"),
    "0 and 1, fused": ("fused", "(~future).to(x.dtype)", "a mask of 0 and 1 is added to the score"),
    "1 and 0, fused": ("fused", "future.to(x.dtype)", "and later ones get 1 more"),
    "1e9": (FILLED, "masked_fill(future, 1e9)", "set to a large number, not to a large negative"),
    "-1e-5": (FILLED, "masked_fill(future, -1e-5)", "set to -1e-05, which hides next to nothing"),
    "plus -1e-4": (FILLED, "add(-1e-4 * future)", "the mask adds -0.0001, which hides next to no"),
}


@pytest.mark.parametrize("dim", [0, 1])
def test_a_softmax_over_the_wrong_axis_is_told_with_any_mask(
    checked: Any, edited: Any, dim: int
) -> None:
    """A number in place of -inf leaves shares where there is nothing to share: no other cause."""
    report = checked(edited(('float("-inf")', "-1e9"), ("dim=-1", f"dim={dim}")))
    (cause,) = report.first_bad.causes
    assert cause.startswith("the softmax runs over the ") and cause.endswith("shared out evenly)")


@pytest.mark.parametrize("mistake", MASKS)
def test_what_a_mask_puts_there_is_told(checked: Any, edited: Any, mistake: str) -> None:
    """The wrong way round, as a number to add, and of the wrong sign or size."""
    old, new, told = MASKS[mistake]
    edit = (
        (FUSED[1], FUSED[0].replace("MASK", new))
        if old == "fused"
        else (old, f"scores = scores.{new}")
    )
    report = checked(edited(edit))
    assert report.first_bad == report.trials[0] and told in report.first_bad.causes[0]


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        ("real[:, None, None]", "real is used the wrong way round: it is True at real tokens"),
        ("real[:, None, None] & ~torch.eye(n).bool()", "they are hidden but from themselves"),
    ],
)
def test_real_the_wrong_way_round_is_told(
    checked: Any, edited: Any, instead: str, told: str
) -> None:
    """Real tokens hidden and padding read, where -inf would leave rows with nothing to read."""
    padding = f"if real is not None: future = future | ({instead})"
    source = edited(
        ("forward(self, x)", "forward(self, x, real=None)"),
        ("        scores = scores.m", f"        {padding}\n        scores = scores.m"),
        ('float("-inf")', "torch.finfo(x.dtype).min"),
    )
    right = source.replace(instead, "~real[:, None, None]")
    assert checked(right).ok
    report = checked(source)
    assert report.first_bad.says.endswith("with padding")
    assert told in report.first_bad.causes[0]


BENDS = {
    "0.44715": ([("0.044715", "0.44715")], "gelu_new's 0.044715 is written as 0.44715"),
    "2/sqrt(pi)": ([("(2 / torch.pi) **", "2 / torch.pi **")], "2/sqrt(pi) in place of sqrt(2/pi)"),
    "b_in": (
        [(" + self.b_in", ""), ("x @ self.W_out", "(x + self.b_in) @ self.W_out")],
        "b_in is added after the bend, not before",
    ),
}


@pytest.mark.parametrize("mistake", BENDS)
def test_a_wrong_mlp_is_told(checked: Any, mlp: str, mistake: str) -> None:
    """Constants of the GELU as they are misread, and a bias on its wrong side."""
    edits, told = BENDS[mistake]
    source = mlp
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    assert told in checked(source, "MLP").first_bad.causes[0]


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        ("x = self.ln1(x); x = x + self.attn(x)", "attention's output is added to ln1's output"),
        ("x = x + self.attn(self.ln1(x)); x = self.ln2(x)", "the MLP's output is added to ln2's"),
    ],
)
def test_a_skip_connection_from_a_layer_norm_is_told(checked: Any, forward: str, told: str) -> None:
    """The stream is what is added to; one of the two places is wrong here."""
    last = "x + self.mlp(x)" if "ln2" in forward else "x + self.mlp(self.ln2(x))"
    source = f"""
from pvml.modules.block import TransformerBlock as Ours
class TransformerBlock(Ours):
    def forward(self, x):
        {forward}
        return {last}
"""
    assert told in checked(source, "TransformerBlock").first_bad.causes[0]


def test_padding_without_the_mask_is_told(checked: Any, edited: Any) -> None:
    """Where real is given, padding alone is hidden: everything later is read."""
    source = edited(
        ("forward(self, x)", "forward(self, x, real=None)"),
        (
            "        scores = scores.m",
            "        if real is not None: future = ~real[:, None, None]\n        scores = scores.m",
        ),
        ('float("-inf")', "torch.finfo(x.dtype).min"),
    )
    report = checked(source)
    assert report.first_bad.says.endswith("with padding")
    assert report.first_bad.causes[0].startswith("there is no mask: every position reads later")
