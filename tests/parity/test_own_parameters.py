"""A reader's parameters: those that do not fit are named, with what is there instead."""

from typing import Any

import pytest

B_O = "nn.Parameter(torch.zeros(cfg.d_model))"
W_O = "nn.Parameter(0.02 * torch.randn(cfg.n_heads, cfg.d_head, cfg.d_model))"
PARAMETERS = {
    "missing": (f"self.b_O = {B_O}", "", "missing: b_O (15,) (d_model)"),
    "plain": (B_O, "torch.zeros(cfg.d_model)", "b_O is a plain tensor"),
    "buffer": (
        f"self.b_O = {B_O}",
        "self.register_buffer('b_O', torch.zeros(15))",
        "b_O is a buffer, which is never trained",
    ),
    "linear": (W_O, "nn.Linear(15, 15)", "W_O is an nn.Linear"),
    "turned": (
        "cfg.n_heads, cfg.d_head, cfg.d_model",
        "cfg.n_heads, cfg.d_model, cfg.d_head",
        "the axes are in another order",
    ),
    "misspelt": ("self.b_O", "self.b_o", "missing: b_O (15,) (d_model); is it b_o?"),
    "one more": (
        "self.cfg = cfg",
        "self.cfg = cfg; self.t = nn.Parameter(torch.ones(2))",
        "unexpected: t (2,)",
    ),
    "frozen": ("randn(shape))", "randn(shape), False)", "W_Q has requires_grad=False"),
    "shared": ("self.b_Q = nn", "self.W_K = self.W_Q; self.b_Q = nn", "one and the same"),
    "meta": (
        "torch.zeros(cfg.d_model)",
        "torch.zeros(cfg.d_model, device='meta')",
        "b_O holds no numbers yet",
    ),
    "integers": (B_O, "nn.Parameter(torch.zeros(15).long(), False)", "b_O is of torch.int64"),
    "lazy": (B_O, "nn.UninitializedParameter()", "b_O holds no numbers yet"),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_that_do_not_fit_are_named(checked: Any, edited: Any, case: str) -> None:
    """Missing, unexpected, misshapen, frozen: each by name, with what is there instead."""
    old, new, told = PARAMETERS[case]
    report = checked(edited((old, new)))
    assert not report.ok and any(told in problem for problem in report.problems), report.text()


LINEAR = """
from torch import nn
class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.c_attn = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.c_proj = nn.Linear(cfg.d_model, cfg.d_model)
class MLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.c_fc = nn.Linear(cfg.d_model, cfg.d_mlp)
        self.c_proj = nn.Linear(cfg.d_mlp, cfg.d_model)
class Embed(nn.Embedding):
    def __init__(self, cfg):
        super().__init__(cfg.d_vocab, cfg.d_model)
class LayerNorm(nn.LayerNorm):
    def __init__(self, cfg):
        super().__init__(cfg.d_model)
class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1, self.attn = LayerNorm(cfg), Attention(cfg)
        self.ln2, self.mlp = LayerNorm(cfg), MLP(cfg)
"""
MATRICES = "each matrix and bias is an nn.Parameter of its own, by this name and shape: (in, out)"
W_AND_B, JOINED = "LayerNorm's weight and bias are called w and b", "W_Q, W_K and W_V, a matrix per"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Attention", (MATRICES, JOINED)),
        ("MLP", (MATRICES,)),
        ("Embed", (MATRICES,)),
        ("LayerNorm", (W_AND_B,)),
        ("TransformerBlock", (MATRICES, W_AND_B, JOINED)),
    ],
)
def test_torchs_own_layers_are_told_to_be_rewritten(
    checked: Any, name: str, told: tuple[str, ...]
) -> None:
    """One line says what nn.Linear, nn.LayerNorm and c_attn are here, each where it stands."""
    *_, hint = checked(LINEAR, name).problems
    assert hint.startswith("torch's own layers are not read: ")
    assert [one for one in (MATRICES, W_AND_B, JOINED) if one in hint] == list(told)


def test_other_names_alone_get_no_such_hint(checked: Any, edited: Any) -> None:
    """Where nothing is called weight or bias, or nothing is missing, torch's are no matter."""
    spare = ("self.cfg = cfg", "self.cfg = cfg; self.spare = nn.Linear(2, 2)")
    for edit in (("self.b_O", "self.b_o"), spare):
        assert "torch's own layers" not in checked(edited(edit)).text()
