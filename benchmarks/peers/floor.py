"""The least that a training step can take: its arithmetic at the rate this machine multiplies at.

The step's matrix products are measured in the shapes they have, forward and backward, into memory
that is there already: in float32 by two routes, of which the faster counts for each product, and in
bfloat16. Three floors come of it: all in float32; the vocabulary's products in bfloat16 and the
blocks' in float32; all in bfloat16. Nothing else that a step does is counted: no softmax, no
LayerNorm, no optimizer, no memory that has to be found first.
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
from pvml.modules.matmul_route import onednn_is_exact

_MOST_ROWS = 4096
"""Tokens that a product is measured with; more of them go at the same rate."""
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
        block = [(cfg.d_model, 3 * width), (width, cfg.d_model)]
        block += [(cfg.d_model, cfg.d_mlp), (cfg.d_mlp, cfg.d_model)]
        self.blocks, self.vocabulary = {}, {}
        for dtype in (t.float32, t.bfloat16):
            layers = [three_products(rows, *size, dtype, times=5) for size in block]
            self.blocks[dtype] = [product for layer in layers for product in layer]
            self.vocabulary[dtype] = three_products(rows, cfg.d_model, cfg.d_vocab, dtype)
        self.routes = list(_ROUTES) if onednn_is_exact() else ["MKL"]

    def measure(self) -> dict[str, Any]:
        """Seconds that a step takes at least, and FLOP/s by arithmetic and product."""
        rates = {}
        for route in self.routes:
            with matmuls_by(route):
                rates[f"float32 {route}"] = self._rates(t.float32)
        measured = {t.float32: list(rates.values())}
        rates["bfloat16"] = self._rates(t.bfloat16)
        measured[t.bfloat16] = [rates["bfloat16"]]

        def least(blocks: t.dtype, vocabulary: t.dtype) -> float:
            in_blocks = mean_rate(self.blocks[blocks], measured[blocks])
            in_vocabulary = mean_rate(self.vocabulary[vocabulary], measured[vocabulary])
            return self.block_flops / in_blocks + self.vocabulary_flops / in_vocabulary

        floors = {
            "float32": least(t.float32, t.float32),
            "bfloat16": least(t.float32, t.bfloat16),
            "all bfloat16": least(t.bfloat16, t.bfloat16),
        }
        return {"floors": floors, "rates": rates}

    def _rates(self, dtype: t.dtype) -> dict[str, float]:
        products = [*self.blocks[dtype], *self.vocabulary[dtype]]
        return {product.name: product.rate() for product in products}


def three_products(
    rows: int, width: int, out: int, dtype: t.dtype, times: int = 1
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
