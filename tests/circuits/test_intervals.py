"""Intervals and chances: known values, limits, and how often the truth is inside."""

import math

import pytest
import torch as t

from pvml.circuits.intervals import above_by_chance, hits_by_chance, ratio_interval, wilson


def test_wilsons_interval() -> None:
    """Wilson 1927: 8 of 10 gives 0.490 to 0.943; none of 10 gives 0 to z^2 / (10 + z^2)."""
    assert wilson(0.8, 10.0) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    low, high = wilson(0.0, 10.0)
    assert low == 0.0 and high == pytest.approx(3.8414588 / 13.8414588)
    assert wilson(1.0, 10.0) == pytest.approx((1 - high, 1.0))


def test_a_ratios_interval_by_hand() -> None:
    """Each end is as far from 0 as both intervals allow: (a - r b)^2 = da^2 + (r db)^2."""
    low, high = ratio_interval(0.6, (0.5, 0.8), 0.3, (0.2, 0.35))
    assert (0.6 - low * 0.3) ** 2 == pytest.approx(0.1**2 + (low * 0.05) ** 2)
    assert (0.6 - high * 0.3) ** 2 == pytest.approx(0.2**2 + (high * 0.1) ** 2)
    assert low < 2 < high


def test_a_ratio_with_zeros() -> None:
    """0 above: from 0. 0 below: without end, and still with a lower one."""
    low, high = ratio_interval(0.0, (0.0, 0.2), 0.3, (0.2, 0.4))
    assert low == 0.0 and 0.2 / 0.3 < high < 1.0
    low, high = ratio_interval(0.5, (0.3, 0.7), 0.0, (0.0, 0.1))
    assert low == pytest.approx(math.sqrt(0.3 * (1 - 0.3)) / 0.1) and high == math.inf
    assert ratio_interval(0.0, (0.0, 0.2), 0.0, (0.0, 0.1)) == (0.0, math.inf)


def test_the_interval_holds_the_ratio_as_often_as_it_says() -> None:
    """Of 2,000 draws of 60 and 400 trials at shares 0.3 and 0.1, 95 per cent within a point."""
    rng = t.Generator().manual_seed(0)
    hits = [
        (t.rand(2000, n, generator=rng) < share).sum(1).tolist()
        for n, share in ((60, 0.3), (400, 0.1))
    ]
    inside = 0
    for one, other in zip(*hits, strict=True):
        low, high = ratio_interval(
            one / 60, wilson(one / 60, 60.0), other / 400, wilson(other / 400, 400.0)
        )
        inside += low <= 3.0 <= high
    assert inside / 2000 == pytest.approx(0.95, abs=0.012)


def test_hits_by_chance_is_counted_out() -> None:
    """As many ways as there are, for every count of a small urn; 1 at the least possible."""
    n, marked, drawn = 11, 4, 6
    for hits in range(5):
        ways = sum(math.comb(marked, k) * math.comb(n - marked, drawn - k) for k in range(hits, 5))
        assert hits_by_chance(hits, drawn, marked, n) == pytest.approx(ways / math.comb(n, drawn))
    assert hits_by_chance(0, 0, 0, 0) == 1.0 and hits_by_chance(5, 5, 7, 7) == 1.0
    assert 0 < hits_by_chance(300, 1000, 20_000, 1_000_000) < 1e-100


def test_students_tail() -> None:
    """Closed forms for 1 and 2 degrees of freedom, a table's 2.228 for 10, the normal's limit."""
    for distance in (-30.0, -1.0, -0.01, 0.0, 0.01, 0.5, 2.0, 40.0):
        one = 0.5 - math.atan(distance) / math.pi
        two = 0.5 * (1 - distance / math.sqrt(2 + distance**2))
        assert above_by_chance(distance, 1.0) == pytest.approx(one, rel=1e-9)
        assert above_by_chance(distance, 2.0) == pytest.approx(two, rel=1e-9)
    assert above_by_chance(2.228139, 10.0) == pytest.approx(0.025, rel=1e-5)
    assert above_by_chance(1.959964, 1e9) == pytest.approx(0.025, rel=1e-5)
    assert 0 < above_by_chance(30.0, 1000.0) < 1e-100
