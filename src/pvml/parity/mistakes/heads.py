"""Mistakes in attention's heads: cut apart, put in order and joined."""

from collections.abc import Iterator

import numpy as np
from numpy import ndarray as Array

from pvml.parity.mistakes.mistake import Mistake, Mistakes, always
from pvml.parity.steps import State, Step, into_heads


def heads(s: State) -> Mistakes:
    """In an attention layer with what this one was given."""
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
    yield from _loops(s)
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


def _loops(s: State) -> Mistakes:
    """A loop over the heads that adds up too few of them, or reads one's matrix each time."""
    n_heads = len(s["W_O"])
    if n_heads == 1:
        return
    every = set(range(n_heads))
    out = {frozenset(every - {head}): f"head {head} is left out" for head in range(n_heads)}
    out[frozenset({0})] = "only the first head is used: is there a return within the loop?"
    out[frozenset({n_heads - 1})] = "only the last head is used: = where += belongs in the loop?"
    for used, text in out.items():
        kept = np.isin(np.arange(n_heads), list(used))[:, None, None]
        yield Mistake(f"{text}", {"W_O": always(s["W_O"] * kept)})
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        yield Mistake(
            f"every head reads {name} of head 0: {name}[0] where {name}[head] belongs",
            {name: always(np.repeat(s[name][:1], n_heads, axis=0))},
        )


def _mixed(s: State) -> Array:
    """(batch, posn, n_heads, d_head): z, whatever may come instead of it."""
    return (s["attn_pattern"] @ s["v"].swapaxes(1, 2)).swapaxes(1, 2)
