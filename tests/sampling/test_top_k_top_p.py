"""Top-k and top-p: which tokens stay, exactly, and that the draw keeps to them."""

import math

import numpy as np
import pytest
import torch as t
from torch import Tensor

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.strategies import (
    apply_temperature,
    keep_top_k,
    keep_top_p,
    next_token,
    sample_basic,
    sample_top_k,
    sample_top_p,
)

LOGITS = t.tensor([3.0, 2.0, 1.0, 0.0, -1.0])
INF = float("inf")


def rng(seed: int = 0) -> t.Generator:
    return t.Generator().manual_seed(seed)


def shares(ids: Tensor, d_vocab: int = 5) -> list[str]:
    return [f"{n / len(ids):.3f}" for n in ids.bincount(minlength=d_vocab).tolist()]


def kept(logits: Tensor) -> list[int]:
    return (~logits.isneginf()).nonzero().flatten().tolist()


def of(*probabilities: float) -> Tensor:
    return t.tensor(probabilities, dtype=t.float64).log()


@pytest.mark.parametrize("filtered", [keep_top_k(LOGITS, 2), keep_top_p(LOGITS, 0.7)])
def test_the_seeds_pair(filtered: Tensor) -> None:
    """Top-k 2 and top-p 0.7 leave the same pair, 0.731 and 0.269, the logits as they were."""
    assert filtered.tolist() == [3.0, 2.0, -INF, -INF, -INF]
    assert [f"{p:.3f}" for p in filtered.softmax(-1)] == ["0.731", "0.269", *["0.000"] * 3]


def test_the_seeds_frequencies_come_back() -> None:
    """Three times 10,000 draws from one generator, as the seed prints them: basic, top-k, top-p."""
    rows, generator = LOGITS.expand(10_000, 5), rng(0)

    basic = sample_basic(rows, generator)
    top_k, top_p = sample_top_k(rows, 2, generator), sample_top_p(rows, 0.7, generator)

    assert shares(basic) == ["0.640", "0.230", "0.086", "0.032", "0.011"]
    assert shares(top_k)[:2] == ["0.736", "0.264"]
    assert shares(top_p)[:2] == ["0.734", "0.267"]
    assert int(top_k.max()) == int(top_p.max()) == 1


@pytest.mark.parametrize(
    ("logits", "k", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], 2, [0, 1]),
        ([0.0, 2.0, 1.0, 1.0, 1.0], 3, [1, 2, 3]),
        ([0.0, 2.0, 0.0], 1, [1]),
        ([3.0, -INF, 1.0, -INF], 3, [0, 2]),
        ([3.0, -INF, 1.0, 2.0], 4, [0, 2, 3]),
        ([3.0, 1.0, 2.0], 99, [0, 1, 2]),
        ([3.0, 1.0, 2.0], 0, [0, 1, 2]),
    ],
)
def test_top_k_by_hand(logits: list[float], k: int, expected: list[int]) -> None:
    """Exactly k stay, the lowest ids among equals; -inf never comes back; 0 or too many: all."""
    assert kept(keep_top_k(t.tensor(logits), k)) == expected


@pytest.mark.parametrize(
    ("probabilities", "p", "expected"),
    [
        ([0.3, 0.1, 0.1, 0.5], 0.8, [0, 3]),  # exactly reached
        ([0.3, 0.1, 0.1, 0.5], 0.8 + 9e-7, [0, 3]),  # so nearly that it counts as reached
        ([0.3, 0.1, 0.1, 0.5], 0.8 + 2e-6, [0, 1, 3]),
        ([0.3, 0.1, 0.1, 0.5], 0.81, [0, 1, 3]),  # of two equals, the lower id
        ([0.5, 0.41, 0.09], 0.9, [0, 1]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [0, 1]),
        ([0.2, 0.5, 0.3], 1e-9, [1]),  # never nothing at all
        ([0.2, 0.5, 0.3], 5e-324, [1]),
        ([0.9999995, 0.0000005], 0.9999999, [0]),
        ([0.9999995, 0.0000005], 1.0, [0, 1]),
        ([0.2, 0.5, 0.3], 0.0, [0, 1, 2]),
        ([0.0, 1.0, 0.0], 0.99, [1]),
    ],
)
def test_top_p_by_hand(probabilities: list[float], p: float, expected: list[int]) -> None:
    """The smallest set whose sum is at least p - 1e-6, never empty; 1 (and 0) keep all."""
    assert kept(keep_top_p(of(*probabilities), p)) == expected


def test_a_large_set_among_many() -> None:
    """Of 5,003 equal tokens, top-p 0.5 keeps the first 2,502, in whatever precision."""
    for dtype in (t.float16, t.bfloat16, t.float32, t.float64):
        assert kept(keep_top_p(t.zeros(5003, dtype=dtype), 0.5)) == list(range(2502))


def by_numpy(row: np.ndarray, k: int, p: float) -> np.ndarray:
    """The distribution that is left of one row: sort, add up, stop."""
    order = np.argsort(-row, kind="stable")
    weights = np.exp(row - row.max())
    probs = weights / weights.sum()
    n = 0
    for total in np.cumsum(probs[order]):
        n += 1
        if (k and n == k) or (p and total >= p - 1e-6):
            break
    left = np.zeros_like(probs)
    left[order[:n]] = probs[order[:n]]
    return left / left.sum()


@pytest.mark.parametrize(("k", "p"), [(1, 0.0), (5, 0.0), (13, 0.0), (0, 0.3), (0, 0.95)])
def test_what_is_left_is_exact(k: int, p: float) -> None:
    """500 rows with ties and impossible tokens: the distribution that a plain sort gives."""
    rows = t.randint(-6, 7, (500, 17), generator=rng(1)).double() / 2
    rows[t.rand(500, 17, generator=rng(2)) < 0.2] = -INF
    rows[:, 3] = rows[:, 3].clamp(min=-9.0)  # one is always possible
    rows[0] = -INF
    rows[0, 11] = 0.5

    found = keep_top_k(rows, k) if k else keep_top_p(rows, p)

    expected = np.stack([by_numpy(row, k, p) for row in rows.numpy()])
    assert np.array_equal(found.softmax(-1).numpy() > 0, expected > 0)
    np.testing.assert_allclose(found.softmax(-1).numpy(), expected, rtol=0, atol=1e-12)
    assert t.equal(found[~found.isneginf()], rows[~found.isneginf()])


@pytest.mark.parametrize("args", [SamplingArgs(top_k=3), SamplingArgs(top_p=0.94)])
def test_draws_follow_what_is_left(args: SamplingArgs) -> None:
    """100,000 draws pass a chi-squared test against the three tokens left, and give no other."""
    n = 100_000
    left = LOGITS[:3].double().softmax(-1)

    drawn = next_token(t.zeros(n, 1, dtype=t.long), LOGITS.expand(n, 5), args, rng(3))

    found = drawn.bincount(minlength=5).double()
    assert found[3:].tolist() == [0, 0]
    assert ((found[:3] - n * left) ** 2 / (n * left)).sum().item() < 13.8  # 0.999, 2 degrees


def test_top_p_of_one_is_plain_sampling() -> None:
    """Bit for bit the same draws, also where single tokens are impossible."""
    rows = t.randn(501, 47, generator=rng(5))
    rows[::3, ::5] = -INF

    for p in (1.0, 0.0):
        assert t.equal(sample_top_p(rows, p, rng(6)), sample_basic(rows, rng(6)))
    assert t.equal(sample_top_k(rows, 47, rng(6)), sample_basic(rows, rng(6)))


def test_temperature_comes_first() -> None:
    """The set that reaches p is that of the divided logits: at 3 it has one token more."""
    args = SamplingArgs(temperature=3.0, top_p=0.63)
    rows = LOGITS.expand(999, 5)

    drawn = next_token(t.zeros(999, 1, dtype=t.long), rows, args, rng(7))

    assert kept(keep_top_p(LOGITS, 0.63)) == [0]
    assert kept(keep_top_p(apply_temperature(LOGITS, 3.0), 0.63)) == [0, 1, 2]
    assert set(drawn.tolist()) == {0, 1, 2}


def test_greedy_needs_no_filter() -> None:
    """At temperature 0 the likeliest token comes out whatever top-k is."""
    args = SamplingArgs(temperature=0.0, top_k=2)

    assert next_token(t.zeros(1, dtype=t.long), LOGITS, args).item() == 0


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (3, 0)])
def test_batches_and_inputs(shape: tuple[int, ...]) -> None:
    """One row, a batch, several axes, an empty batch: each row by itself, the input unchanged."""
    logits = t.randn(*shape, 11, generator=rng(5))
    before = logits.clone()

    for filtered in (keep_top_k(logits, 3), keep_top_p(logits, 0.6), keep_top_p(logits, 1.0)):
        assert filtered.shape == logits.shape and filtered.dtype == logits.dtype
        filtered += 1.0  # the result is the caller's own
    for drawn in (sample_top_k(logits, 3, rng()), sample_top_p(logits, 0.6, rng())):
        assert drawn.shape == shape and drawn.dtype == t.long
    assert t.equal(logits, before)
    together, rows = keep_top_p(logits, 0.6).reshape(-1, 11), logits.reshape(-1, 11)
    assert all(t.equal(keep_top_p(rows[i], 0.6), together[i]) for i in range(len(rows)))


@pytest.mark.parametrize(
    ("bad", "fault"), [(math.nan, "NaN"), (INF, r"\+inf"), (-INF, "nothing but -inf")]
)
def test_a_row_without_a_distribution_is_named(bad: float, fault: str) -> None:
    """NaN, +inf and nothing but -inf are errors that name the row, also where nothing is cut."""
    rows = t.zeros(3, 4)
    rows[2] = bad

    for k in (0, 2):
        with pytest.raises(PvmlError, match=f"^row 2 of the logits holds {fault}"):
            keep_top_k(rows, k)
    for p in (0.5, 1.0):
        with pytest.raises(PvmlError, match=f"^row 2 of the logits holds {fault}"):
            keep_top_p(rows, p)


def test_limits_that_cannot_be() -> None:
    """A k below 0 and a p that is no probability are refused with their value."""
    with pytest.raises(PvmlError, match=r"^k must be .*, got -1$"):
        keep_top_k(LOGITS, -1)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(PvmlError, match=rf"^p must be .*, got {p}$"):
            keep_top_p(LOGITS, p)
