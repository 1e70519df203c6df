"""The faster route for float32 products: taken only where it is exact, and only for a while."""

import pytest
import torch as t

from pvml.modules import matmul_route
from pvml.modules.matmul_route import fastest_float32, onednn_is_exact

CPU = t.device("cpu")


def setting() -> str:
    return t.backends.mkldnn.matmul.fp32_precision


def test_within_it_float32_products_stay_float32_products() -> None:
    """Whatever route this machine takes, the error is that of float32, not of bfloat16."""
    generator = t.Generator().manual_seed(1)
    left, right = t.randn(300, 128, generator=generator), t.randn(128, 5000, generator=generator)
    truth = left.double() @ right.double()
    with fastest_float32(CPU, t.float32):
        product = left @ right

    assert float((product - truth).abs().max() / truth.abs().max()) < 2e-6


def test_the_setting_is_put_back_whatever_happens() -> None:
    """Other code's products are multiplied as before, after an error too."""
    before = setting()
    with pytest.raises(ZeroDivisionError), fastest_float32(CPU, t.float32):
        1 / 0  # noqa: B018

    assert setting() == before


@pytest.mark.parametrize("dtype", [t.float64, t.bfloat16])
def test_other_types_are_left_alone(dtype: t.dtype) -> None:
    """The route is about float32 only."""
    with fastest_float32(CPU, dtype):
        assert setting() != "bf16"


def test_an_inexact_route_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor whose oneDNN would round to bfloat16 the usual route stays."""
    monkeypatch.setattr(matmul_route, "_MOST_ERROR", 0.0)
    onednn_is_exact.cache_clear()
    try:
        assert not onednn_is_exact()
        with fastest_float32(CPU, t.float32):
            assert setting() != "bf16"
    finally:
        onednn_is_exact.cache_clear()
