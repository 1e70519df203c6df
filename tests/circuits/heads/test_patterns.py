"""Questions about attention: whom they ask, what their twins are, and the answers to them."""

from typing import Any, get_args

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.heads.patterns import Kind, Question, Text, Texts, measure


def pairs(question: Question, row: int = 0) -> set[tuple[int, int]]:
    """Reader and place read, of all that count in a row."""
    every = zip(question.readers[row], question.read[row], question.weights[row], strict=True)
    return {(int(reader), int(read)) for reader, read, weight in every if weight > 0}


def drawn(text: Tensor) -> Texts:
    rng = t.Generator().manual_seed(0)
    return Texts.draw(text, text.shape[1], len(text), rng)


@pytest.fixture
def text() -> Tensor:
    tokens = t.randint(1, 11, (50, 23), generator=t.Generator().manual_seed(0))
    tokens[:, 0] = 0
    return tokens


def rng() -> t.Generator:
    return t.Generator().manual_seed(1)


def test_earlier_places_of_a_token_by_hand() -> None:
    """Readers 4, 5 and 6 of 0 1 2 1 2 1 2 1: place 3 is asked too, at whose 1 place 1 stands."""
    row = t.tensor([[0, 1, 2, 1, 2, 1, 2, 1]])
    texts = drawn(row)
    duplicates = texts.trial("duplicate-token", "natural", rng())
    induction = texts.trial("induction", "natural", rng())

    assert pairs(duplicates.question) == {(3, 1), (4, 2), (5, 1), (5, 3), (6, 2), (6, 4)}
    assert pairs(induction.question) == {(3, 2), (4, 3), (5, 2), (5, 4), (6, 3), (6, 5)}
    assert duplicates.question.weights.unique().tolist() == pytest.approx([1 / 4])


def test_bos_within_a_row_is_no_duplicate() -> None:
    """Rows of several documents have it more than once, and every head may treat it as special."""
    row = t.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 0, 2]])
    trial = drawn(row).trial("duplicate-token", "natural", rng())

    assert {reader for reader, _ in pairs(trial.question)} == {4, 5, 7}


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("of", get_args(Text))
def test_no_question_asks_for_the_future(kind: Kind, of: Text, text: Tensor) -> None:
    """Every place read is visible, and every sequence's readers add up to 1."""
    trial = drawn(text).trial(kind, of, rng())
    for question in (trial.question, trial.null, *trial.beside):
        there = question.weights > 0
        assert (question.read >= 0).all()
        assert (question.read <= question.readers)[there].all()
    for row in range(len(text)):
        asked = {}
        for reader, weight in zip(
            trial.question.readers[row], trial.question.weights[row], strict=True
        ):
            if weight > 0:
                asked[int(reader)] = float(weight)
        assert sum(asked.values()) == pytest.approx(1)


def test_places_elsewhere_are_all_others_that_a_reader_sees(text: Tensor) -> None:
    """Over many rows every other place is drawn, and never the one in question."""
    many = text[:1].expand(2000, -1)
    for kind in ("current-token", "first-token"):
        trial = drawn(many).trial(kind, "natural", rng())
        at = int(trial.question.readers[0, 0])
        seen = set(trial.null.read[:, 0].tolist())

        assert seen == set(range(at + 1)) - {int(trial.question.read[0, 0])}


def test_another_token_stands_as_often_at_a_place(text: Tensor) -> None:
    """A head that reads one token whoever asks does as well for its twin, in text without order."""
    many = t.randint(1, 6, (1000, 12), generator=t.Generator().manual_seed(3))
    many[:, 0] = 0
    trial = drawn(many).trial("duplicate-token", "natural", rng())
    own, twin = (
        (question.weights * (many.gather(1, question.read) == 1)).sum(1)
        for question in (trial.question, trial.null)
    )
    error = float((own - twin).std()) / len(many) ** 0.5

    assert own.mean() > 10 * error
    assert abs(float((own - twin).mean())) < 3 * error


def test_answers_by_brute_force(text: Tensor, make_model: Any) -> None:
    """The weighted mean over the pairs of the patterns that a cache holds."""
    model = make_model(n_ctx=23)
    trial = drawn(text[:3]).trial("duplicate-token", "natural", rng())
    (answers,) = measure(model, text[:3], [trial.question])
    with t.no_grad():
        _, cache = model.run_with_cache(text[:3])

    for row in range(3):
        for layer in range(2):
            pattern = cache[f"blocks.{layer}.attn.attn_pattern"][row]
            readers = {reader for reader, _ in pairs(trial.question, row)}
            total = sum(pattern[:, reader, read] for reader, read in pairs(trial.question, row))
            assert t.allclose(answers[row, layer], total / len(readers), atol=1e-12)
