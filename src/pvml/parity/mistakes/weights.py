"""Mistakes in reading weights: shapes that fit the wrong way round, tables and heads mixed up."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy import ndarray as Array

from pvml.parity.mistakes.mistake import Mistake, Mistakes, always
from pvml.parity.steps import State

_SIDE_BY_SIDE = ("W_Q", "W_K", "W_V")
"""Whose heads make one matrix of (d_model, n_heads d_head); W_O's of (n_heads d_head, d_model)."""
_TRANSPOSED = "{name} is read the wrong way round: it is square, so every shape fits"
_TIED = "W_U is W_E transposed: two tables are read as one (untied as tied)"


def misread(kind: str, s: State, W_E: Array) -> Mistakes:
    """Of a layer of this kind: matrices transposed, W_U taken from W_E, biases left out.

    With b_K's: what it changes is in the keys and scores, and in no share of attention.
    """
    for name in ("W_Q", "W_K", "W_V", "W_in", "W_out", "W_U"):
        if name in s and (turned := transposed(name, s[name])) is not None:
            yield Mistake(_TRANSPOSED.format(name=name), {name: always(turned)})
    if kind == "attn":
        both = {name: transposed(name, s[name]) for name in _SIDE_BY_SIDE}
        if all(x is not None for x in both.values()):
            yield Mistake(
                "W_Q, W_K and W_V are read the wrong way round: square, so every shape fits",
                {name: always(x) for name, x in both.items() if x is not None},
            )
        for names in (("b_K",), ("b_Q", "b_K", "b_V"), ("b_Q", "b_K", "b_V", "b_O")):
            told = f"{', '.join(names[:-1])} and {names[-1]} are" if names[1:] else "b_K is"
            yield Mistake(f"{told} left out", {b: always(0 * s[b]) for b in names})
    if kind == "unembed" and W_E.T.shape == s["W_U"].shape:
        yield Mistake(_TIED, {"W_U": always(W_E.T)})


def read_as(name: str, ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Iterator[str]:
    """What a model's parameter is instead of the reference's of that name."""
    if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
        return
    mine, right = ours[name], theirs[name]
    short = name.rpartition(".")[2]
    turned = transposed(short, right)
    if turned is not None and np.array_equal(mine, turned):
        yield _TRANSPOSED.format(name=short)
    if not mine.any():
        yield f"{short} is 0: it was not read"
    if short == "W_U" and np.array_equal(mine, theirs["embed.W_E"].T):
        yield _TIED
    if mine.ndim == 3:
        order = [
            next((j for j, other in enumerate(right) if np.array_equal(head, other)), -1)
            for head in mine
        ]
        if sorted(order) == list(range(len(right))):
            yield f"the heads of {short} are in another order: {', '.join(map(str, order))}"
    for other, x in theirs.items():
        if other != name and x.shape == mine.shape and np.array_equal(x, mine):
            yield f"it is the reference's {other}"


def transposed(name: str, W: Array) -> Array | None:
    """The matrix of this name the other way round, its heads being one matrix; None: not square."""
    if W.ndim == 2:
        return W.T if W.shape[0] == W.shape[1] else None
    if W.ndim != 3:
        return None
    if name in _SIDE_BY_SIDE:
        n_heads, d_model, d_head = W.shape
        if n_heads * d_head != d_model:
            return None
        joint = W.swapaxes(0, 1).reshape(d_model, d_model).T
        return joint.reshape(d_model, n_heads, d_head).swapaxes(0, 1)
    n_heads, d_head, d_model = W.shape
    if n_heads * d_head != d_model:
        return None
    return W.reshape(d_model, d_model).T.reshape(W.shape)
