"""Mistakes in how a block puts its layers together, and those of the layers themselves."""

from collections.abc import Callable, Mapping

from numpy import ndarray as Array

from pvml.parity.mistakes.attention import attention
from pvml.parity.mistakes.layers import layer_norm, mlp
from pvml.parity.mistakes.mistake import Mistake, Mistakes
from pvml.parity.steps import INPUTS, State, Step, own_state, part


def block(s: State) -> Mistakes:
    """What a block can do wrong with what this one was given."""
    if "mlp.W_in" in s:
        yield from _wiring()
    if "ln1.w" in s:
        yield from _norms(s)
    yield from _in_parts("attn", attention, s, {"attn": "ln1.out"})
    if "mlp.W_in" in s:
        yield from _in_parts("mlp", mlp, s, {"mlp": "ln2.out"})
    if "ln1.w" in s:
        reads = {"ln1": "resid_pre"} | ({"ln2": "resid_mid"} if "ln2.w" in s else {})
        yield from _in_parts("ln", layer_norm, s, reads)


def _wiring() -> Mistakes:
    yield Mistake(
        "what attention wrote is not added to the stream that it read, but replaces it",
        {"resid_mid": lambda s: s["attn.attn_out"]},
    )
    yield Mistake(
        "what the MLP wrote is not added to the stream that it read, but replaces it",
        {"resid_post": lambda s: s["mlp.mlp_out"]},
    )
    yield Mistake(
        "nothing is added to the stream: attention's and the MLP's outputs replace it",
        {
            "resid_mid": lambda s: s["attn.attn_out"],
            "resid_post": lambda s: s["mlp.mlp_out"],
        },
    )
    yield Mistake(
        "the MLP's output is added to resid_pre: what attention wrote is lost",
        {"resid_post": lambda s: s["resid_pre"] + s["mlp.mlp_out"]},
    )
    yield Mistake("attention is not used", {"attn.attn_out": lambda s: 0 * s["resid_pre"]})
    yield Mistake("the MLP is not used", {"mlp.mlp_out": lambda s: 0 * s["resid_pre"]})
    yield Mistake(
        "the MLP reads the stream before attention has written to it (both side by side)",
        {"ln2.out": lambda s: _norm(s, "ln2", s["resid_pre"])},
    )
    yield Mistake(
        "the MLP reads attention's output alone, not the stream that it was added to",
        {"ln2.out": lambda s: _norm(s, "ln2", s["attn.attn_out"])},
    )
    yield Mistake(
        "the MLP reads what attention read: ln1's output",
        {"ln2.out": lambda s: s["ln1.out"]},
    )
    yield Mistake("the MLP comes first, attention second", {"resid_post": _mlp_first})


def _norms(s: State) -> Mistakes:
    yield Mistake(
        "attention reads the stream itself: ln1 is left out",
        {"ln1.out": lambda s: s["resid_pre"]},
    )
    if "ln2.w" not in s:
        return
    yield Mistake(
        "the MLP reads the stream itself: ln2 is left out",
        {"ln2.out": lambda s: s["resid_mid"]},
    )
    yield Mistake(
        "no layer reads through a LayerNorm: ln1 and ln2 are left out",
        {"ln1.out": lambda s: s["resid_pre"], "ln2.out": lambda s: s["resid_mid"]},
    )
    yield Mistake(
        "the MLP reads through ln1, not through ln2",
        {"ln2.out": lambda s: _norm(s, "ln1", s["resid_mid"])},
    )
    yield Mistake(
        "ln1 and ln2 have changed places",
        {
            "ln1.out": lambda s: _norm(s, "ln2", s["resid_pre"]),
            "ln2.out": lambda s: _norm(s, "ln1", s["resid_mid"]),
        },
    )
    yield Mistake(
        "each LayerNorm comes after its layer (as in the first Transformer), not before",
        {
            "ln1.out": lambda s: s["resid_pre"],
            "resid_mid": lambda s: _norm(s, "ln1", s["resid_pre"] + s["attn.attn_out"]),
            "ln2.out": lambda s: s["resid_mid"],
            "resid_post": lambda s: _norm(s, "ln2", s["resid_mid"] + s["mlp.mlp_out"]),
        },
    )
    yield Mistake(
        "attention's output is added to ln1's output, not to the stream itself",
        {"resid_mid": lambda s: s["ln1.out"] + s["attn.attn_out"]},
    )
    yield Mistake(
        "the MLP's output is added to ln2's output, not to the stream itself",
        {"resid_post": lambda s: s["ln2.out"] + s["mlp.mlp_out"]},
    )
    yield Mistake(
        "the layers' outputs are added to the normalised stream, not to the stream itself",
        {
            "resid_mid": lambda s: s["ln1.out"] + s["attn.attn_out"],
            "resid_post": lambda s: s["ln2.out"] + s["mlp.mlp_out"],
        },
    )


def _in_parts(
    kind: str, mistakes: Callable[[State], Mistakes], s: State, reads: Mapping[str, str]
) -> Mistakes:
    """Each of a layer's own mistakes, in all of the block's layers of that kind at once.

    reads: the name of what each of these layers reads, by the layer's path.
    """
    path = next(iter(reads))
    for one in mistakes({**own_state(s, path), INPUTS[kind]: s["resid_pre"]}):
        yield Mistake(
            f"in {' and '.join(reads)}, {one.says}",
            {_result(path): _with(kind, path, x, one.changes) for path, x in reads.items()},
        )


def _result(path: str) -> str:
    return {"attn": "attn.attn_out", "mlp": "mlp.mlp_out"}.get(path, f"{path}.out")


def _with(kind: str, path: str, x: str, changes: Mapping[str, Step]) -> Step:
    return lambda s: part(kind, s, path, s[x], changes)


def _norm(s: State, path: str, x: Array) -> Array:
    return part("ln", s, path, x)


def _mlp_first(s: State) -> Array:
    middle = s["resid_pre"] + part("mlp", s, "mlp", _norm(s, "ln2", s["resid_pre"]))
    read: Array = middle + part("attn", s, "attn", _norm(s, "ln1", middle))
    return read
