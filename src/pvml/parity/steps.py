"""The layers' formulae as lists of steps, so that one step can be changed and the rest kept.

`pvml.reference.numpy_forward` says the same in one piece each; that both agree is tested. What may
be changed is in `mistakes/`, and who asks is `diagnosis.py`.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from pvml.reference import numpy_forward as reference

State = dict[str, Array]
"""Parameters, inputs and the tensors computed so far, by name."""
Step = Callable[[State], Array]
Steps = dict[str, Step]

INPUTS = {
    "embed": "in",
    "pos_embed": "in",
    "ln": "residual",
    "attn": "normalized_resid_pre",
    "mlp": "normalized_resid_mid",
    "block": "resid_pre",
    "unembed": "normalized_resid_final",
}
"""What each kind of layer (a key of `pvml.trace.points.POINTS`) reads, by the trace's name."""

HEADS_FIRST = ("attn_scores", "attn_scores_masked", "attn_pattern")
"""Attention's tensors in which the position is the third axis; in all others it is the second."""


def into_heads(x: Array, W: Array, b: Array) -> Array:
    """(batch, posn, n_heads, d_head): `x W + b` for each head."""
    y: Array = np.tensordot(x, W, axes=(2, 1)) + b
    return y


def hide(scores: Array, hidden: Array, instead: float = -np.inf) -> Array:
    """Scores with `instead` where a query must not look."""
    return np.where(hidden[..., None, :, :], instead, scores)


def root(s: State) -> float:
    """sqrt(d_head)."""
    return float(s["W_Q"].shape[-1] ** 0.5)


def place(real: Array) -> Array:
    """Where each token stands, counted over real ones."""
    counted: Array = np.maximum(np.cumsum(real, axis=1) - 1, 0)
    return counted


STEPS: dict[str, Steps] = {
    "embed": {"out": lambda s: s["W_E"][s["in"]]},
    "pos_embed": {
        "sliced": lambda s: s["W_pos"][: s["in"].shape[1]],
        "out": lambda s: s["sliced"][place(s["real"])],
    },
    "ln": {
        "residual_mean": lambda s: s["residual"].mean(-1, keepdims=True),
        "residual_std": lambda s: np.sqrt(s["residual"].var(-1, keepdims=True) + s["eps"]),
        "normalized": lambda s: (s["residual"] - s["residual_mean"]) / s["residual_std"],
        "out": lambda s: s["normalized"] * s["w"] + s["b"],
    },
    "attn": {
        "qk_input": lambda s: s["normalized_resid_pre"] + s["added"],
        "q": lambda s: into_heads(s["qk_input"], s["W_Q"], s["b_Q"]),
        "k": lambda s: into_heads(s["qk_input"], s["W_K"], s["b_K"]),
        "v": lambda s: into_heads(s["normalized_resid_pre"], s["W_V"], s["b_V"]),
        "attn_scores": lambda s: s["q"].swapaxes(1, 2) @ s["k"].transpose(0, 2, 3, 1),
        "scaled": lambda s: s["attn_scores"] / root(s),
        "attn_scores_masked": lambda s: hide(s["scaled"], s["hidden"]),
        "attn_pattern": lambda s: reference.softmax(s["attn_scores_masked"]),
        "z": lambda s: (s["attn_pattern"] @ s["v"].swapaxes(1, 2)).swapaxes(1, 2),
        "attn_out": lambda s: np.tensordot(s["z"], s["W_O"], axes=((2, 3), (0, 1))) + s["b_O"],
    },
    "mlp": {
        "pre": lambda s: s["normalized_resid_mid"] @ s["W_in"] + s["b_in"],
        "post": lambda s: reference.gelu_new(s["pre"]),
        "mlp_out": lambda s: s["post"] @ s["W_out"] + s["b_out"],
    },
    "unembed": {"logits": lambda s: s["normalized_resid_final"] @ s["W_U"] + s["b_U"]},
}
"""The steps of every kind but `block`, whose steps depend on what it holds.

All but attention's `scaled`, which the trace does not show, are named as there.
"""


def steps_of(kind: str, state: State) -> Steps:
    """The steps of a layer of this kind, in order, for what this one was given."""
    if kind != "block":
        return STEPS[kind]
    has_mlp = "mlp.W_in" in state
    steps: Steps = {
        "ln1.out": lambda s: part("ln", s, "ln1", s["resid_pre"]),
        "attn.attn_out": lambda s: part("attn", s, "attn", s["ln1.out"]),
    }
    if not has_mlp:
        return {**steps, "resid_post": lambda s: s["resid_pre"] + s["attn.attn_out"]}
    return {
        **steps,
        "resid_mid": lambda s: s["resid_pre"] + s["attn.attn_out"],
        "ln2.out": lambda s: part("ln", s, "ln2", s["resid_mid"]),
        "mlp.mlp_out": lambda s: part("mlp", s, "mlp", s["ln2.out"]),
        "resid_post": lambda s: s["resid_mid"] + s["mlp.mlp_out"],
    }


def part(
    kind: str, s: State, path: str, x: Array, changes: Mapping[str, Step] | None = None
) -> Array:
    """What a block's own layer at `path` gives for x; x itself where there is no such layer."""
    own = own_state(s, path)
    if kind == "ln" and "w" not in own:
        return x
    return last(tensors(kind, {**own, INPUTS[kind]: x}, changes))


def own_state(s: State, path: str) -> State:
    """What a block's layer at `path` has of its own and around it; not yet what it reads."""
    own = {name[len(path) + 1 :]: y for name, y in s.items() if name.startswith(f"{path}.")}
    return {**{name: s[name] for name in ("eps", "hidden", "added", "real") if name in s}, **own}


def tensors(kind: str, state: State, changes: Mapping[str, Step] | None = None) -> State:
    """Every step's tensor, by name; `changes` replace steps, parameters or inputs of that name."""
    changes = changes or {}
    now = {**state, **{name: change(state) for name, change in changes.items() if name in state}}
    steps = steps_of(kind, state)
    for name, step in steps.items():
        now[name] = changes.get(name, step)(now)
    return {name: now[name] for name in steps}


def but_padding(named: Mapping[str, Array], real: Bool[Array, "batch posn"]) -> State:
    """The tensors of an attention or a block, 0 in padding's own rows.

    What a pad gets to read is a convention: no real position ever sees it.
    """
    kept = {}
    for name, x in named.items():
        kept[name] = x.copy()
        by_position = name.rpartition(".")[2] not in HEADS_FIRST or x.ndim < 3
        rows = kept[name] if by_position else kept[name].swapaxes(1, 2)
        if rows.shape[:2] == real.shape:
            rows[~real] = 0
    return kept


def last(named: State) -> Array:
    """A layer's result: the tensor of its last step."""
    return list(named.values())[-1]
