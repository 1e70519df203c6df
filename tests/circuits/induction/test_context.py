"""Loss by position and the in-context-learning score, beside what the text itself explains."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.ablation import ablated, head_means, token_losses
from pvml.circuits.induction.context import context_losses, default_places
from pvml.errors import PvmlError


def test_the_papers_places() -> None:
    """Tokens 50 and 500 of 512, as far in where rows are shorter, and always two."""
    assert default_places(512) == (50, 500)
    assert default_places(128) == (12, 125)
    assert default_places(11) == (1, 10)
    assert default_places(3) == (1, 2)


@t.no_grad()
def test_losses_and_scores_are_the_models(make_model: Any, tokens: Tensor) -> None:
    """The score is a difference of two losses; the null reads the late tokens' last few alone."""
    model = make_model()
    each = token_losses(model, tokens)
    found = context_losses(model, tokens, early=2, late=5)
    short = t.cat([tokens[:, :1], tokens[:, 4:6]], 1)

    assert found.by_position == pytest.approx(each.mean(0).tolist(), rel=1e-12)
    assert found.score == pytest.approx(float((each[:, 4] - each[:, 1]).mean()), rel=1e-12)
    assert found.late_cut == pytest.approx(float(token_losses(model, short)[:, -1].mean()))
    assert found.null_score == pytest.approx(found.late_cut - found.by_position[1], rel=1e-12)
    assert found.gain == pytest.approx(found.late_cut - found.by_position[4], rel=1e-12)
    assert found.error == pytest.approx(float((each[:, 4] - each[:, 1]).std() / 2**0.5))
    assert found.n_rows == 2


def test_a_text_that_gets_easier_is_not_the_context(make_model: Any) -> None:
    """Late tokens that a bigram table knows, and early ones that it does not: all is the text's."""
    model = make_model(n_layers=0, normalization="none", positions="none", d_model=29)
    rows = t.randint(1, 29, (41, 9), generator=t.Generator().manual_seed(0))
    rows[:, -2:] = t.tensor([3, 4])
    with t.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E.copy_(t.eye(29))
        model.unembed.W_U[3, 4] = 20
    found = context_losses(model, rows, early=2)

    assert found.score < -3
    assert found.null_score == pytest.approx(found.score)
    assert found.p == 1 and not found.beyond


def test_a_circuit_learns_in_context(make_circuit: Any) -> None:
    """In rows that repeat, late tokens are known for what stood early; not without the head."""
    model = make_circuit()
    keys = t.rand(37, 28, generator=t.Generator().manual_seed(0))
    half = 1 + keys.argsort(1)[:, :15]
    rows = t.cat([t.zeros(37, 1, dtype=t.long), half, half], 1)
    found = context_losses(model, rows)
    without = context_losses(model, rows, [(1, 2)], head_means(model, rows))

    assert (found.early, found.late) == (3, 30)
    assert found.beyond and found.score < -3 and abs(found.null_score) < 2
    assert without.score > -1
    assert f"score {found.score:+.2f}" in str(found) and "p < 0.001" in str(found)


def test_ablation_reaches_both_losses(make_model: Any, tokens: Tensor) -> None:
    """The cut rows are graded without the heads as well."""
    model = make_model()
    with ablated(model, [(0, 1)]):
        by_hand = context_losses(model, tokens)

    assert context_losses(model, tokens, [(0, 1)]) == by_hand


def test_what_cannot_be_asked(make_model: Any, tokens: Tensor) -> None:
    """No rows, rows of 2, and places that are not there or in the wrong order."""
    model = make_model()
    with pytest.raises(PvmlError, match="no rows to grade"):
        context_losses(model, tokens[:0])
    with pytest.raises(PvmlError, match="rows of at least 3 tokens"):
        context_losses(model, tokens[:, :2])
    for early, late in ((0, 3), (3, 3), (2, 7), (5, 2)):
        with pytest.raises(PvmlError, match="rising order from 1 to 6"):
            context_losses(model, tokens, early=early, late=late)
