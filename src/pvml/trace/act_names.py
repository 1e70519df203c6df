"""TransformerLens's short names of tensors, as notebooks write them: `get_act_name("q", 3)`.

They are TransformerLens's alone. Where PvML has the same word for another tensor (`attn_scores`,
`normalized`), the short name means TransformerLens's; PvML's is asked for by its full name.
"""

import difflib
import re

from pvml.errors import PvmlError
from pvml.trace.points import POINTS, Point, lens_name

_ALSO_CALLED = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_post": "post",
}
_PARTS = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
_NORMS = ("ln1", "ln2")
RESULT = "result"
"""A head's own output, which is no tensor of the pass; a cache computes it."""


def get_act_name(name: str, layer: int | str | None = None, layer_type: str | None = None) -> str:
    """TransformerLens's full name: `("q", 3)` is blocks.3.attn.hook_q, `("embed",)` hook_embed.

    layer may be "*", for all. layer_type is needed for LayerNorms in a block only: ln1 or ln2.
    `"k6"` and `"scale4ln1"` are understood, and a full name is given back.

    Raises: PvmlError for any other name, a missing layer, or one where there is none.
    """
    if layer is None and layer_type is None:
        if "." in name or name.startswith("hook_"):
            return name
        if packed := re.fullmatch(r"([a-z]+)(\d+)([a-z]\w*)?", name):
            name, layer, layer_type = packed[1], packed[2], packed[3]
    name = _ALSO_CALLED.get(name, name)
    part = _PARTS.get(layer_type or "", layer_type or "")
    if name == RESULT and layer is not None:
        return f"blocks.{layer}.attn.hook_result"
    there = [(kind, point) for kind, points in POINTS.items() for point in points]
    found = [(kind, point) for kind, point in there if _short(point) == name]
    if not found:
        raise PvmlError(_unknown(name))
    for kind, point in found:
        path = _path(kind, layer, part)
        if path is not None:
            return lens_name(path, point)
    if layer is not None and part not in _NORMS and found[0][0] == "ln":
        raise PvmlError(f"{name} of layer {layer} is which LayerNorm's? Say ln1 or ln2 behind it")
    where = "needs a layer" if layer is None else "is outside the layers"
    raise PvmlError(f"{name} {where}, got layer={layer}, layer_type={layer_type!r}")


def _short(point: Point) -> str | None:
    return point.lens.rpartition("hook_")[2] if point.lens else None


def _path(kind: str, layer: int | str | None, part: str) -> str | None:
    """Where the module of this kind is; None if there is none at that layer and part."""
    if layer is None:
        outside = {"embed": "embed", "pos_embed": "pos_embed", "ln": "ln_final"}
        return outside.get(kind)
    if kind == "ln":
        return f"blocks.{layer}.{part}" if part in _NORMS else None
    inside = {"attn": ".attn", "mlp": ".mlp", "block": ""}
    return f"blocks.{layer}{inside[kind]}" if kind in inside else None


def _unknown(name: str) -> str:
    points = [point for points in POINTS.values() for point in points]
    if any(point.name == name for point in points):
        return (
            f"{name!r} is PvML's name, and short names are TransformerLens's: give its full name, "
            f"as 'blocks.0.attn.attn_pattern'"
        )
    known = sorted({*filter(None, map(_short, points)), *_ALSO_CALLED, RESULT})
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return f"no tensor has the short name {name!r}: {meant}"
