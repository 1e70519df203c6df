"""How sure a share and a ratio of shares are, and how probable a count is by chance."""

import math

Z = 1.959963984540054
"""Standard deviations around a normal distribution's mean that hold 95 per cent of it."""


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95 per cent interval of a share seen in n trials, which need not be whole.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    around, rest = share + Z**2 / (2 * n), Z**2 / n
    half = Z * math.sqrt(share * (1 - share) / n + rest / (4 * n))
    # at the ends the bound is the share itself, which rounding would miss
    low = 0.0 if share == 0 else max(0.0, (around - half) / (1 + rest))
    high = 1.0 if share == 1 else min(1.0, (around + half) / (1 + rest))
    return low, high


def ratio_interval(
    one: float, one_bounds: tuple[float, float], other: float, other_bounds: tuple[float, float]
) -> tuple[float, float]:
    """The interval of one / other, two independent numbers of at least 0, from theirs.

    The upper end is infinite where the other may be 0. The difference `one - ratio x other` is as
    far from 0 as both intervals together allow (MOVER-R). Source: Newcombe 2016, "MOVER-R
    confidence intervals for ratios and products of two independently estimated quantities".
    """
    (low, high), (other_low, other_high) = one_bounds, other_bounds
    both = one * other
    of_one, of_other = low * (2 * one - low), other_high * (2 * other - other_high)
    root = math.sqrt(max(0.0, both**2 - of_one * of_other))
    lowest = of_one / (both + root) if of_one > 0 else 0.0
    of_one, of_other = high * (2 * one - high), other_low * (2 * other - other_low)
    if of_other <= 0:
        return lowest, math.inf
    root = math.sqrt(max(0.0, both**2 - of_one * of_other))
    return lowest, (both + root) / of_other


def hits_by_chance(hits: int, drawn: int, marked: int, n: int) -> float:
    """The probability of at least so many marked ones among `drawn` of n, of which `marked` are.

    The upper tail of the hypergeometric distribution: Fisher's exact test, one-sided.
    """
    from scipy.stats import hypergeom  # takes longer to import than all else here

    # scipy has no urn of none
    return float(hypergeom.sf(hits - 1, n, marked, drawn)) if hits > 0 else 1.0


def above_by_chance(distance: float, freedom: float) -> float:
    """The probability that Student's t, of so many degrees of freedom, is at least so large."""
    from scipy.stats import t as student_t  # as above

    return float(student_t.sf(distance, freedom))
