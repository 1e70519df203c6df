"""The text's word on skip-trigrams: counts by hand, whatever the block, honest where they are 0."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch as t

from pvml.circuits.intervals import ratio_interval, wilson
from pvml.circuits.skips import sightings
from pvml.circuits.skips.evidence import CorpusEvidence, find_evidence
from pvml.circuits.skips.sightings import RowSums
from pvml.circuits.skips.trigrams import SkipTrigram
from pvml.data.rows import pack
from pvml.data.sources import open_corpus
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

A, B, C, END = 1, 2, 3, 0


def trigram(source: int, destination: int, output: int) -> SkipTrigram:
    return SkipTrigram(
        head=(0, 0),
        source=source,
        destination=destination,
        output=output,
        attention=0.5,
        logit=2.0,
    )


def counts(found: CorpusEvidence) -> tuple[int, int, int, int]:
    return (
        found.n_destination,
        found.n_output,
        found.n_source_destination,
        found.n_source_output,
    )


ROWS = t.tensor(
    [
        [END, A, B, C, B, C],  # twice after A, both with C
        [END, B, C, A, B, 9],  # once without A, with C; once after A, without
        [END, B, 9, B, 9, A],  # twice without A; A comes too late
        [END, A, 9, 9, 9, B],  # the last B has nothing behind it
    ]
)


def test_counts_and_lift_by_hand() -> None:
    """Six B with a token behind, three with C; three after A, two with C: (2/3) / (3/6)."""
    (found,) = find_evidence([trigram(A, B, C)], ROWS)

    assert counts(found) == (6, 3, 3, 2)
    assert found.expected == 1.5 and found.lift == pytest.approx(4 / 3)
    # at least 2 of 3 drawn from 6 with 3 marked: (3 * 3 + 1) / 20
    assert found.p == pytest.approx(0.5)
    assert not found.beyond
    assert str(found).startswith("1 ... 2 -> 3: lift 1.33 (")
    assert str(found).endswith("p = 0.5; 2 of 3 with the source before, 3 of 6 in all)")


def test_the_interval_by_hand() -> None:
    """Rows (2 of 2) and (0 of 1) with the source are worth 1.0 sightings, the others 1.0 too."""
    sums = RowSums(1)
    sums.add(t.tensor([0, 0, 1]), t.tensor([0, 0, 0]), t.tensor([1.0, 1.0, 0.0]))
    seen = sums.mean(0)
    # residuals of the rows: 2 - 2 * 2/3 and 0 - 2/3; 2 / (2 - 1) * (4/9 + 4/9) / 3^2
    assert seen.variance == pytest.approx(2 * (8 / 9) / 9) and seen.mean == pytest.approx(2 / 3)
    assert seen.worth == pytest.approx((2 / 9) / (16 / 81))

    (found,) = find_evidence([trigram(A, B, C)], ROWS)
    # without: 1 of 1 and 0 of 2: residuals 2/3 and -2/3
    variance = 2 * (8 / 9) / 9
    low, high = ratio_interval(
        2 / 3, wilson(2 / 3, seen.worth), 1 / 3, wilson(1 / 3, (2 / 9) / variance)
    )
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(low / (0.5 * low + 0.5))
    assert found.interval[1] == pytest.approx(high / (0.5 * high + 0.5) if high < math.inf else 2)


def test_rows_that_repeat_themselves_are_worth_less() -> None:
    """Ten sightings in one row that all agree are worth one each row; alternating, no less than
    their number; and a single row is worth one."""
    same, mixed, single = RowSums(1), RowSums(1), RowSums(1)
    row = t.arange(6).repeat_interleave(10)
    same.add(row, t.zeros_like(row), (row % 2).double())
    mixed.add(row, t.zeros_like(row), (t.arange(60) % 2).double())
    single.add(row * 0, t.zeros_like(row), (t.arange(60) % 2).double())

    assert same.mean(0).worth == pytest.approx(5.0)  # six rows, less one for the mean
    assert mixed.mean(0).worth == 60.0
    assert single.mean(0).worth == 1.0 and single.mean(0).variance is None


def test_zeros_are_honest() -> None:
    """No lift where nothing can be said, a lift of 0 with an upper end where something can."""
    never_together, no_output, no_destination, some, always = find_evidence(
        [
            trigram(8, B, C),
            trigram(A, B, 7),
            trigram(A, 8, C),
            trigram(C, B, 9),
            trigram(END, B, C),
        ],
        ROWS,
    )
    assert counts(never_together) == (6, 3, 0, 0) and never_together.lift is None
    assert counts(no_output) == (6, 0, 3, 0) and no_output.lift is None
    assert counts(no_destination) == (0, 0, 0, 0) and no_destination.lift is None
    for empty, why in (
        (
            never_together,
            "source and destination never meet (0 of 0 with the source before, 3 of 6",
        ),
        (no_output, "the output never follows the destination (0 of 3 with the source before, 0"),
        (no_destination, "source and destination never meet (0 of 0 with the source before, 0 of"),
    ):
        assert empty.p == 1.0 and empty.interval is None and not empty.beyond
        assert f": not tested, {why}" in str(empty)
    # C before B: (row 0, second B, with C), (row 1, second B, with 9)
    assert counts(some) == (6, 3, 2, 1)
    # BOS stands before every B: the lift is 1 whatever the text, and there is nothing to compare
    assert counts(always) == (6, 3, 6, 3) and always.lift == 1.0 and always.interval is None
    assert ": not tested, the source stands before every destination (" in str(always)
    assert (always.most, never_together.most) == (1.0, None) and not some.untested

    rows = t.tensor([[END, A, B, 9, 9], [END, B, C, 9, 9]]).repeat(20, 1)
    (zero,) = find_evidence([trigram(A, B, C)], rows)
    assert counts(zero) == (40, 20, 20, 0) and zero.lift == 0.0 and zero.p == 1.0
    assert zero.interval is not None
    assert zero.interval[0] == 0.0 and 0 < zero.interval[1] < 0.5
    assert zero.against and not zero.beyond
    (little,) = find_evidence([trigram(A, B, C)], rows[:2])
    assert little.lift == 0.0 and not little.against


def test_a_sure_trigram_is_beyond_chance() -> None:
    """C follows B where A stood before and nowhere else; p counts the trigrams tried."""
    rows = t.tensor([[END, A, B, C], [END, 9, B, 8]]).repeat(30, 1)
    (alone,) = find_evidence([trigram(A, B, C)], rows)
    first, *_ = find_evidence([trigram(A, B, C), trigram(9, B, C), trigram(9, B, 8)], rows)

    assert alone.lift == 2.0 == alone.most and alone.beyond
    assert " to 2.00, the most there can be; p < 0.001; 30 of 30 with" in str(alone)
    assert "lift 2.00 (95% 1." in str(alone)
    # smaller than the tolerance that approx has unless told
    assert alone.p == pytest.approx(1 / math.comb(60, 30), abs=0)
    assert first.p == pytest.approx(3 * alone.p, abs=0)
    # the same trigram of another head is the same question
    twice = find_evidence([trigram(A, B, C), replace(trigram(A, B, C), head=(0, 1))], rows)
    assert [each.p for each in twice] == [alone.p] * 2


def test_a_document_ends_what_a_source_reaches() -> None:
    """With the end given, a source before it no longer counts; the end belongs to what it ends."""
    rows = t.tensor([[END, A, 9, END, B, C, A, B, C]])
    wanted = [trigram(A, B, C), trigram(END, B, C)]

    assert [counts(x) for x in find_evidence(wanted, rows)] == [(2, 2, 2, 2), (2, 2, 2, 2)]
    found = find_evidence(wanted, rows, document_end=END)
    assert [counts(x) for x in found] == [(2, 2, 1, 1), (2, 2, 0, 0)]


def test_the_one_pass_is_the_plain_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty trigrams, source and destination alike among them, against loops over the text."""
    rng = t.Generator().manual_seed(5)
    rows = t.randint(0, 5, (20, 13), generator=rng)
    asked = [trigram(*ids) for ids in t.randint(0, 5, (30, 3), generator=rng).tolist()]
    for end in (None, 0):
        wanted = []
        for each in asked:
            n = [0, 0, 0, 0]
            for row in rows.tolist():
                for place in range(len(row) - 1):
                    start = 0
                    if end is not None:
                        start = max((i + 1 for i in range(place) if row[i] == end), default=0)
                    if row[place] == each.destination:
                        seen = each.source in row[start:place]
                        hit = row[place + 1] == each.output
                        n = [n[0] + 1, n[1] + hit, n[2] + seen, n[3] + (seen and hit)]
            wanted.append(tuple(n))
        for at_once in (700, 1 << 20):
            monkeypatch.setattr(sightings, "_AT_ONCE", at_once)
            found = find_evidence(asked, rows.int(), document_end=end)
            assert [counts(x) for x in found] == wanted


def test_evidence_can_be_stored() -> None:
    """JSON takes it, the trigram with it."""
    (found,) = find_evidence([trigram(A, B, C)], ROWS)
    assert json.loads(json.dumps(asdict(found)))["trigram"]["output"] == C


def test_bad_text_is_refused() -> None:
    """No rows, one token a row, negative ids; no trigrams are no evidence."""
    for rows in (t.zeros(0, 5, dtype=t.long), t.zeros(3, 1, dtype=t.long)):
        with pytest.raises(PvmlError, match="rows of at least 2 tokens"):
            find_evidence([trigram(A, B, C)], rows)
    with pytest.raises(PvmlError, match="at least 0"):
        find_evidence([trigram(A, B, C)], t.tensor([[1, -2]]))
    assert find_evidence([], ROWS) == []


def test_names_return_in_real_stories(tinystories: Path) -> None:
    """[ Lily] ... [.] -> [ Lily] is beyond chance in 200 stories, [ Tim] ... [.] -> [ Lily] below
    it; the counts are those of a plain loop."""
    tokenizer = Tokenizer.gpt2()
    rows = pack(tokenizer, open_corpus(str(tinystories / "valid.jsonl.xz"), limit=200), 64)
    text = rows.batch(range(len(rows)))
    (lily,), (tim,), (stop,) = (tokenizer.encode(word) for word in (" Lily", " Tim", "."))
    found, wrong = find_evidence([trigram(lily, stop, lily), trigram(tim, stop, lily)], text)

    assert found.beyond and (found.lift or 0) > 3
    assert wrong.lift is not None and wrong.lift < 0.8
    places = [
        (lily in row[:place], row[place + 1] == lily)
        for row in text.tolist()
        for place in range(63)
        if row[place] == stop
    ]
    assert counts(found) == (
        len(places),
        sum(hit for _, hit in places),
        sum(seen for seen, _ in places),
        sum(seen and hit for seen, hit in places),
    )
