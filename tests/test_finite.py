"""all_finite says what isfinite().all() says."""

import math

import pytest
import torch as t

from pvml.finite import all_finite

DTYPES = [t.float64, t.float32, t.bfloat16, t.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
def test_one_fault_anywhere_is_seen(dtype: t.dtype, fault: float) -> None:
    """Also in a transposed view, and for a parameter that wants a gradient."""
    x = t.randn(5, 7, dtype=dtype)
    x[0, 0] = t.finfo(dtype).max
    assert all_finite(x) and all_finite(x.T) and all_finite(x.clone().requires_grad_())
    for at in range(x.numel()):
        broken = x.clone()
        broken.view(-1)[at] = fault
        assert not all_finite(broken) and not all_finite(broken.T)


def test_shapes_and_whole_numbers() -> None:
    """A single number, none at all, and ids."""
    assert all_finite(t.tensor(3.0)) and not all_finite(t.tensor(math.nan))
    assert all_finite(t.empty(0, 4))
    assert all_finite(t.tensor([1, 2])) and all_finite(t.tensor([True, False]))
