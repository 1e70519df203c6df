"""How probable a score is by chance, given the scores of a null."""

import math

import torch as t
from jaxtyping import Float
from torch import Tensor

SIGNIFICANCE = 0.001
"""Largest p, already corrected for the number of scores tried, that earns a name."""
FEW = 10
"""Null scores as large, below which their share says little: their spread is used then."""
_PRECISE = 100
"""Coin tosses as large, after which their share is known well enough."""
_UNSEEN = 1e-3
"""Tosses expected to be as large, at most, for which none need to be made."""


def chance_above(score: float, null: Float[Tensor, " n"]) -> float:
    """The probability that the null reaches a score; 1 for NaN, which is no score.

    The share of null scores as large. Where fewer than FEW are: the upper tail of a Pearson type
    III distribution of their mean, standard deviation and skewness, for a null that is longer on
    its upper side reaches further than a normal one; a negative skewness is taken for 0, which is
    the normal distribution. But no more than the share in which the score itself counts as one: a
    null that has an end has no tail. Source of that share: Phipson and Smyth 2010, "Permutation
    p-values should never be zero".
    """
    if math.isnan(score):
        return 1.0
    above = int((null >= score).sum())
    if above >= FEW:
        return above / len(null)
    spread = float(null.std())
    if spread == 0.0:
        return 1.0 if score <= float(null.mean()) else t.finfo(t.float64).tiny
    from scipy.stats import pearson3, skew  # takes longer to import than all else here

    distance = (score - float(null.mean())) / spread
    tail = float(pearson3.sf(distance, max(0.0, float(skew(null.double().numpy())))))
    return max(min(tail, (above + 1) / (len(null) + 1)), t.finfo(t.float64).tiny)


def chance_of(
    differences: Float[Tensor, "batch tests"], n_tests: int, rng: t.Generator
) -> list[float]:
    """For each column, how often its mean would be as large if every sign were a coin's toss.

    1 for a mean that is NaN. As many tosses as it takes for a p of a thousandth of 1 / n_tests to
    be within reach; fewer for a column that is far from it, and none where as good as surely no
    toss would reach its mean. Source of that bound: Hoeffding 1963, "Probability inequalities for
    sums of bounded random variables", theorem 2.
    """
    reached = differences.mean(0)
    undefined = reached.isnan()
    reached = reached - 1e-12 * reached.abs()  # a tie must not be lost to rounding
    most = max(10_000, 4_000 * n_tests)
    distance = reached.clamp(min=0) * len(differences) / differences.square().sum(0).sqrt()
    out_of_reach = most * (-distance.square() / 2).exp() < _UNSEEN
    n_tosses = t.where(out_of_reach, float(most), 0.0)
    exceeded = t.zeros(len(reached))
    asked = (~out_of_reach).nonzero()[:, 0]
    for start in range(0, most if len(asked) else 0, 10_000):
        size = (min(10_000, most - start), len(differences))
        signs = 2.0 * t.randint(2, size, generator=rng, dtype=t.int8) - 1
        means = signs.double() @ differences[:, asked] / len(differences)
        exceeded[asked] += (means >= reached[asked]).sum(0)
        n_tosses[asked] += size[0]
        asked = asked[exceeded[asked] < _PRECISE]
        if not len(asked):
            break
    found = (1 + exceeded) / (1 + n_tosses)
    return found.masked_fill(undefined, 1.0).tolist()


def told_p(p: float) -> str:
    """A probability by chance in words, as "p < 0.001" or "p = 0.02"."""
    return f"p < {SIGNIFICANCE}" if p < SIGNIFICANCE else f"p = {p:.2g}"
