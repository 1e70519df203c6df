"""How probable a score is by chance, given the scores of a null."""

import math

import torch as t
from jaxtyping import Float
from torch import Tensor

FEW = 10
"""Null scores as large, below which their share says little: their spread is used then."""


def chance_above(score: float, null: Float[Tensor, " n"]) -> float:
    """The probability that the null reaches a score; 1 for NaN, which is no score.

    The share of null scores as large, or where fewer than FEW are the upper tail of the normal
    distribution of their mean and standard deviation.
    """
    if math.isnan(score):
        return 1.0
    above = int((null >= score).sum())
    if above >= FEW:
        return above / len(null)
    spread = float(null.std())
    if spread == 0.0:
        return 1.0 if score <= float(null.mean()) else t.finfo(t.float64).tiny
    distance = (score - float(null.mean())) / spread
    return max(0.5 * math.erfc(distance / math.sqrt(2)), t.finfo(t.float64).tiny)
