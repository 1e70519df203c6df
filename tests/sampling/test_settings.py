"""Settings: how they read, and what they refuse."""

from dataclasses import replace
from typing import Any

import pytest

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.settings import Settings, counted, number


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"temperature": 1.4, "top_p": 0.95}, "temp 1.4, top_p 0.95, 50 tokens"),
        ({"temperature": 0.0, "top_p": 0.95, "seed": 3}, "greedy, 50 tokens"),
        ({"top_k": 40, "seed": 3}, "temp 1, top_k 40, 50 tokens, seed 3"),
        ({"min_p": 0.1, "max_new_tokens": 1}, "temp 1, min_p 0.1, 1 token"),
        (
            {"frequency_penalty": -0.5, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
            "temp 1, penalty -0.5, repetition penalty 1.2, no 3 tokens twice, 50 tokens",
        ),
        (
            {"logit_bias": ((5, 1.0), (6, 1.0)), "banned_tokens": (7,), "max_new_tokens": 2000},
            "temp 1, 2 biased tokens, 1 banned token, 2,000 tokens",
        ),
        (
            {"stop": ("\n", "x"), "prepend_bos": False},
            r"temp 1, 50 tokens, stop '\n', stop 'x', no BOS",
        ),
    ],
)
def test_what_draws_reads_as_a_line(given: dict[str, Any], told: str) -> None:
    """The line names what is in force, and nothing that is off or has no effect."""
    assert Settings(sampling=SamplingArgs(**given)).told() == told


def test_a_search_reads_as_a_line() -> None:
    """Beams come first, and what a search has no use for is left out."""
    sampling = SamplingArgs(temperature=0.3, top_k=7, stop=("x",), no_repeat_ngram_size=2)
    settings = Settings(sampling=sampling, beams=1, explain=True)
    wide = Settings(beams=4, n_best=2, length_penalty=1.0, early_stopping="never")

    assert settings.told() == "1 beam, no 2 tokens twice, 50 tokens, explained"
    assert wide.told() == ("4 beams, best 2, length penalty 1, early stopping never, 50 tokens")


def test_a_search_takes_what_it_shares_with_drawing() -> None:
    """Length, n-gram ban and BOS are those of the sampling; the other fields are idle."""
    sampling = SamplingArgs(
        max_new_tokens=7, no_repeat_ngram_size=2, prepend_bos=False, temperature=0.5, stop=("x",)
    )
    settings = Settings(sampling=sampling, beams=3, n_best=2, early_stopping="yes")
    args = settings.beam_args()

    assert (args.num_beams, args.num_return_sequences, args.early_stopping) == (3, 2, True)
    assert (args.max_new_tokens, args.no_repeat_ngram_size, args.prepend_bos) == (7, 2, False)
    assert settings.idle_in_a_search() == ["temperature", "stop"]
    assert Settings(beams=3).idle_in_a_search() == []


def test_another_number_of_beams() -> None:
    """Fewer beams give no more texts than they are; none forget what belongs to a search."""
    settings = Settings(beams=5, n_best=4, length_penalty=1.0, explain=True)

    assert settings.with_beams(2) == replace(settings, beams=2, n_best=2)
    assert settings.with_beams(0) == Settings(explain=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beams": -1}, "beams must be a whole number from 0 to 512 .* got -1"),
        ({"beams": True}, "beams must be a whole number"),
        ({"beams": 2, "n_best": 0}, "n_best must be from 1 to beams, which is 2, got 0"),
        ({"beams": 2, "n_best": 3}, "n_best must be from 1 to beams, which is 2, got 3"),
        ({"beams": 2, "length_penalty": 11.0}, "length_penalty must be a number from -10 to 10"),
        ({"length_penalty": 1.0, "n_best": 2}, "n_best and length_penalty belong to a beam"),
        ({"early_stopping": "yes"}, "early_stopping belongs to a beam search"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    """A value out of range, or of a search that is not asked for, is an error that names it."""
    with pytest.raises(PvmlError, match=message):
        Settings(**given)


def test_numbers_are_as_they_were_typed() -> None:
    """Whole numbers lose their point, and long ones get commas where they count."""
    assert [number(x) for x in (0.7, 1.0, 40, 1e-05)] == ["0.7", "1", "40", "1e-05"]
    assert [counted(n, "token") for n in (1, 50, 1000)] == ["1 token", "50 tokens", "1,000 tokens"]
