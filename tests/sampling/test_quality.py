"""What counting says of a text: endings, repeated n-grams, loops; and of genuine stories."""

import json
import lzma
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from pvml.errors import PvmlError
from pvml.sampling.quality import ended, repeated_ngram_rate, stuck, words

START = "Once upon a time there was a little girl called Sally. She loved to explore the woods. "
TOYS = ["doll", "ball", "kite", "drum", "boat", "train", "bear", "cake", "hat", "book", "car"]


@pytest.mark.parametrize(("ids", "expected"), [([3, 1, 0], True), ([0, 3, 1], False), ([], False)])
def test_ended_by_itself(ids: list[int], expected: bool) -> None:
    """Only an end-of-text at the very end, here 0, ends a text."""
    assert ended(ids, 0) is expected


def test_words_by_hand() -> None:
    """Words in small letters, each mark by itself; a word of 17 letters counts as two."""
    assert words('"No!" said\n\nÉva, 10.') == ['"', "no", "!", '"', "said", "éva", ",", "10", "."]
    assert words("a" * 17) == ["a" * 16, "a"]
    assert words(" \n") == []


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [
        ([1, 2, 3, 4, 5], 4, 0.0),
        ([1, 2, 1, 2, 1, 2], 4, 1 / 3),  # 1212 2121 1212
        ([7, 7, 7, 7, 7, 7, 7], 4, 3 / 4),
        ([1, 2, 3, 9, 1, 2, 3], 3, 1 / 5),
        ([1, 2, 1], 1, 1 / 3),
        ([1, 2, 3], 4, 0.0),  # none to repeat
        ([], 4, 0.0),
        (["a", "b", "a", "b", "a"], 2, 2 / 4),
    ],
)
def test_repeated_ngrams_by_hand(tokens: list[object], n: int, expected: float) -> None:
    """1 - different / all, by hand; 0 where a text is too short to have any."""
    assert repeated_ngram_rate(tokens, n) == pytest.approx(expected, abs=1e-15)


def test_no_zero_grams() -> None:
    """An n below 1 is refused with its value."""
    with pytest.raises(PvmlError, match=r"^n must be .*, got 0$"):
        repeated_ngram_rate([1, 2], 0)


@pytest.mark.parametrize(
    "loop",
    [
        "I love you. " * 15,
        "I love you, " * 15 + "I lo",  # cut in its middle
        "and " * 60,
        "," * 60,
        "".join(f"She wished she had a {toy}. " for toy in TOYS),  # never twice the same
        "the" * 200,  # not a space in it
        "She ran to the tree and looked up at the bird, who sang a song for her and for all of "
        "the other animals in the wood, until the sun went down and it was time to go. " * 3,
    ],
)
def test_loops_are_stuck(loop: str) -> None:
    """A phrase, a word or a mark again and again; with one word changing; a passage three times."""
    assert stuck(START + loop)


@pytest.mark.parametrize(
    "text",
    [
        "",
        START,
        '"No, no, no, no!" he said.',  # too short to tell
        START + "It is not safe. It is not safe. You can fall from the tree.",
        "I love you. " * 15 + START * 1 + "One day she met a fox who asked her for some bread and "
        "a cup of milk, since he had walked all night. Sally gave him what she had, and they sat "
        "down on a log to eat. When the moon came up, the fox showed her a short way home, and "
        "her mother, who had been worried, laughed and made them both a warm bed by the stove. "
        "From then on the fox came every Sunday, always with a flower behind his ear.",
    ],
)
def test_what_is_not_stuck(text: str) -> None:
    """A story, a chorus, a phrase said twice, and a loop that the text left behind."""
    assert not stuck(text)


def test_genuine_stories_are_not_stuck(tinystories: Path) -> None:
    """No false alarm in 1,000 genuine stories, whole, or cut where it may be."""
    chance = random.Random(0)
    with lzma.open(tinystories / "valid.jsonl.xz", "rt", encoding="utf-8") as lines:
        stories = [json.loads(line)["text"] for line in islice(lines, 1000)]

    assert len(stories) == 1000
    assert not [story for story in stories if stuck(story)]
    assert not [story for story in stories if stuck(story[: chance.randrange(len(story))])]


def test_counting_needs_no_torch() -> None:
    """The measures are for texts from anywhere: importing them imports no torch."""
    code = "import sys, pvml.sampling.quality; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
