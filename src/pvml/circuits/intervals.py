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

    def log_choose(of: int, some: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(some + 1) - math.lgamma(of - some + 1)

    least, most = max(0, drawn + marked - n), min(drawn, marked)
    if hits <= least:
        return 1.0
    whole = log_choose(n, drawn)
    tail = math.fsum(
        math.exp(log_choose(marked, k) + log_choose(n - marked, drawn - k) - whole)
        for k in range(hits, most + 1)
    )
    return min(1.0, tail)


def above_by_chance(distance: float) -> float:
    """The probability that a normal variable is so many standard deviations above its mean."""
    return 0.5 * math.erfc(distance / math.sqrt(2))
