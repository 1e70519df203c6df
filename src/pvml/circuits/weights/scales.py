"""What a circuit's entries are in, and what the LayerNorms' 1/std that it leaves out come to.

LayerNorm divides by a standard deviation that depends on the whole stream, so that weights alone
have none. Entries of different circuits lack different ones, and more of them the longer the path:
they cannot be compared before each is multiplied by its own.
"""

from collections import Counter
from dataclasses import dataclass

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.held import wide
from pvml.circuits.weights.maps import Circuit
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

_ROWS = 4
"""Rows in one pass: each has its logits."""


@dataclass(frozen=True, kw_only=True)
class TypicalScale:
    """By how much entries have to be multiplied where a text is read, since 1/std is left out."""

    factor: float
    """The median over positions."""
    low: float
    """A tenth of the positions have less."""
    high: float
    """A tenth of the positions have more."""
    n_positions: int

    def __str__(self) -> str:
        return (
            f"× {self.factor:.3g} (median of {self.n_positions:,} positions; four fifths are "
            f"between {self.low:.3g} and {self.high:.3g})"
        )


@t.no_grad()
def typical_scale(
    model: Transformer, circuit: Circuit, tokens: Int[Tensor, "batch posn"]
) -> TypicalScale:
    """The product of 1/std of the circuit's LayerNorms, over the positions of a text.

    All of a product are taken at one position, though a head reads at one and writes at another:
    this is a size to think of, not what one entry is worth somewhere.

    Raises: PvmlError for no tokens, or those that the model cannot read.
    """
    if tokens.numel() == 0:
        raise PvmlError(f"a scale needs at least one token, got {tuple(tokens.shape)}")
    factors = t.ones(tokens.shape, dtype=t.float64)
    names = [f"{path}.residual_std" for path in circuit.left_out]
    for at in range(0, len(tokens) if names else 0, _ROWS):
        rows = tokens[at : at + _ROWS].to(model.device)
        _, cache = model.run_with_cache(rows, names_filter=sorted(set(names)))
        for name in names:
            factors[at : at + _ROWS] /= wide(cache[name][..., 0]).double().cpu()
    low, median, high = (float(factors.quantile(share)) for share in (0.1, 0.5, 0.9))
    return TypicalScale(factor=median, low=low, high=high, n_positions=tokens.numel())


def unit_of(circuit: Circuit) -> str:
    """What an entry is in: as `nats`, `nats × std`, `q · k × 3 stds`, `coordinates × std`."""
    if circuit.name.startswith("QK"):
        unit = "q · k"
    else:
        unit = "nats" if circuit.columns == "vocabulary" else "coordinates"
    n = len(circuit.left_out)
    return unit + ("" if n == 0 else " × std" if n == 1 else f" × {n} stds")


def what_is_left_out(circuit: Circuit, scale: TypicalScale | None = None) -> str:
    """A sentence that says how an entry becomes nats or a score; empty where it is that already."""
    if not circuit.left_out:
        return ""
    unit = unit_of(circuit).partition(" × ")[0]
    stds = "std that is" if len(circuit.left_out) == 1 else "stds that are"
    times = Counter(circuit.left_out).items()
    norms = ", ".join(f"{norm} twice" if n == 2 else norm for norm, n in times)
    typical = "" if scale is None else f", typically {scale}"
    return f"For {unit}, divide by the {stds} left out ({norms}){typical}."
