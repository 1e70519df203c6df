"""Random repetitions: how they are drawn, and losses at a token's second coming, by hand."""

import math
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.ablation import head_means
from pvml.circuits.induction.context import context_losses
from pvml.circuits.induction.repeats import Repeats, advantage, draw_repeats, repeat_losses
from pvml.errors import PvmlError

WORDS = t.arange(1, 29)


def test_each_row_comes_twice() -> None:
    """BOS, distinct words, the same again; and beside it the same in another order."""
    drawn = draw_repeats(WORDS, 0, 5, 17, seed=0)
    first, again, other = (
        drawn.repeated[:, 1:6],
        drawn.repeated[:, 6:],
        drawn.reordered[:, 6:],
    )

    assert drawn.period == 5
    assert t.equal(first, again)
    assert t.equal(drawn.reordered[:, :6], drawn.repeated[:, :6])
    assert t.equal(other.sort(1).values, first.sort(1).values)
    assert not t.equal(other, first)
    assert all(len(set(row.tolist())) == 5 for row in first)
    assert not drawn.repeated[:, 0].any() and first.min() >= 1


def test_the_seed_decides() -> None:
    """The same seed draws the same rows, and torch's own generator is left alone."""
    before = t.get_rng_state()
    drawn = draw_repeats(WORDS, 0, 5, 3, seed=1)

    assert t.equal(t.get_rng_state(), before)
    assert t.equal(draw_repeats(WORDS, 0, 5, 3, seed=1).reordered, drawn.reordered)
    assert not t.equal(draw_repeats(WORDS, 0, 5, 3, seed=2).repeated, drawn.repeated)


def test_losses_by_hand(make_model: Any) -> None:
    """A bigram table that names 1 -> 2 -> 3 -> 4 surely: losses of a known row."""
    model = make_model(n_layers=0, normalization="none", positions="none", d_model=29)
    with t.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E.copy_(t.eye(29))
        for token in (1, 2, 3):
            model.unembed.W_U[token, token + 1] = 50
    repeats = Repeats(
        repeated=t.tensor([[0, 1, 2, 3, 1, 2, 3]]), reordered=t.tensor([[0, 1, 2, 3, 1, 3, 2]])
    )
    found = repeat_losses(model, repeats)

    assert found.first == pytest.approx(0, abs=1e-9)
    assert found.again == pytest.approx(0, abs=1e-9)
    # 1 -> 3 is what 50 nats speak against; 3 -> 2 as well
    assert found.reordered == pytest.approx(50, abs=1e-9)
    assert found.null_advantage == pytest.approx(-50, abs=1e-9)
    assert (found.period, found.n_sequences, found.error) == (3, 1, 0)
    assert found.p > 0.001 and not found.beyond  # one sequence could be chance


def test_a_model_of_nothing_gains_nothing(make_model: Any) -> None:
    """Uniform guesses cost ln d_vocab both times; there is no advantage, and none is claimed."""
    model = make_model()
    with t.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = repeat_losses(model, draw_repeats(WORDS, 0, 5, 31, seed=0))

    assert found.first == pytest.approx(math.log(29))
    assert found.advantage == pytest.approx(0, abs=1e-12)
    assert found.p == 1 and not found.beyond


def test_the_circuit_gains(make_circuit: Any) -> None:
    """A previous-token and an induction head know what follows; without either nothing is gained.

    The quick way to the advantage is the slow one.
    """
    whole = make_circuit()
    drawn = draw_repeats(WORDS, 0, 15, 62, seed=0)
    repeats = Repeats(repeated=drawn.repeated[:31], reordered=drawn.reordered[:31])
    means = head_means(whole, drawn.repeated[31:])
    found = repeat_losses(whole, repeats)
    without = repeat_losses(whole, repeats, [(1, 2)], means)

    assert found.beyond and found.again < 0.01 < 3 < found.first
    assert found.null_advantage < 0
    assert not without.beyond and without.advantage < 0.2
    assert advantage(whole, repeats) == pytest.approx(found.advantage)
    assert advantage(whole, repeats, [(1, 2)], means) == pytest.approx(without.advantage)
    assert str(found).startswith("4.") and "in another order; p < 0.001)" in str(found)


def test_weights_that_are_not_finite_are_named(make_model: Any) -> None:
    """A NaN that leaves attention finite is no gain, but an error that names the tensor."""
    model, repeats = make_model(), draw_repeats(WORDS, 0, 5, 3, seed=0)
    model.unembed.b_U.data[3] = math.nan
    with pytest.raises(PvmlError, match=r"unembed\.b_U holds nan at \(3,\)"):
        repeat_losses(model, repeats)
    with pytest.raises(PvmlError, match=r"unembed\.b_U holds nan at \(3,\)"):
        context_losses(model, repeats.repeated)


@pytest.mark.parametrize(
    ("words", "period", "n"), [(WORDS[:4], 5, 3), (WORDS, 2, 3), (WORDS, 5, 0)], ids=str
)
def test_too_little_to_repeat(words: Tensor, period: int, n: int) -> None:
    """Fewer words than a period, fewer than 3 tokens, or no sequences."""
    with pytest.raises(PvmlError, match="at least one sequence and 3 tokens"):
        draw_repeats(words, 0, period, n, seed=0)
