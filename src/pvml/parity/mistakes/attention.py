"""Mistakes in attention: scores, softmax, biases, and those of its masks and heads."""

from collections.abc import Callable

import numpy as np
from numpy import ndarray as Array

from pvml.parity.mistakes.heads import heads
from pvml.parity.mistakes.masks import hidden_by, masks
from pvml.parity.mistakes.mistake import Mistake, Mistakes, left_out
from pvml.parity.steps import State, Step, into_heads, root
from pvml.reference import numpy_forward as reference


def attention(s: State) -> Mistakes:
    """In an attention layer with what this one was given."""
    yield from _scores()
    yield from masks(s)
    yield from _softmaxes()
    yield from heads(s)
    yield from left_out("b_Q", "b_V", "b_O")
    yield Mistake(
        "b_O is added once for every head, not once",
        {"b_O": lambda s: len(s["W_O"]) * s["b_O"]},
    )
    yield Mistake(
        "the input is added to the output: in a block, the block does that",
        {"attn_out": lambda s: _out(s) + s["normalized_resid_pre"]},
    )
    if s["added"].any():
        yield Mistake(
            "positions are added for the values, too",
            {"v": lambda s: into_heads(s["qk_input"], s["W_V"], s["b_V"])},
        )
        yield Mistake("positions are not added", {"added": lambda s: 0 * s["added"]})


def _scores() -> Mistakes:
    for text, factor in (
        ("not divided by sqrt(d_head)", lambda s: 1.0),
        ("divided by d_head, not by its square root", lambda s: root(s) ** -2),
        ("multiplied by sqrt(d_head), not divided", root),
        (
            "divided by sqrt(d_model), not by sqrt(d_head)",
            lambda s: s["normalized_resid_pre"].shape[-1] ** -0.5,
        ),
        ("divided by sqrt(n_heads), not by sqrt(d_head)", lambda s: len(s["W_Q"]) ** -0.5),
    ):
        yield Mistake(f"the scores are {text}", {"scaled": _scaled_by(factor)})
    yield Mistake(
        "queries and keys have changed places",
        {"attn_scores": lambda s: s["k"].swapaxes(1, 2) @ s["q"].transpose(0, 2, 3, 1)},
    )
    yield Mistake("the keys are used as values", {"v": lambda s: s["k"]})
    yield Mistake("the queries are used as values", {"v": lambda s: s["q"]})


def _scaled_by(factor: Callable[[State], float]) -> Step:
    return lambda s: s["attn_scores"] * factor(s)


def _softmaxes() -> Mistakes:
    for axis, what in ((2, "the queries (dim=-2)"), (1, "the heads (dim=1)"), (0, "the batch")):
        text = f"the softmax runs over {what}, not over the keys (dim=-1)"
        yield Mistake(text, {"attn_pattern": _softmax_over(axis)})
        if axis < 2:
            # what is hidden from one head or sequence is hidden from all: none has a share
            yield Mistake(
                f"{text} (what is hidden is shared out evenly)",
                {
                    "attn_scores_masked": hidden_by(None, -1e30),
                    "attn_pattern": _softmax_over(axis),
                },
            )
    yield Mistake(
        "the pattern is transposed: values are mixed by who is read, not by who reads",
        {"z": lambda s: (s["attn_pattern"].mT @ s["v"].swapaxes(1, 2)).swapaxes(1, 2)},
    )
    yield Mistake(
        "there is no softmax: the scores themselves mix the values",
        {"attn_pattern": hidden_by(None, 0.0)},
    )


def _softmax_over(axis: int) -> Step:
    def wrong(s: State) -> Array:
        moved = np.moveaxis(s["attn_scores_masked"], axis, -1)
        return np.moveaxis(reference.softmax(moved), -1, axis)

    return wrong


def _out(s: State) -> Array:
    return np.tensordot(s["z"], s["W_O"], axes=((2, 3), (0, 1))) + s["b_O"]
