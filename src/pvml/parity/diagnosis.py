"""What a wrong layer has done instead: the formulae with one step changed, until the numbers fit.

A layer is a list of steps (`steps.py`), and a mistake replaces one of them, a parameter or an input
(`mistakes/`). If what comes out then are the wrong layer's own numbers, that is the likely cause.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray as Array

from pvml.config import Config
from pvml.parity.mistakes.attention import attention
from pvml.parity.mistakes.block import block
from pvml.parity.mistakes.layers import embed, layer_norm, mlp, pos_embed, unembed
from pvml.parity.mistakes.mistake import Mistake
from pvml.parity.steps import INPUTS, State, but_padding, tensors
from pvml.reference import numpy_forward as reference

MISTAKES = {
    "embed": embed,
    "pos_embed": pos_embed,
    "ln": layer_norm,
    "attn": attention,
    "mlp": mlp,
    "block": block,
    "unembed": unembed,
}
"""For each kind of layer, what gives its mistakes."""

CHEAP = 100_000
"""Up to this many numbers in what a layer is given, two mistakes at once are tried, too."""
PAIRS = 6_000
"""And only where there are no more pairs than this."""


def given(
    kind: str,
    cfg: Config,
    parameters: Mapping[str, Float[Array, "..."]],
    x: Shaped[Array, "batch posn *wide"],
    *,
    real: Bool[Array, "batch posn"] | None = None,
    added: Float[Array, "batch posn d_model"] | None = None,
) -> State:
    """All that a layer of this kind (a key of `pvml.trace.points.POINTS`) reads, in float64.

    parameters: by the layer's own names. x: its input. real: False at padding. added: what queries
    and keys see on top of x (shortformer's positions).
    """
    state = {name: array.astype(np.float64) for name, array in parameters.items()}
    state[INPUTS[kind]] = x if x.dtype.kind in "iu" else x.astype(np.float64)
    state["eps"] = np.array(cfg.layer_norm_eps)
    if kind in ("attn", "block"):
        seen = np.ones(x.shape[1], bool) if real is None else real
        state["hidden"] = reference.cannot_attend(seen)
        state["added"] = np.zeros(1) if added is None else added.astype(np.float64)
    if kind in ("attn", "block", "pos_embed"):
        state["real"] = np.ones(x.shape[:2], bool) if real is None else real
    return state


def explanations(
    kind: str,
    state: State,
    ours: Mapping[str, Array],
    allowed: float,
    *,
    judged: Bool[Array, "batch posn"] | None = None,
) -> list[tuple[str, ...]]:
    """Mistakes that give `ours`, best fit first: one sentence each, or two that only fit together.

    state: what the layer was given (see `given`). ours: what it made of it, by the names of the
    trace; all must fit, NaN to NaN. allowed: the largest difference to take for rounding, as a
    share of the largest number. judged: positions whose own numbers count; unset, all do.
    Empty: ours is right, or wrong in a way that has no name here.
    """

    def off(theirs: State) -> float:
        return distance(ours, theirs if judged is None else but_padding(theirs, judged))

    with np.errstate(all="ignore"):
        right = tensors(kind, state)
        shapes_fit = all(x.shape == right[name].shape for name, x in ours.items())
        ours = ours if judged is None else but_padding(ours, judged)
        if not shapes_fit or off(right) <= allowed:
            return []
        known = list({one.says: one for one in MISTAKES[kind](state)}.values())
        found = _fitting(kind, state, off, allowed, ((one,) for one in known))
        small = sum(array.size for array in state.values()) <= CHEAP
        if not found and small and len(known) * (len(known) - 1) // 2 <= PAIRS:
            found = _fitting(kind, state, off, allowed, combinations(known, 2))
    return found


def _fitting(
    kind: str,
    state: State,
    off: Callable[[State], float],
    allowed: float,
    candidates: Iterable[tuple[Mistake, ...]],
) -> list[tuple[str, ...]]:
    found = []
    for candidate in candidates:
        changes = {name: step for one in candidate for name, step in one.changes.items()}
        if len(changes) < sum(len(one.changes) for one in candidate):
            continue  # both change the same step
        distance_left = off(tensors(kind, state, changes))
        if distance_left <= allowed:
            found.append((distance_left, tuple(one.says for one in candidate)))
    return [says for _, says in sorted(found, key=lambda each: each[0])]


def distance(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float:
    """The largest difference as a share of the largest number, over the tensors that `ours` has.

    Infinite where a name, a shape, an infinity or a NaN is on one side only.
    """
    worst = 0.0
    for name, mine in ours.items():
        other = theirs.get(name)
        if other is None or other.shape != mine.shape:
            return np.inf
        left, right = mine.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(right)
        if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
            return np.inf
        largest = np.abs(right[finite]).max(initial=0.0)
        off = np.abs(left[finite] - right[finite]).max(initial=0.0)
        if not off <= np.finfo(np.float64).max:  # NaN or infinite on the left only
            return np.inf
        worst = max(worst, float(off / largest) if largest else (np.inf if off else 0.0))
    return worst
