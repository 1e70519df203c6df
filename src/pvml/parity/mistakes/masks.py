"""Mistakes in attention's mask: what it hides, and what it puts in place of what is hidden."""

import numpy as np
from numpy import ndarray as Array

from pvml.parity.mistakes.mistake import Mistake, Mistakes, always
from pvml.parity.steps import State, Step, hide
from pvml.reference import numpy_forward as reference

_NUMBERS = (-1.0, -1e-4, -1e-5, -1e-6)
"""Some of what is written in place of -1e4, -1e5, ...; all are 0 to exp, or nearly."""


def masks(s: State) -> Mistakes:
    """In an attention layer with what this one was given."""
    n = s["hidden"].shape[-1]
    i, j = np.arange(n)[:, None], np.arange(n)
    wrong = (
        ("there is no mask: every position reads later ones, too", j - i >= n),
        ("the mask is off by one: every position also reads the next one", j > i + 1),
        ("the mask is off by one: no position reads itself", j >= i),
        ("the mask is the wrong way round: every position reads itself and later ones", j < i),
        ("the mask hides what it should show: every position reads later ones only", j <= i),
        ("the mask is upside down and off by one (tril where triu belongs)", j <= i + 1),
    )
    for text, hidden in wrong:
        if s["hidden"].ndim == 3:
            hidden = hidden | (~s["real"][:, None, :] & (i != j))
        yield from _hiding(text, hidden)
    if s["hidden"].ndim == 3:
        yield Mistake("padding is read like text", {"hidden": lambda s: j > i})
        real, itself = s["real"][:, None, :], np.eye(n, dtype=bool)
        text = "real is used the wrong way round: it is True at real tokens, and they are hidden"
        yield from _hiding(text, (j > i) | real)
        yield from _hiding(f"{text} but from themselves", (j > i) | (real & ~itself))
    yield from _instead()


def _hiding(text: str, hidden: Array) -> Mistakes:
    """Another mask, and what becomes of a row with nothing to read: NaN, even shares, or 0."""
    yield Mistake(text, {"hidden": always(hidden)})
    nothing: Array = np.expand_dims(hidden.all(-1, keepdims=True), -3)
    if not nothing.any():
        return
    yield Mistake(  # a large negative number in place of -inf
        f"{text} (a row with nothing to read shares out evenly)",
        {"attn_scores_masked": hidden_by(hidden, -1e30)},
    )
    yield Mistake(
        f"{text} (a row with nothing to read is 0); scaled_dot_product_attention's attn_mask is "
        f"True where a position may be read",
        {
            "hidden": always(hidden),
            "attn_pattern": lambda s: np.where(
                nothing, 0.0, reference.softmax(s["attn_scores_masked"])
            ),
        },
    )


def _instead() -> Mistakes:
    yield Mistake(
        "masked scores are set to 0, not to -inf: exp(0) is 1, so the future keeps a share",
        {"attn_scores_masked": hidden_by(None, 0.0)},
    )
    yield Mistake(
        "masked scores are set to a large number, not to a large negative one",
        {"attn_scores_masked": hidden_by(None, 1e30)},
    )
    for number in _NUMBERS:
        yield Mistake(
            f"masked scores are set to {number:g}, which hides next to nothing: -inf belongs there",
            {"attn_scores_masked": hidden_by(None, number)},
        )
    added = {number: f"the mask adds {number:g}, which hides" for number in _NUMBERS}
    added[-1.0] = "a mask of 0 and 1 is added to the scores, and later ones get 1 less: it hides"
    added[1.0] = "a mask of 0 and 1 is added to the scores, and later ones get 1 more: it hides"
    for number, text in added.items():
        yield Mistake(
            f"{text} next to nothing: -inf belongs there", {"attn_scores_masked": _adding(number)}
        )
    yield Mistake(
        "the mask comes after the softmax: a row's shares no longer sum to 1",
        {"attn_pattern": lambda s: hide(reference.softmax(s["scaled"]), s["hidden"], 0.0)},
    )


def _adding(number: float) -> Step:
    return lambda s: s["scaled"] + number * s["hidden"][..., None, :, :]


def hidden_by(hidden: Array | None, instead: float) -> Step:
    """The scaled scores, with `instead` where they are hidden; None: by the mask that there is."""
    return lambda s: hide(s["scaled"], s["hidden"] if hidden is None else hidden, instead)
