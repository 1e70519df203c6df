"""Statistics: each number by hand, the lines fixed, the real sample near the seeds' figures."""

from pathlib import Path

import numpy as np
import pytest

from pvml.data.rows import Rows, pack
from pvml.data.sources import open_corpus
from pvml.data.statistics import corpus_statistics, rows_dropping_tails
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

SAMPLE = Path(__file__).parents[3] / "shared/data/tinystories/valid.jsonl.xz"


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """One token a byte."""
    return Tokenizer.train(["abc"], 257)


# By hand


def test_numbers_by_hand(letters: Tokenizer) -> None:
    """Lengths 1 to 10 and 127, 128: every figure follows by counting."""
    documents = ["x" * n for n in [*range(1, 11), 127, 128]]
    found = corpus_statistics([pack(letters, documents, 11)])

    assert (found.documents, found.n_bytes, found.tokens) == (12, 310, 322)
    assert (found.mean, found.longest) == (310 / 12, 128)
    assert found.percentiles[50] == 6.5
    assert found.percentiles[90] == pytest.approx(10 + 0.9 * 117)
    assert (found.rows, found.remainder) == (32, 2)
    assert found.fit == {11: 10 / 12, 128: 11 / 12, 512: 1.0, 1024: 1.0}


def test_packings_by_hand(letters: Tokenizer) -> None:
    """Lengths 1, 4, 2, 2 in rows of 6: five tokens a row; both packings counted on paper.

    With each end-of-text the documents start at 0, 2, 7 and 10, of 13 tokens. Cut every 5 tokens,
    the two rows start at 0 and 5, and the fourth document is left over. Begun at documents, they
    start at 0, 2 and 7: the second begins with three tokens that the first holds too, and the
    third with none; of the fourth document the last end-of-text is left over.
    """
    documents = ["x", "x" * 4, "xx", "xx"]
    stream, document = (
        corpus_statistics([pack(letters, documents, 6, packing)])
        for packing in ("stream", "document")
    )

    assert (stream.tokens, stream.rows, stream.cut_off, stream.remainder) == (13, 2, 0, 3)
    assert (stream.rows_at_a_start, stream.whole) == (1, 2)
    assert (document.rows, document.cut_off, document.repeated, document.remainder) == (3, 0, 3, 1)
    assert (document.tokens, document.rows_at_a_start, document.whole) == (13, 3, 4)


def test_the_lines_of_rows_at_documents(letters: Tokenizer) -> None:
    """The lines say which packing it is and how much it costs."""
    lines = corpus_statistics([pack(letters, ["xxx"] * 2500, 128, "document")]).lines()

    assert lines[5:11] == [
        "rows                : 80 of 128: BOS, then 127 of the stream",
        "packing             : document: each row starts with the document that did not fit before",
        "in rows             : 99.2% of the tokens",
        "cut off             : 0 tokens behind the end of a row, in no row",
        "left over           : 77 tokens, in no row",
        "repeated            : 237 tokens, at one row's end and the next one's start",
    ]


def test_rows_with_tails_dropped_by_hand() -> None:
    """Each 1,000 documents give floor((tokens + 999 separators) / (n_ctx - 1)) rows."""
    lengths = np.full(2500, 3)

    assert rows_dropping_tails(lengths, 128) == 31 + 31 + 15
    assert rows_dropping_tails(lengths[:1], 4) == 1


def test_the_lines(letters: Tokenizer) -> None:
    """The printed lines are these, and say why two kinds of row count differ."""
    documents = ["x" * 3] * 2500
    lines = corpus_statistics([pack(letters, documents, 128)]).lines()

    assert lines[:14] == [
        "documents           : 2,500",
        "text                : 7,500 bytes, 0.75 a token",
        "tokens              : 10,000 (an end-of-text after each document included)",
        "document length     : mean 3, median 3, p90 3, p99 3, longest 3 tokens",
        "fit whole, with BOS : 100.0% in 128, 100.0% in 512, 100.0% in 1,024",
        "rows                : 78 of 128: BOS, then 127 of the stream",
        "packing             : stream: each row goes on where the one before ended",
        "in rows             : 99.0% of the tokens",
        "cut off             : 0 tokens behind the end of a row, in no row",
        "left over           : 94 tokens, in no row",
        "rows at a start     : 20 (25.6%) start with a document",
        "whole in one row    : 2,438 documents (97.5%)",
        "document ends       : 32.051 a row",
        "rows, tails dropped : about 77 (see below)",
    ]
    assert "drops the tail of every 1,000 documents" in " ".join(lines[14:])


def test_a_share_below_all_never_prints_as_all(letters: Tokenizer) -> None:
    """One document of 5,003 that does not fit leaves 99.9 %, not 100.0 %."""
    documents = ["x"] * 5002 + ["x" * 128]
    lines = corpus_statistics([pack(letters, documents, 128)]).lines()

    assert any("99.9% in 128, 100.0% in 512" in line for line in lines)


# Laws


def test_parts_add_up(letters: Tokenizer) -> None:
    """Train and held-out rows together count every document, row and token once."""
    documents = ["x" * (n % 17 + 1) for n in range(211)]
    parts = [pack(letters, documents[:199], 13), pack(letters, documents[199:], 13)]
    found = corpus_statistics(parts)

    assert found.rows * 12 + found.remainder == found.tokens
    assert found.tokens == found.n_bytes + found.documents
    assert (found.documents, found.rows) == (211, sum(map(len, parts)))


# Contracts


def test_bare_ids_have_no_statistics(letters: Tokenizer) -> None:
    """Ids do not tell how long their texts were."""
    rows = Rows(np.array([5, 6, 0, 5, 0], np.uint16), 3, letters.eos_token_id)
    with pytest.raises(PvmlError, match="rows of bare ids have no statistics"):
        corpus_statistics([rows])


def test_real_stories_are_near_the_seeds_figures() -> None:
    """On 1,000 genuine stories lengths and shares lie near those of the whole set."""
    if not SAMPLE.exists():
        pytest.skip("the TinyStories sample is not beside the repository")
    documents = list(open_corpus(str(SAMPLE)))
    found = corpus_statistics([pack(Tokenizer.gpt2(), documents, 128)])

    assert found.percentiles[50] == pytest.approx(191, rel=0.15)
    assert found.mean == pytest.approx(222, rel=0.15)
    assert found.fit[128] == pytest.approx(0.052, abs=0.03)
    assert found.fit[512] == pytest.approx(0.968, abs=0.03)
    assert found.documents / found.rows == pytest.approx(0.58, rel=0.15)
