"""Which library multiplies large float32 matrices on a CPU: the faster one, if it is exact here.

PyTorch sends float32 products to its BLAS (MKL), which is slow for rows of 50,257. oneDNN is up to
1.6 times as fast, and is reached only by allowing it bfloat16. Where the processor has no units for
that (AMX), it computes in true float32 all the same; where it has, it does not, and is not used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch as t

_MOST_ERROR = 2e-6
"""Relative to the largest entry. Float32 sums of 128 products stay below; bfloat16 gives 4e-3."""


@contextmanager
def fastest_float32(device: t.device, dtype: t.dtype) -> Iterator[None]:
    """Within it, float32 products on the CPU take the faster route; all others are as always."""
    if device.type != "cpu" or dtype != t.float32 or not onednn_is_exact():
        yield
        return
    with _onednn():
        yield


@cache
def onednn_is_exact() -> bool:
    """Whether oneDNN, allowed bfloat16, still multiplies in float32 here: tried out, once."""
    available = t.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(t.backends.mkldnn, "matmul"):
        return False
    generator = t.Generator().manual_seed(0)
    left, right = (t.randn(shape, generator=generator) for shape in ((256, 128), (128, 4096)))
    truth = left.double() @ right.double()
    with _onednn():
        errors = [
            float((product.double() - truth).abs().max() / truth.abs().max())
            for product in (left @ right, (right.T @ left.T).T)
        ]
    return max(errors) < _MOST_ERROR


@contextmanager
def _onednn() -> Iterator[None]:
    matmul = t.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
