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


def above_by_chance(distance: float, freedom: float) -> float:
    """The probability that Student's t, of so many degrees of freedom, is at least so large.

    Half the regularised incomplete beta function, by its continued fraction. Source: Abramowitz and
    Stegun 1964, "Handbook of Mathematical Functions", 26.5.8 and 26.7.1.
    """
    a, b, x = freedom / 2, 0.5, freedom / (freedom + distance**2)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly: from the other end
        tail = 0.5 - _half_beta(b, a, distance**2 / (freedom + distance**2))
    else:
        tail = _half_beta(a, b, x)
    return tail if distance >= 0 else 1 - tail


def _half_beta(a: float, b: float, x: float) -> float:
    """Half of I_x(a, b), for x below (a + 1) / (a + b + 2)."""
    if x == 0:
        return 0.0
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logs + a * math.log(x) + b * math.log1p(-x)) / (2 * a)
    # from the innermost term outwards; so many are more than enough for float64
    fraction = 1.0
    for m in range(200, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    return front / fraction
