"""Mistakes are told by their numbers: every known one is found again, and no other instead."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from pvml.parity.diagnosis import MISTAKES, PAIRS, distance, explanations, given
from pvml.parity.own_trials import Trial, case_of, config_of
from pvml.parity.steps import State, tensors


def states(kind: str) -> list[tuple[State, dict[str, np.ndarray]]]:
    """What a layer may be given: plain input, padding, shortformer; and the reference's tensors."""
    trials = [Trial(says="plain", posn=5)]
    if kind in ("attn", "block", "pos_embed"):
        trials.append(Trial(says="padding", posn=5, padded=True))
    if kind == "attn":
        changes: dict[str, Any] = {"positions": "shortformer"}
        trials.append(Trial(says="shortformer", posn=5, changes=changes, shortformer=True))
    cases = [case_of(kind, config_of({}), trial, 0) for trial in trials]
    return [
        (given(kind, c.cfg, c.parameters, c.x, real=c.real, added=c.added), c.named) for c in cases
    ]


@pytest.mark.parametrize("kind", MISTAKES)
def test_the_steps_are_the_references(kind: str) -> None:
    """Step by step, the formulae give every tensor that the reference gives, and so no cause."""
    for state, named in states(kind):
        steps = tensors(kind, state)
        assert list(steps)[-1] == list(named)[-1]
        shared = {name: x for name, x in named.items() if name in steps}
        assert distance(shared, steps) < 1e-14
        assert explanations(kind, state, shared, 1e-12) == []


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_can_be_told_apart(kind: str) -> None:
    """Every mistake changes the result, and no two change it alike.

    But for orders of heads that are the same order: two that change places are also turned round.
    """
    for state, named in states(kind):
        result = list(named)[-1]
        with np.errstate(all="ignore"):
            wrong = {
                mistake.says: {result: tensors(kind, state, mistake.changes)[result]}
                for mistake in MISTAKES[kind](state)
            }
        assert wrong
        for says, found in wrong.items():
            assert distance(found, named) > 1e-7, says
        for one, other in combinations(wrong, 2):
            alike = distance(wrong[one], wrong[other]) < 1e-10
            assert not alike or "order" in one, (one, other)


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_told_by_its_result(kind: str) -> None:
    """From the result alone, the mistake that was made is the first that is named."""
    state, named = states(kind)[0]
    result = list(named)[-1]
    known = list(MISTAKES[kind](state))
    for mistake in known[2 :: 1 + len(known) // 4]:
        with np.errstate(all="ignore"):
            wrong = tensors(kind, state, mistake.changes)
        assert explanations(kind, state, {result: wrong[result]}, 1e-9)[0] == (mistake.says,)


def test_pairs_are_looked_for() -> None:
    """Of every kind but the block, which has too many, two mistakes at once are still searched."""
    for kind in MISTAKES:
        for state, _ in states(kind):
            known = {mistake.says for mistake in MISTAKES[kind](state)}
            assert (len(known) * (len(known) - 1) // 2 <= PAIRS) == (kind != "block"), kind


def test_two_mistakes_at_once_are_told() -> None:
    """Unscaled scores and a lost bias explain the numbers together, where neither does alone."""
    state, _ = states("attn")[0]
    both = [
        mistake
        for mistake in MISTAKES["attn"](state)
        if mistake.says in ("the scores are not divided by sqrt(d_head)", "b_V is left out")
    ]
    changes = {name: step for mistake in both for name, step in mistake.changes.items()}
    wrong = tensors("attn", state, changes)["attn_out"]
    assert explanations("attn", state, {"attn_out": wrong}, 1e-9) == [
        ("the scores are not divided by sqrt(d_head)", "b_V is left out")
    ]


def test_what_has_no_name_is_not_named() -> None:
    """Numbers that no known mistake gives get no cause: a guess would lead astray."""
    state, named = states("mlp")[0]
    assert explanations("mlp", state, {"mlp_out": named["mlp_out"] * 1.01}, 1e-9) == []
    assert explanations("mlp", state, {"mlp_out": named["mlp_out"][:1]}, 1e-9) == []


def test_distance_by_hand() -> None:
    """A quarter of the largest number; infinite where shapes, names, infinities or NaNs differ."""
    one = np.array([1.0, -4.0, np.nan])
    assert distance({"x": one}, {"x": one + np.array([0, 1, 0])}) == 1 / 3
    assert distance({"x": one + np.array([0, 1, 0])}, {"x": one}) == 0.25
    assert distance({}, {"x": one}) == 0
    for other in (np.zeros(3), one[:2], np.array([1.0, np.inf, np.nan])):
        assert distance({"x": one}, {"x": other}) == np.inf
        assert distance({"x": other}, {"x": one}) == np.inf
    assert distance({"x": one}, {"y": one}) == np.inf
    assert distance({"x": np.ones(2)}, {"x": np.zeros(2)}) == np.inf
