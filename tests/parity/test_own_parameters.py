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
