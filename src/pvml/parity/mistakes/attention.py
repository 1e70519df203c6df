"""Mistakes in attention: scores, mask, softmax, heads, biases."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy import ndarray as Array

from pvml.parity.mistakes.mistake import Mistake, Mistakes, always, left_out
from pvml.parity.steps import State, Step, hide, into_heads, root
from pvml.reference import numpy_forward as reference


def attention(s: State) -> Mistakes:
    """In an attention layer with what this one was given."""
    yield from _scores()
    yield from _masks(s)
    yield from _softmaxes()
    yield from _heads(s)
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


def _masks(s: State) -> Mistakes:
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
            hidden = hidden | (s["hidden"] & (j <= i))
        yield Mistake(text, {"hidden": always(hidden)})
        if hidden.all(-1).any():  # a large negative number in place of -inf leaves such a row even
            yield Mistake(
                f"{text} (a row with nothing to read shares out evenly)",
                {"attn_scores_masked": _hidden_by(hidden, -1e30)},
            )
    if s["hidden"].ndim == 3:
        yield Mistake("padding is read like text", {"hidden": lambda s: j > i})
    yield Mistake(
        "masked scores are set to 0, not to -inf: exp(0) is 1, so the future keeps a share",
        {"attn_scores_masked": _hidden_by(None, 0.0)},
    )
    yield Mistake(
        "the mask comes after the softmax: a row's shares no longer sum to 1",
        {"attn_pattern": lambda s: hide(reference.softmax(s["scaled"]), s["hidden"], 0.0)},
    )


def _softmaxes() -> Mistakes:
    for axis, what in ((2, "the queries (dim=-2)"), (1, "the heads (dim=1)"), (0, "the batch")):
        yield Mistake(
            f"the softmax runs over {what}, not over the keys (dim=-1)",
            {"attn_pattern": _softmax_over(axis)},
        )
    yield Mistake(
        "the pattern is transposed: values are mixed by who is read, not by who reads",
        {"z": lambda s: (s["attn_pattern"].mT @ s["v"].swapaxes(1, 2)).swapaxes(1, 2)},
    )
    yield Mistake(
        "there is no softmax: the scores themselves mix the values",
        {"attn_pattern": _hidden_by(None, 0.0)},
    )


def _hidden_by(hidden: Array | None, instead: float) -> Step:
    """The scaled scores, with `instead` where they are hidden; None: by the mask that there is."""
    return lambda s: hide(s["scaled"], s["hidden"] if hidden is None else hidden, instead)


def _softmax_over(axis: int) -> Step:
    def wrong(s: State) -> Array:
        moved = np.moveaxis(s["attn_scores_masked"], axis, -1)
        return np.moveaxis(reference.softmax(moved), -1, axis)

    return wrong


def _heads(s: State) -> Mistakes:
    n_heads, d_head, d_model = s["W_O"].shape
    yield Mistake(
        "q, k and v are split into heads by a view as (batch, n_heads, posn, d_head): view as "
        "(batch, posn, n_heads, d_head), then transpose",
        {name: _split_wrongly(name) for name in "qkv"},
    )
    yield Mistake(
        "W_Q, W_K and W_V are reshaped to (d_model, n_heads d_head): move n_heads behind d_model "
        "first",
        {f"W_{letter}": _reshaped(f"W_{letter}") for letter in "QKV"},
    )
    yield Mistake(
        "z is joined while n_heads stands before posn: move it back before the reshape",
        {"z": lambda s: _mixed(s).swapaxes(1, 2).reshape(s["q"].shape)},
    )
    yield Mistake(
        "z is joined with d_head before n_heads",
        {"z": lambda s: _mixed(s).swapaxes(2, 3).reshape(s["q"].shape)},
    )
    yield Mistake(
        "the heads' outputs are averaged, not added",
        {"W_O": lambda s: s["W_O"] / len(s["W_O"])},
    )
    yield Mistake(
        "q, k and v are split into heads as (d_head, n_heads), not as (n_heads, d_head)",
        {name: _split_wrongly(name, heads_first=False) for name in "qkv"},
    )
    if n_heads * d_head == d_model:
        yield Mistake(
            "W_O, with its heads one below the other, is transposed",
            {"W_O": lambda s: s["W_O"].reshape(d_model, d_model).T.reshape(s["W_O"].shape)},
        )
    for order in _orders(n_heads):
        yield Mistake(
            f"the heads of W_O are in another order: {', '.join(map(str, order))}",
            {"W_O": always(s["W_O"][list(order)])},
        )


def _orders(n_heads: int) -> Iterator[tuple[int, ...]]:
    """Turned around, moved on by some, or with two that changed places."""
    plain = tuple(range(n_heads))
    yield plain[::-1]
    for by in range(1, n_heads):
        yield plain[by:] + plain[:by]
    for one in range(n_heads):
        for other in range(one + 1, n_heads):
            swapped = list(plain)
            swapped[one], swapped[other] = other, one
            yield tuple(swapped)


def _split_wrongly(name: str, heads_first: bool = True) -> Step:
    """q, k or v, whose numbers are right and put into the wrong places."""
    letter = name.upper()

    def wrong(s: State) -> Array:
        x = s["normalized_resid_pre" if name == "v" else "qk_input"]
        right = into_heads(x, s[f"W_{letter}"], s[f"b_{letter}"])
        batch, n, n_heads, d_head = right.shape
        if heads_first:
            return right.reshape(batch, n_heads, n, d_head).swapaxes(1, 2)
        return right.reshape(batch, n, d_head, n_heads).swapaxes(2, 3)

    return wrong


def _reshaped(name: str) -> Step:
    def wrong(s: State) -> Array:
        n_heads, d_model, d_head = s[name].shape
        return s[name].reshape(d_model, n_heads, d_head).swapaxes(0, 1)

    return wrong


def _mixed(s: State) -> Array:
    return (s["attn_pattern"] @ s["v"].swapaxes(1, 2)).swapaxes(1, 2)


def _out(s: State) -> Array:
    return np.tensordot(s["z"], s["W_O"], axes=((2, 3), (0, 1))) + s["b_O"]
