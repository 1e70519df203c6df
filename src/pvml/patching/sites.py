"""What can be patched: a tensor of every layer, in cells of one layer, head or position each."""

from dataclasses import dataclass
from typing import Any

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.trace.points import Point, points_of

Place = tuple[int, ...]
"""A cell: its layer, then its head or position or both, each counted from 0."""
_HOMES = {"block": "", "attn": "attn.", "mlp": "mlp."}
"""Where a kind of module stands in a block."""
_HEADS = "heads"
"""Another name for z: what the heads hand on."""
_AXES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("posn", "d_model"): ("layer", "position"),
    ("posn", "d_mlp"): ("layer", "position"),
    ("posn", "n_heads", "d_head"): ("layer", "head"),
    ("n_heads", "posn_q", "posn_k"): ("layer", "head"),
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A tensor that every layer has, and the cells that it is patched in."""

    name: str
    """PvML's own, as `z`."""
    path: str
    """Where it is in a block, as `attn.z`."""
    axes: tuple[str, ...]
    """What a cell is one of: layer, then head, position or both."""
    shape: tuple[int, ...]
    """How many cells there are along each axis."""
    by_head: bool
    """Whether the tensor has its heads before its positions, as the attention grid has."""

    def within(self, cell: Place) -> tuple[Any, ...]:
        """Where a cell is in the layer's tensor, behind the batch axis."""
        _, *at = cell
        if "head" not in self.axes:
            return (at[0],)
        head, posn = at[0], at[1] if len(at) > 1 else slice(None)
        return (head, posn) if self.by_head else (posn, head)


def site_of(cfg: Config, over: str, by_position: bool, posn: int) -> Site:
    """The tensor that a word means, and its cells in a prompt of `posn` tokens.

    over: PvML's name or TransformerLens's, as `z`, `hook_z`, `pattern`; `heads` is z. by_position:
    a cell for each head and position (of a grid: of the query), not for each head.

    Raises: PvmlError for a word that means no tensor of this model's layers, or no layers.
    """
    if not cfg.n_layers:
        raise PvmlError("this model has no layers, so there is nothing to patch in them")
    there = _sites(cfg)
    # own names first: `attn_scores` is a tensor of ours that is not their hook_attn_scores
    called = [{path: {point.name} for path, point in there.items()}]
    called += [{path: _other_names(point) for path, point in there.items()}]
    found = [path for names in called for path, known in names.items() if over in known]
    if not found:
        own = ", ".join(point.name for point in there.values())
        told = "; this model is attention-only: it has no MLPs" if cfg.attn_only else ""
        raise PvmlError(f"over must be heads or a tensor of a layer ({own}); got {over!r}{told}")
    path, point = found[0], there[found[0]]
    axes = _AXES[tuple(point.axes.split()[1:])]
    if by_position:
        if "position" in axes:
            raise PvmlError(f"{point.name} has no heads: it is patched by position in any case")
        axes = (*axes, "position")
    sizes = {"layer": cfg.n_layers, "head": cfg.n_heads, "position": posn}
    return Site(
        name=point.name,
        path=path,
        axes=axes,
        shape=tuple(sizes[axis] for axis in axes),
        by_head=point.axes.split()[1] == "n_heads",
    )


def _sites(cfg: Config) -> dict[str, Point]:
    """Every tensor of a block that can be patched, by its path there."""
    settings = {"positions": cfg.positions, "attn_only": cfg.attn_only}
    return {
        f"{home}{point.name}": point
        for kind, home in _HOMES.items()
        if not (kind == "mlp" and cfg.attn_only)
        for point in points_of(kind, **settings)
        if tuple(point.axes.split()[1:]) in _AXES
    }


def _other_names(point: Point) -> set[str]:
    """What else a tensor is called: as TransformerLens does, or as what the heads hand on."""
    theirs = point.lens.removeprefix("../")
    return {theirs, theirs.removeprefix("hook_"), _HEADS if point.name == "z" else ""} - {""}
