"""The least that a training step can take: its arithmetic at the rate this machine multiplies at.

The step's matrix products are measured in the shapes they have, forward and backward, into memory
that is there already: float32 by two routes, of which the faster counts for each product, and
bfloat16 for the three products with the vocabulary's table. Nothing else that a step does is
counted: no softmax, no LayerNorm, no optimizer, no memory that has to be found first.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch as t

from pvml.config import Config
from pvml.modules.flops import training_flops

_MOST_ROWS = 4096
"""Tokens that a product is measured with; more of them go at the same rate."""
_FLOAT32_ERROR = 1e-5
"""Largest relative error of a product that passes for float32."""
_ROUTES = {"MKL": "none", "oneDNN": "bf16"}
"""What PyTorch is told, so that float32 products go there."""


@dataclass(frozen=True)
class Product:
    """One matrix product, ready to be taken."""

    name: str
    flops: int
    take: Callable[[], object]
    times: int

    def rate(self) -> float:
        """FLOP/s, the median of so many times."""
        seconds = []
        for _ in range(self.times):
            start = time.perf_counter()
            self.take()
            seconds.append(time.perf_counter() - start)
        return self.flops / statistics.median(seconds)


class Floor:
    """Measures the floor of one shape, again and again."""

    def __init__(self, cfg: Config, batch: int):
        tokens = batch * cfg.n_ctx
        flops = training_flops(cfg)
        self.vocabulary_flops = tokens * flops.unembedding
        # the mask leaves half of the grid
        self.block_flops = tokens * (flops.projections + flops.mlp + flops.grid / 2)
        rows, width = min(tokens, _MOST_ROWS), cfg.n_heads * cfg.d_head
        self.blocks = [
            *three_products(rows, cfg.d_model, 3 * width, times=5),
            *three_products(rows, width, cfg.d_model, times=5),
            *three_products(rows, cfg.d_model, cfg.d_mlp, times=5),
            *three_products(rows, cfg.d_mlp, cfg.d_model, times=5),
        ]
        self.vocabulary = three_products(rows, cfg.d_model, cfg.d_vocab)
        self.vocabulary_bfloat16 = three_products(rows, cfg.d_model, cfg.d_vocab, dtype=t.bfloat16)
        self.routes = [route for route in _ROUTES if is_float32(route)]

    def measure(self) -> dict[str, Any]:
        """Seconds that a step takes at least, by precision; FLOP/s by arithmetic and product."""
        rates = {}
        for route in self.routes:
            with matmuls_by(route):
                both = [*self.blocks, *self.vocabulary]
                rates[f"float32 {route}"] = {product.name: product.rate() for product in both}
        float32 = list(rates.values())
        bfloat16 = {product.name: product.rate() for product in self.vocabulary_bfloat16}
        blocks = self.block_flops / mean_rate(self.blocks, float32)
        wide = self.vocabulary_flops / mean_rate(self.vocabulary, float32)
        half = self.vocabulary_flops / mean_rate(self.vocabulary_bfloat16, [bfloat16])
        return {
            "floors": {"float32": blocks + wide, "bfloat16": blocks + half},
            "rates": {**rates, "bfloat16": bfloat16},
        }


def three_products(
    rows: int, width: int, out: int, *, dtype: t.dtype = t.float32, times: int = 1
) -> list[Product]:
    """A layer's (rows, width) @ (width, out), and its backward: for input and for weight."""
    x, weight, y = t.randn(rows, width), t.randn(width, out), t.empty(rows, out, dtype=dtype)
    x, weight = x.to(dtype), weight.to(dtype)
    dx, dweight = t.empty_like(x), t.empty_like(weight)
    products = [
        (f"{rows}x{width}x{out} forward", partial(t.mm, x, weight, out=y)),
        (f"{rows}x{out}x{width} input", partial(t.mm, y, weight.T, out=dx)),
        (f"{width}x{rows}x{out} weight", partial(t.mm, x.T, y, out=dweight)),
    ]
    return [Product(name, 2 * rows * width * out, take, times) for name, take in products]


def mean_rate(products: Sequence[Product], measured: Sequence[Mapping[str, float]]) -> float:
    """FLOP/s over all of them, each as fast as it was by any route."""
    seconds = sum(p.flops / max(rates[p.name] for rates in measured) for p in products)
    return sum(p.flops for p in products) / seconds


@contextmanager
def matmuls_by(route: str) -> Iterator[None]:
    """Within it, float32 products go to that library."""
    settings = t.backends.mkldnn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = _ROUTES[route]
    try:
        yield
    finally:
        settings.fp32_precision = before


def is_float32(route: str) -> bool:
    """Whether that route's products are float32: oneDNN's are not where the processor has AMX."""
    generator = t.Generator().manual_seed(0)
    a, b = (t.randn(size, generator=generator) for size in ((512, 128), (128, 512)))
    exact = a.double() @ b.double()
    with matmuls_by(route):
        error = (a @ b - exact).abs().max() / exact.abs().max()
    return bool(error < _FLOAT32_ERROR)
