"""The worked example: the post's tables, and every number that follows, derived."""

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch as t
from torch import Tensor

from pvml.circuits import two_routes as tr
from pvml.errors import PvmlError

# What the post prints and what is true, in its own counting (positions from 1).
SCORES = [
    [0.4],
    [0.5, 0.3],
    [0.6, 1.2, 0.3],
    [0.7, 1.0, 0.5, 0.3],
    [0.4, 3.4, 0.7, 0.6, 0.4],
    [0.5, 0.9, 0.4, 0.6, 0.5, 0.3],
    [0.4, 0.8, 0.5, 0.4, 0.4, 0.9, 0.3],
    [0.4, 3.4, 0.7, 0.6, 0.4, 2.3, 0.5, 0.4],
    [0.5, 0.3, 0.6, 0.4, 0.5, 0.8, 0.3, 0.5, 0.3],
]
PERCENT = [
    [100],
    [55, 45],
    [28, 51, 21],
    [26, 35, 21, 17],
    [4, 81, 5, 5, 4],
    [16, 24, 14, 17, 16, 13],
    [12, 18, 14, 12, 12, 20, 11],
    [3, 60, 4, 4, 3, 20, 3, 3],
    [11, 9, 13, 10, 11, 15, 9, 11, 9],
]
CANDIDATE = {token: i for i, token in enumerate(tr.VOCABULARY)}


def by_hand_logit(position: int, candidate: str) -> float:
    """Route 1 plus route 2 in plain Python, from the post's scores; positions from 1."""
    weights = [math.exp(score) for score in SCORES[position - 1]]
    answer = float(tr.BIGRAM[CANDIDATE[tr.SEQUENCE[position - 1]], CANDIDATE[candidate]])
    for weight, source in zip(weights, tr.SEQUENCE, strict=False):
        row = tr.OV[CANDIDATE[source]]
        answer += weight / sum(weights) * float(row[CANDIDATE[candidate]])
    return answer


# By hand


def test_the_scores_along_the_sentence_are_the_posts() -> None:
    """The token-by-token table, read along the sentence, gives every score of the post."""
    scores = tr.scores()

    for i, row in enumerate(SCORES):
        assert scores[i, : i + 1].tolist() == row
        assert scores[i, i + 1 :].tolist() == [-float("inf")] * (8 - i)


def test_the_sentence_fixes_thirty_of_thirty_six_scores() -> None:
    """The pairs that no causal cell shows are exactly those marked as ours."""
    shown = {(tr.SEQUENCE[i], tr.SEQUENCE[j]) for i in range(9) for j in range(i + 1)}
    every = {(a, b) for a in tr.VOCABULARY for b in tr.VOCABULARY}

    assert len(shown) == 30
    assert every - shown == tr.OURS


def test_exponentials_of_row_8() -> None:
    """Row 8's exponentials are 1.4918, 29.9641, ... and add up to 49.90."""
    powers = tr.scores()[7].exp()

    expected = [1.4918, 29.9641, 2.0138, 1.8221, 1.4918, 9.9742, 1.6487, 1.4918, 0.0]
    assert powers.tolist() == pytest.approx(expected, abs=5e-5)
    assert powers.sum().item() == pytest.approx(49.8983, abs=5e-5)


def test_true_percentages_of_the_pattern() -> None:
    """Every cell of A rounds to its true percentage, where the post had evened rows out to 100."""
    percent = (100 * tr.attention()).round().int()

    for i, row in enumerate(PERCENT):
        assert percent[i, : i + 1].tolist() == row


def test_both_routes_at_position_8() -> None:
    """Route 1 gives mat 4.1 and cat 3.7; route 2 adds 0.42 and 3.06; cat wins, 6.76 to 4.52."""
    direct, head = tr.at(7)

    assert (direct["mat"], direct["cat"]) == (4.1, 3.7)
    assert (head["mat"], head["cat"]) == pytest.approx((0.4201, 3.0588), abs=5e-5)
    totals = {token: direct[token] + head[token] for token in tr.VOCABULARY}
    assert totals == pytest.approx(
        {"the": 0.1725, "cat": 6.7588, "sat": 0.5092, "on": 0.2372, "mat": 4.5201, ".": 0.0795},
        abs=5e-5,
    )
    assert max(direct, key=direct.__getitem__) == "mat"
    assert max(totals, key=totals.__getitem__) == "cat"


def test_unmasked_the_answer_ties_for_the_most_attention() -> None:
    """Without the mask, position 8 scores position 9 at 3.4: it and position 2 get 37.5% each."""
    assert tr.scores(masked=False)[7, 8].item() == 3.4
    row = tr.attention(masked=False)[7]

    assert row[1].item() == row[8].item() == pytest.approx(0.375, abs=5e-4)


@pytest.mark.parametrize("candidate", tr.VOCABULARY)
@pytest.mark.parametrize("position", range(1, 10))
def test_every_logit_by_plain_arithmetic(position: int, candidate: str) -> None:
    """Each logit is the bigram cell plus a softmax-weighted sum of OV cells."""
    logit = tr.logits()[position - 1, CANDIDATE[candidate]].item()

    assert logit == pytest.approx(by_hand_logit(position, candidate), rel=1e-12)


def test_route_1_alone_remembers_one_token() -> None:
    """Over the first three positions it says mat (wrong), sat and on (right)."""
    answers = [tr.VOCABULARY[i] for i in tr.route_1()[:3].argmax(1).tolist()]

    assert answers == ["mat", "sat", "on"]
    assert tr.route_1()[:3].amax(1).tolist() == [4.1, 3.9, 4.2]


# Laws


def test_reading_the_pattern() -> None:
    """Rows share out 1, columns need not; the future gets nothing; both later `the`s read `cat`."""
    pattern = tr.attention()

    t.testing.assert_close(pattern.sum(1), t.ones(9, dtype=t.float64), rtol=0, atol=1e-15)
    assert not t.allclose(pattern.sum(0), t.ones(9, dtype=t.float64), atol=0.1)
    assert round(pattern[7, 1].item(), 2) == 0.60
    assert pattern[1, 7] == 0
    assert (pattern[:, 1] > 0.55).nonzero().flatten().tolist() == [4, 7]


@pytest.mark.parametrize("way", [tr.formula, lambda: tr.as_model()(tr.token_ids()[None])[0]])
def test_the_formula_and_a_real_model_agree(way: Callable[[], Tensor]) -> None:
    """A t B^T on one-hot rows, and a Transformer with the tables for weights, give the logits."""
    t.testing.assert_close(way().detach(), tr.logits(), rtol=0, atol=1e-12)


def test_a_copying_table_has_a_heavy_diagonal() -> None:
    """Looking at a token speaks for that token above every other."""
    assert tr.OV.argmax(1).tolist() == list(range(6))


# Contracts


@pytest.mark.parametrize("position", [-1, 9])
def test_a_position_outside_the_sentence_is_refused(position: int) -> None:
    """The error says which positions there are."""
    with pytest.raises(PvmlError, match="positions 0 to 8"):
        tr.at(position)


def test_the_command_prints_the_numbers() -> None:
    """`python -m pvml.circuits.two_routes` prints every number of the worked example."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pvml.circuits.two_routes"],
        capture_output=True,
        text=True,
        check=True,
    )

    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for number in ("49.90", "4.52", "6.76", "+0.42", "+3.06", "37.5%", "3.4"):
        assert any(number in line for line in lines), number
    for i, row in enumerate(PERCENT):
        cells = [f"{cell}%" for cell in row] + ["x"] * (8 - i)
        assert f"{i + 1} {tr.SEQUENCE[i]} {' '.join(cells)}" in lines
    for i, row in enumerate(SCORES):
        cells = [str(cell) for cell in row] + ["x"] * (8 - i)
        assert f"{i + 1} {tr.SEQUENCE[i]} {' '.join(cells)}" in lines
    assert not done.stderr
