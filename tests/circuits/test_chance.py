"""How probable a score is by chance: by the share of a null's scores, or by their spread."""

import math

import pytest
import torch as t
from scipy.stats import gamma

from pvml.circuits.chance import chance_above, chance_of


def test_the_share_where_enough_reach_the_score() -> None:
    """Of 0, 1, ... 99, twenty are at least 80."""
    assert chance_above(80.0, t.arange(100.0)) == 0.2


def test_the_spread_far_above_the_null() -> None:
    """Five standard deviations above all of 100 scores: the normal distribution's tail, 2.9e-7."""
    null = t.tensor([-1.0, 1.0]).repeat(50)
    score = 5 * float(null.std())

    assert chance_above(score, null) == pytest.approx(0.5 * math.erfc(5 / math.sqrt(2)))


@pytest.mark.parametrize("p", [1e-3, 1e-4, 1e-6])
def test_a_null_that_leans_reaches_further(p: float) -> None:
    """Of 200 draws of a gamma distribution of skewness 1: within its true tail's order of size.

    A normal distribution's tail would have been a twentieth of it at most.
    """
    from_gamma = gamma(4)
    null = t.tensor(from_gamma.ppf((t.arange(200.0, dtype=t.float64).numpy() + 0.5) / 200))
    score = float(from_gamma.isf(p))
    found = chance_above(score, null)

    assert p / 5 < found < 2 * p
    distance = (score - float(null.mean())) / float(null.std())
    assert 0.5 * math.erfc(distance / math.sqrt(2)) < p / 20


def test_a_null_with_an_end_has_no_tail() -> None:
    """None of 9,999 scores in -1 to 1 reaches 1.1, though their spread would allow one in 36."""
    null = t.linspace(-1, 1, 9999)

    assert chance_above(1.1, null) == 1 / 10_000
    assert chance_above(1.0, null) == 2 / 10_000


def test_no_score_and_no_spread() -> None:
    """NaN is never beyond chance; a null that is always the same is beaten by anything above it."""
    assert chance_above(math.nan, t.arange(100.0)) == 1.0
    assert chance_above(1.0, t.zeros(5)) < 1e-300
    assert chance_above(-1.0, t.zeros(5)) == 1.0


def test_a_mean_that_is_nan_is_no_gain() -> None:
    """Beside a column that gains for sure, one of NaN has a p of 1."""
    differences = t.ones(40, 2, dtype=t.float64)
    differences[3, 1] = math.nan
    sure, undefined = chance_of(differences, 2, t.Generator().manual_seed(0))
    assert sure < 1e-3 and undefined == 1.0
