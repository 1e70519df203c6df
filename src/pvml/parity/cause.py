"""Why the first wrong tensor is wrong, where numbers can tell: mistakes are tried until one fits.

A layer's own mistakes are in `mistakes/`, and tried by `diagnosis.py`. Here is what lies between
layers, what was read wrongly into a parameter, and what is wrong with a gradient.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array
from torch import Tensor

from pvml.modules.transformer import Transformer
from pvml.parity import passes
from pvml.parity.check import array_of, parameters_of
from pvml.parity.diagnosis import distance, explanations, given
from pvml.parity.mistakes.weights import misread, read_as
from pvml.parity.passes import BETWEEN_MODULES, RETURNED, UNWATCHED, Arrays
from pvml.parity.steps import INPUTS, State, tensors
from pvml.parity.verification import GRADIENTS, PARAMETERS
from pvml.trace.tap import Place, places

SAME = 1e-9
"""In float64, the largest difference between numbers of one origin, as a share of the largest."""
SHOWN = 3
"""Causes. Where more fit, they do the same to these numbers."""
_SAMPLE = 4_000
"""Numbers of a tensor that a sum is fitted to; its terms are a few at most."""
_MOST_TERMS = 3
_MOST_TENSORS = 12
"""That are tried as terms."""


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A wrong tensor, and what is needed to look into it. All of it in float64."""

    name: str
    what: str
    """Which section it stands in."""
    model: Transformer
    tokens: Int[Tensor, "batch posn"]
    tensors: Arrays
    """The reference's, by full name, in the order of the pass."""
    gradients: Arrays
    parameters: Arrays


def causes(wrong: Wrong) -> list[str]:
    """What would give the model's own numbers, likeliest first; empty: nothing known does."""
    if wrong.what == PARAMETERS:
        return list(read_as(wrong.name, parameters_of(wrong.model), wrong.parameters))[:SHOWN]
    if wrong.name == RETURNED:
        return [_after_the_last_name(wrong.model)]
    if wrong.name == UNWATCHED:
        return ["a pass that something listens to is right, and one without listeners is not"]
    found = _gradient(wrong) if wrong.what == GRADIENTS else _tensor(wrong)
    return list(dict.fromkeys(found))[:SHOWN]


def _after_the_last_name(model: Transformer) -> str:
    parts = {"unembed": model.unembed, "the model": model}
    hooked = [name for name, part in parts.items() if part._forward_hooks]
    who = f"a forward hook on {' or '.join(hooked)}" if hooked else "what comes after it"
    return f"unembed.logits is right, and {who} changes it"


def _tensor(wrong: Wrong) -> Iterator[str]:
    seen = passes.module_by_module(wrong.model, wrong.tokens, wrong.tensors)
    ours = {name: array_of(x) for name, x in seen.items()}
    place = next((place for place in places(wrong.model) if place.name == wrong.name), None)
    if place is None or wrong.name not in ours or wrong.name not in wrong.tensors:
        return
    mine, right = ours[wrong.name], wrong.tensors[wrong.name]
    if mine.shape != right.shape:
        yield from _other_heads(mine, right)
    elif place.point.name in set(BETWEEN_MODULES[place.tap.kind]) - {"out", "attn_out", "mlp_out"}:
        yield from _sum(wrong, place, mine)
    else:
        yield from _layer(wrong, place, ours)


def _layer(wrong: Wrong, place: Place, ours: Arrays) -> Iterator[str]:
    """Mistakes that a layer can make on its own, given the reference's input."""
    kind, path = place.tap.kind, place.name.rpartition(".")[0]
    state = _given(wrong, kind, path)
    steps = tensors(kind, state)
    bad = {
        name: ours[f"{path}.{name}"]
        for name, right in steps.items()
        if f"{path}.{name}" in ours
        and distance({name: ours[f"{path}.{name}"]}, {name: right}) > SAME
    }
    if not bad:
        return
    found = [
        mistake.says
        for mistake in misread(kind, state, wrong.parameters["embed.W_E"])
        if distance(bad, tensors(kind, state, mistake.changes)) <= SAME
    ]
    if kind == "attn" and bad.keys() == {"attn_out"}:
        found += _order_of_heads(state, steps, bad["attn_out"])
    if not found:
        found = ["; and ".join(says) for says in explanations(kind, state, bad, SAME)]
    if not found and kind == "ln":
        found = list(_eps(state, bad))
    yield from found


def _given(wrong: Wrong, kind: str, path: str) -> State:
    own = {
        name.removeprefix(f"{path}."): x
        for name, x in wrong.parameters.items()
        if name.startswith(f"{path}.")
    }
    cfg = wrong.model.cfg
    if kind == "unembed" and cfg.tie_embeddings:
        own["W_U"] = wrong.parameters["embed.W_E"].T
    added = wrong.tensors.get("pos_embed.out") if cfg.positions == "shortformer" else None
    return given(kind, cfg, own, wrong.tensors[f"{path}.{INPUTS[kind]}"], added=added)


def _order_of_heads(state: State, steps: State, out: Array) -> Iterator[str]:
    """Which head's W_O each z was multiplied by, solved for."""
    n_heads, d_head, d_model = state["W_O"].shape
    n_rows = -(-4 * n_heads**2 // d_model)
    z = steps["z"].reshape(-1, n_heads, d_head)[:n_rows]
    products = np.einsum("rid,jdm->ijrm", z, state["W_O"]).reshape(n_heads**2, -1)
    wanted = out.reshape(-1, d_model)[:n_rows] - state["b_O"]
    weights, *_ = np.linalg.lstsq(products.T, wanted.reshape(-1), rcond=None)
    chosen = weights.reshape(n_heads, n_heads).round()
    order = chosen.argmax(1).tolist()
    if np.abs(chosen - np.eye(n_heads)[order]).max() or sorted(order) != list(range(n_heads)):
        return
    again = np.tensordot(steps["z"], state["W_O"][order], axes=((2, 3), (0, 1))) + state["b_O"]
    if distance({"attn_out": out}, {"attn_out": again}) <= SAME:
        yield f"the heads of W_O are in another order: {', '.join(map(str, order))}"


def _eps(state: State, bad: Mapping[str, Array]) -> Iterator[str]:
    """Which eps would do, if it is only that."""
    x = state["residual"]
    centred = x - x.mean(-1, keepdims=True)
    if "residual_std" in bad:
        std = bad["residual_std"]
    elif "out" in bad and (np.abs(state["w"]) > 0.1).any():
        # where x is far from its mean and w from 0, the quotient loses the fewest digits
        size = np.abs(centred) * np.abs(state["w"])
        best = np.expand_dims(size.argmax(-1), -1)
        normalized = (bad["out"] - state["b"]) / state["w"]
        std = np.take_along_axis(centred / normalized, best, -1)
    else:
        return
    eps = np.array(np.median(std**2 - x.var(-1, keepdims=True)))
    if distance(bad, tensors("ln", state, {"eps": lambda s: eps})) <= SAME:
        yield (
            f"eps is about {float(eps):.3g}, not the config's layer_norm_eps of "
            f"{float(state['eps']):g}"
        )


def _other_heads(mine: Array, right: Array) -> Iterator[str]:
    if mine.ndim == right.ndim == 4 and mine.shape[1] == right.shape[1]:
        (ours, width), (theirs, other) = mine.shape[2:], right.shape[2:]
        if ours * width == theirs * other:
            yield (
                f"the same columns were cut into {ours} heads of {width}, where the reference has "
                f"{theirs} of {other}: n_heads is wrong"
            )


def _sum(wrong: Wrong, place: Place, mine: Array) -> Iterator[str]:
    """What was added up to this tensor, found by fitting; and what the reference added up."""
    terms = _terms(wrong, place)
    is_now, should = (_as_sum(x, terms) for x in (mine, wrong.tensors[place.name]))
    if is_now and should and is_now != should:
        yield f"it is {is_now}, and should be {should}"


def _terms(wrong: Wrong, place: Place) -> dict[str, Array]:
    """Tensors of the stream's shape that passed before this one and near it, and biases."""
    names = list(wrong.tensors)
    before = names[: names.index(place.name)]
    shape = wrong.tensors[place.name].shape
    number = re.match(r"blocks\.(\d+)\.", place.name)
    block = number[0] if number else ""
    around = (block, f"blocks.{int(number[1]) - 1}.", "embed.", "pos_embed.") if number else ("",)
    near = [name for name in before if name.startswith(around)]
    # what passed last is tried first, and a tensor that has two names goes by its first one
    terms: dict[str, Array] = {}
    for name in reversed(near):
        x = wrong.tensors[name]
        if x.shape != shape:
            continue
        same = next((known for known in terms if np.array_equal(terms[known], x)), None)
        if same is not None:
            del terms[same]
        elif len(terms) == _MOST_TENSORS:
            break
        terms[name] = x
    for name, x in wrong.parameters.items():
        if block and name.startswith(block) and x.shape == shape[-1:]:
            terms[name] = np.broadcast_to(x, shape)
    return terms


def _as_sum(x: Array, terms: Mapping[str, Array]) -> str:
    """x as a sum of the fewest of these terms, with their factors; empty: it is none."""
    some = np.linspace(0, x.size - 1, min(x.size, _SAMPLE)).astype(int)
    wanted = x.reshape(-1)[some]
    flat = {name: term.reshape(-1)[some] for name, term in terms.items()}
    for n in range(1, _MOST_TERMS + 1):
        for names in combinations(flat, n):
            table = np.stack([flat[name] for name in names], axis=1)
            factors, *_ = np.linalg.lstsq(table, wanted, rcond=None)
            if distance({"": wanted}, {"": table @ factors}) <= SAME:
                return _in_words(dict(zip(names, factors.tolist(), strict=True)))
    return ""


def _in_words(factors: Mapping[str, float]) -> str:
    text = ""
    for name, factor in factors.items():
        sign = " - " if factor < 0 else " + " if text else ""
        size = f"{abs(factor):.4g}"
        size = f"{abs(factor):.10g}" if size == "1" else size
        times = "" if abs(abs(factor) - 1) <= SAME else f"{size} x "
        text += f"{sign}{times}{name}"
    return text.strip()


def _gradient(wrong: Wrong) -> Iterator[str]:
    named = (
        passes.module_gradients(wrong.model, wrong.tokens, wrong.tensors, wrong.gradients),
        passes.gradients(wrong.model, wrong.tokens, wrong.gradients),
    )
    right = wrong.gradients[wrong.name]
    for found in named:
        if wrong.name not in found:
            if wrong.name == passes.LOGITS:  # where the loss enters, no module stands before it
                continue
            yield "nothing that the loss is made of reads it: it is frozen, detached or not used"
            continue
        mine = array_of(found[wrong.name])
        if mine.shape != right.shape or not right.any():
            continue
        factor = float((mine * right).sum() / (right * right).sum())
        if distance({"": mine}, {"": right}) <= SAME:
            continue
        if not mine.any():
            yield "it is 0 everywhere: the way back is cut"
        elif distance({"": mine}, {"": factor * right}) <= SAME:
            yield f"it is {factor:.6g} times the reference's"
        elif mine.shape[-1] == mine.shape[-2:-1] and distance({"": mine}, {"": right.mT}) <= SAME:
            yield "it is the reference's transposed"
