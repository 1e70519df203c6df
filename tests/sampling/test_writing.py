"""When a text ends, and what of it is certain before that."""

import random
from itertools import pairwise

import pytest

from pvml.sampling.writing import UntilStop


def given(stop: tuple[str, ...], *pieces: str) -> tuple[list[str], bool]:
    """What comes out after each piece and at the end, and whether a stop string came."""
    until = UntilStop(stop)
    return [*map(until.feed, pieces), until.flush()], until.stopped


@pytest.mark.parametrize(
    ("stop", "pieces", "expected", "stopped"),
    [
        ((), ["a", "bc"], ["a", "bc", ""], False),
        (("b",), ["a", "bc", "d"], ["a", "", "", ""], True),
        (("bcd",), ["ab", "c", "e"], ["a", "", "bce", ""], False),
        (("bcd",), ["ab", "c"], ["a", "", "bc"], False),
        (("bcd",), ["ab", "c", "de"], ["a", "", "", ""], True),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", "", ""], True),
        (("abc", "b"), ["abc"], ["a", ""], True),  # b is complete first
        (("bc", "abc"), ["abc"], ["", ""], True),  # both at once: the longer
        (("abcd", "bc"), ["ab", "cd"], ["", "a", ""], True),
    ],
)
def test_stopping_by_hand(
    stop: tuple[str, ...], pieces: list[str], expected: list[str], stopped: bool
) -> None:
    """Up to the stop string that is complete first; a possible beginning is held back."""
    assert given(stop, *pieces) == (expected, stopped)


def test_the_pieces_do_not_matter() -> None:
    """2,000 texts over two letters, cut anyhow: the text given is the same, and has no stop."""
    chance = random.Random(1)
    n_stopped = 0
    for _ in range(2_000):
        text = "".join(chance.choices("ab", k=chance.randint(0, 12)))
        stop = tuple("".join(chance.choices("ab", k=chance.randint(1, 4))) for _ in range(2))
        cuts = sorted({0, len(text), *chance.choices(range(len(text) + 1), k=4)})
        pieces = [text[start:end] for start, end in pairwise(cuts)]

        found, stopped = given(stop, *pieces)

        assert (found_text := "".join(found)) == "".join(given(stop, *text)[0])
        assert stopped == any(one in text for one in stop)
        assert text.startswith(found_text) and not any(one in found_text for one in stop)
        assert stopped or found_text == text
        n_stopped += stopped
    assert 500 < n_stopped < 1_900
