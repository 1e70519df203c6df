"""`x W + b`, which most of a layer's work is, by the route that is faster for it."""

import torch as t
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pvml.modules.packed import AsMatrix, in_use


def product(
    x: Float[Tensor, "batch posn wide"],
    W: Float[Tensor, "wide out"],
    b: Float[Tensor, " out"],
) -> Float[Tensor, "batch posn out"]:
    """`x W + b`."""
    return products(x, (W,), (b,))[0]


def products(
    x: Float[Tensor, "batch posn wide"],
    Ws: tuple[Float[Tensor, "..."], ...],
    bs: tuple[Float[Tensor, "..."], ...],
    as_matrix: AsMatrix | None = None,
) -> list[Float[Tensor, "batch posn out"]]:
    """`x W + b` with each W and b, all of one shape; by packed weights, where they are in use.

    as_matrix: makes (wide, out) of a W, if it has other axes; b's are then flattened.
    """
    # no compiler can see through the context that packed weights are found by
    if not t.compiler.is_compiling() and (packed := in_use()) and not t.is_grad_enabled():
        ys = packed.products(x, Ws, bs, as_matrix)
        if ys is not None:
            return ys
    if as_matrix is not None:
        Ws, bs = tuple(map(as_matrix, Ws)), tuple(b.flatten() for b in bs)
    # F.linear wants weights as (out, in); unlike einsum it adds the bias within the product
    return [F.linear(x, W.T, b) for W, b in zip(Ws, bs, strict=True)]
