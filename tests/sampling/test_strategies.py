"""From logits to a token: exact where nothing is drawn, exact distributions where something is."""

import pytest
import torch as t
from torch import Tensor

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.strategies import apply_temperature, greedy_search, next_token, sample_basic

LOGITS = t.tensor([3.0, 2.0, 1.0, 0.0, -1.0])
INF = float("inf")


def rng(seed: int = 0) -> t.Generator:
    return t.Generator().manual_seed(seed)


def shares(ids: Tensor, d_vocab: int) -> Tensor:
    return ids.bincount(minlength=d_vocab).double() / len(ids)


def test_greedy_takes_the_largest() -> None:
    """The seeds' logits give token 0."""
    assert greedy_search(LOGITS).item() == 0


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, [6, 4, 2, 0, -2]), (2.0, None)])
def test_temperature_divides(temperature: float, expected: list[float] | None) -> None:
    """Half doubles the logits, two halves them."""
    expected = expected or [1.5, 1.0, 0.5, 0.0, -0.5]

    assert apply_temperature(LOGITS, temperature).tolist() == expected


def test_the_seeds_frequencies_come_back() -> None:
    """10,000 draws from generator 0 print the frequencies that the seed prints."""
    drawn = sample_basic(LOGITS.expand(10_000, 5), rng(0))

    assert [f"{share:.3f}" for share in shares(drawn, 5)] == [
        "0.640",
        "0.230",
        "0.086",
        "0.032",
        "0.011",
    ]


def test_draws_follow_the_softmax() -> None:
    """100,000 draws pass a chi-squared test against 0.636 0.234 0.086 0.032 0.012."""
    n = 100_000
    expected = t.tensor([0.63640865, 0.23412166, 0.08612854, 0.03168492, 0.01165623]).double()
    found = shares(sample_basic(LOGITS.expand(n, 5), rng(3)), 5)

    chi_squared = (n * (found - expected) ** 2 / expected).sum().item()

    assert chi_squared < 18.5  # the 0.999 quantile at 4 degrees of freedom


def test_greedy_ties_go_to_the_lowest_id() -> None:
    """Among equal logits the lowest id wins, in every row, however long the rows are."""
    rows = t.zeros(3, 5003)
    rows[1, [7, 4999]] = 2.0
    rows[2] = -INF
    rows[2, [41, 43]] = -5.0

    assert greedy_search(rows).tolist() == [0, 7, 41]


def test_impossible_tokens_are_never_drawn() -> None:
    """In 200,000 draws no token at -inf turns up, although only three of 37 are possible."""
    row = t.full((37,), -INF)
    row[[0, 17, 36]] = t.tensor([-800.0, -800.0, -801.0])

    drawn = sample_basic(row.expand(200_000, 37), rng(1))

    assert set(drawn.tolist()) == {0, 17, 36}


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (3, 0)])
def test_every_function_takes_a_batch(shape: tuple[int, ...]) -> None:
    """One row, a batch, several batch axes, an empty batch: one id a row."""
    logits = t.randn(*shape, 11, generator=rng(5))
    before = logits.clone()
    ids = t.zeros(*shape, 2, dtype=t.long)

    for chosen in (
        greedy_search(logits),
        sample_basic(logits, rng()),
        next_token(ids, logits, SamplingArgs(temperature=0.7), rng()),
        next_token(ids, logits, SamplingArgs(temperature=0.0), rng()),
    ):
        assert chosen.shape == shape
        assert chosen.dtype == t.long
    assert apply_temperature(logits, 0.7).shape == logits.shape
    assert t.equal(logits, before)


def test_rows_do_not_see_each_other() -> None:
    """A row's greedy token is the same alone and among others."""
    logits = t.randn(5, 13, generator=rng(2))

    assert greedy_search(logits).tolist() == [greedy_search(row).item() for row in logits]


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ([float("nan"), 0.0, 1.0], "NaN"),
        ([INF, 0.0, 1.0], r"\+inf"),
        ([-INF, -INF, -INF], "nothing but -inf"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_a_row_without_a_distribution_is_named(
    bad: list[float], fault: str, temperature: float
) -> None:
    """NaN, +inf and nothing but -inf are errors that name the row, greedy or not."""
    logits = t.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 2.0], bad])
    args = SamplingArgs(temperature=temperature)

    with pytest.raises(PvmlError, match=f"^row 2 of the logits holds {fault}"):
        next_token(t.zeros(3, 1, dtype=t.long), logits, args, rng())
    with pytest.raises(PvmlError, match=r"^row \(0, 2\) "):
        sample_basic(logits[None], rng())
    with pytest.raises(PvmlError, match=r"^row 0 "):
        greedy_search(logits[2])


def test_no_vocabulary_is_an_error() -> None:
    """A row of no logits offers no token: the error says so instead of the library's."""
    with pytest.raises(PvmlError, match=r"no token to choose.*\(3, 0\)"):
        sample_basic(t.zeros(3, 0), rng())


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_dividing_by_nothing_is_refused(temperature: float) -> None:
    """A temperature of 0 or less cannot divide; the error points to greedy_search."""
    with pytest.raises(PvmlError, match="greedy_search"):
        apply_temperature(LOGITS, temperature)


def test_a_tiny_temperature_is_nearly_greedy() -> None:
    """At 1e-300 the division would overflow; the likeliest token comes out all the same."""
    args = SamplingArgs(temperature=1e-300)
    logits = t.tensor([[2.0, 90.0, 1.0], [-3.0, -4.0, -2.0]])

    assert next_token(t.zeros(2, 1, dtype=t.long), logits, args, rng()).tolist() == [1, 2]


def test_probabilities_are_taken_in_float64() -> None:
    """Half-precision logits draw the very tokens that their float64 copies draw."""
    logits = (t.randn(211, 499, generator=rng(7)) * 3).to(t.float16)

    assert t.equal(sample_basic(logits, rng(4)), sample_basic(logits.double(), rng(4)))


def test_temperature_acts_on_the_draw() -> None:
    """Drawing at temperature 2 is drawing from the halved logits."""
    halved = next_token(
        t.zeros(500, 1, dtype=t.long), LOGITS.expand(500, 5), SamplingArgs(temperature=2.0), rng()
    )

    assert t.equal(halved, sample_basic((LOGITS.double() / 2).expand(500, 5), rng()))


def test_without_a_generator_the_global_one_draws() -> None:
    """sample_basic without a generator follows torch.manual_seed, as the seeds' function does."""
    with t.random.fork_rng(devices=[]):
        t.manual_seed(11)
        free = sample_basic(LOGITS.expand(101, 5))

    assert t.equal(free, sample_basic(LOGITS.expand(101, 5), rng(11)))
