"""Cutting a long text: at blank lines, else line ends, else spaces; nothing but newlines lost."""

import random

import pytest

from pvml.data.cutting import cut_text


def test_blank_lines_come_first() -> None:
    """Paragraphs are gathered until the size is reached, then a document ends."""
    paragraphs = ["a" * 7, "b" * 7, "c" * 7, "d" * 3]

    assert cut_text("\n\n".join(paragraphs), 11) == [
        "a" * 7 + "\n\n" + "b" * 7,
        "c" * 7 + "\n\nddd",
    ]


def test_line_ends_and_spaces_come_next() -> None:
    """A stretch of twice the size without a blank line is cut at line ends, or else at spaces."""
    assert cut_text("aaaaa\nbbbbb\nccccc", 5) == ["aaaaa", "bbbbb", "ccccc"]
    assert cut_text("aaaa bbbb cccc", 5) == ["aaaa ", "bbbb ", "cccc"]
    assert cut_text("a" * 31, 5) == ["a" * 31]


def test_a_short_text_stays_whole() -> None:
    """A text within the size is one document, blank lines and all."""
    assert cut_text("one\n\ntwo", 11) == ["one\n\ntwo"]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_but_newlines_is_lost(seed: int) -> None:
    """The documents joined are the text, apart from newlines; none is empty or much too long."""
    dice = random.Random(seed)
    text = "".join(dice.choices(["word", " ", "\n", "\n\n", "é"], [6, 5, 1, 1, 1], k=997))
    documents = cut_text(text, 101)

    assert "".join(documents).replace("\n", "") == text.replace("\n", "")
    assert len(documents) > 5
    assert all(document.strip() and len(document) < 3 * 101 for document in documents)
