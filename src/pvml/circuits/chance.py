"""How probable a score is by chance, given the scores of a null."""

import math

import torch as t
from jaxtyping import Float
from torch import Tensor

FEW = 10
"""Null scores as large, below which their share says little: their spread is used then."""


def chance_above(score: float, null: Float[Tensor, " n"]) -> float:
    """The probability that the null reaches a score; 1 for NaN, which is no score.

    The share of null scores as large. Where fewer than FEW are: the upper tail of the normal
    distribution of their mean and standard deviation, but no more than the share in which the score
    itself counts as one: a null that has an end has no tail. Source of that share: Phipson and
    Smyth 2010, "Permutation p-values should never be zero".
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
    tail = 0.5 * math.erfc(distance / math.sqrt(2))
    return max(min(tail, (above + 1) / (len(null) + 1)), t.finfo(t.float64).tiny)
