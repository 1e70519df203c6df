"""What all filters and penalties have in common: a broken row is named, never passed on."""

import math
from collections.abc import Callable

import pytest
import torch as t
from torch import Tensor

from pvml.errors import PvmlError
from pvml.sampling.filters import (
    apply_logit_bias,
    apply_temperature,
    ban_tokens,
    keep_min_p,
    keep_top_k,
    keep_top_p,
)
from pvml.sampling.penalties import apply_frequency_penalty, apply_repetition_penalty

NAN, INF = math.nan, math.inf
IDS = t.tensor([[0], [1], [2]])
FILTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "logit bias": lambda x: apply_logit_bias(x, {0: 1.0}),
    "bans": lambda x: ban_tokens(x, [0]),
    "temperature": lambda x: apply_temperature(x, 2.0),
    "top-k": lambda x: keep_top_k(x, 2),
    "top-p": lambda x: keep_top_p(x, 0.5),
    "min-p": lambda x: keep_min_p(x, 0.5),
    "frequency penalty": lambda x: apply_frequency_penalty(IDS[: len(x)], x, 1.0),
    "repetition penalty": lambda x: apply_repetition_penalty(IDS[: len(x)], x, 2.0),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ([NAN, 0.0, 1.0], "holds NaN"),
        ([0.0, INF, 1.0], r"holds \+inf"),
        ([-INF, -INF, -INF], "holds nothing but -inf"),
    ],
)
def test_a_broken_row_is_named(name: str, bad: list[float], fault: str) -> None:
    """NaN, +inf and a row of nothing but -inf; a ban does not hide the NaN that it covers."""
    whole = t.tensor([[1.0, 2.0, 3.0], [0.0, -INF, 1.0]])
    assert FILTERS[name](whole).shape == (2, 3)
    with pytest.raises(PvmlError, match=f"^row 2 of the logits {fault}"):
        FILTERS[name](t.cat([whole, t.tensor([bad])]))


def test_an_infinite_temperature_is_refused() -> None:
    """It would make NaN of what is at -inf."""
    with pytest.raises(PvmlError, match="temperature must be above 0 and finite"):
        apply_temperature(t.tensor([1.0, -INF]), INF)
