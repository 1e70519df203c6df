"""The scores of all heads of a kind as a grid, with their nulls as grids of the same scale.

A row for each layer, the first on top, a column for each head. A score that its null explains is
left plain: only what is beyond it is framed.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from pvml.circuits.chance import SIGNIFICANCE
from pvml.circuits.heads.names import EXCESS, HeadScore
from pvml.circuits.weights.copying import CopyingScore
from pvml.errors import PvmlError
from pvml.plots.canvas import DIVERGING, around, colour_scale, save, sheet, with_processing
from pvml.plots.terminal import require_width

SURELY = f"p\N{NO-BREAK SPACE}≤\N{NO-BREAK SPACE}{SIGNIFICANCE:g}, corrected for the scores tried"
"""What a score has to be to be called beyond its null, in words."""
MOST = 48
"""Layers or heads of a layer in one picture."""
_WRITTEN = 16
"""Layers and heads up to which every score is also written as a number."""

Cells = Float[np.ndarray[Any, Any], "n_layers n_heads"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Grid:
    """A number for each head; NaN where there is none."""

    name: str
    values: Cells
    spreads: Cells | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Scores:
    """What is drawn: the scores and then their nulls."""

    title: str
    unit: str
    lowest: float
    """The least that a score can be; the most is 1."""
    grids: tuple[_Grid, ...]
    beyond: Bool[np.ndarray[Any, Any], "n_layers n_heads"]
    undefined: Bool[np.ndarray[Any, Any], "n_layers n_heads"]
    n: int
    earned: str
    """What a score must be to be framed."""

    def number(self, value: float) -> str:
        return f"{value:+z.2f}" if self.lowest < 0 else f"{value:z.2f}"

    @property
    def count(self) -> str:
        undefined = int(self.undefined.sum())
        more = f"; {undefined:,} undefined (–): every eigenvalue is 0" if undefined else ""
        return f"{int(self.beyond.sum()):,} of {self.n:,} ({self.earned}){more}"


def score_grids(scores: Sequence[CopyingScore] | Sequence[HeadScore], path: Path) -> Path:
    """The picture's path: a grid of the scores, and one of each null's mean and spread.

    scores: copying scores, or attention scores of one kind on one text. Up to 16 layers of 16 heads
    the numbers are written in the cells.

    Raises: PvmlError for no score, scores of several kinds, a head given twice, a NaN or infinite
        number, more than 48 layers or heads of a layer, or a path that ends in neither .png nor
        .svg; RunDirError if the file cannot be written.
    """
    found = _collected(scores)
    n_layers, n_heads = found.beyond.shape
    if max(n_layers, n_heads) > MOST:
        raise PvmlError(
            f"{n_layers:,} layers of {n_heads:,} heads are too many for one picture, which holds "
            f"{MOST} of {MOST}: give the scores of some layers"
        )
    layout = _Layout(n_layers, n_heads, len(found.grids))
    made, axes = sheet(*layout.page)
    for place, grid in enumerate(found.grids):
        picture = _draw(axes, layout, place, grid, found)
        if layout.written:
            _write(axes, layout, place, grid, found)
        _label(axes, layout, place, grid)
    _frame(axes, layout, found)
    # a picture in axes takes their limits and aspect for its own
    axes.set(xlim=(0, layout.page[0]), ylim=(0, layout.page[1]), aspect="auto")
    colour_scale(made, picture, found.unit)
    caption = (
        f"Framed: beyond its nulls by enough to be named, {found.count}. Of the nulls, the mean"
        f"{' ± the spread' if layout.written else ''}."
    )
    around(made, found.title, with_processing(caption, scores[0].processing))
    return save(made, path)


def score_text(scores: Sequence[CopyingScore] | Sequence[HeadScore], *, width: int = 80) -> str:
    """The same for a terminal: a block of numbers for the scores, and for each null's two.

    Heads that do not fit beside each other follow below.

    Raises: as `score_grids` does, for any number of heads; PvmlError for a width below 60.
    """
    require_width(width)
    found = _collected(scores)
    n_heads, at_once = found.beyond.shape[1], (width - 8) // 6
    blocks = [f"{found.title}\n{found.unit}"]
    for start in range(0, n_heads, at_once):
        part = slice(start, start + at_once)
        heads = "".join(f"{head:>5} " for head in range(n_heads)[part])
        for i, grid in enumerate(found.grids):
            marks = found.beyond[:, part] if i == 0 else np.zeros_like(found.beyond[:, part])
            suffix = ", mean" if grid.spreads is not None else ""
            blocks.append(_block(f"{grid.name}{suffix}", heads, grid.values[:, part], marks, found))
            if grid.spreads is not None:
                plain = np.zeros_like(marks)
                blocks.append(
                    _block(f"{grid.name}, spread", heads, grid.spreads[:, part], plain, found)
                )
    caption = f"* beyond its nulls by enough to be named: {found.count}"
    if scores[0].processing:
        caption = with_processing(f"{caption}.", scores[0].processing)
    blocks.append(textwrap.fill(caption, width))
    return "\n\n".join(blocks)


def _block(name: str, heads: str, values: Cells, marks: Any, found: _Scores) -> str:
    lines = [name, f"   head {heads}".rstrip()]
    signed = not name.endswith("spread")
    for layer, (row, marked) in enumerate(zip(values, marks, strict=True)):
        cells = "".join(
            f"{_cell(float(value), found, signed):>5}{'*' if mark else ' '}"
            for value, mark in zip(row, marked, strict=True)
        )
        lines.append(f"layer {layer:<2}{cells}".rstrip())
    return "\n".join(lines)


def _cell(value: float, found: _Scores, signed: bool) -> str:
    if np.isnan(value):
        return "–"
    return found.number(value) if signed else f"{value:.2f}"


def _collected(scores: Sequence[CopyingScore] | Sequence[HeadScore]) -> _Scores:
    if not scores:
        raise PvmlError("there is no head's score to draw")
    heads = [(score.layer, score.head) for score in scores]
    kinds = {_kind(score) for score in scores}
    if len(kinds) > 1:
        raise PvmlError(f"give scores of one kind, got {', '.join(sorted(kinds))}")
    if len(set(heads)) < len(heads):
        raise PvmlError(f"{len(heads):,} scores of {len(set(heads)):,} heads: give each head once")
    without = {(score.layer, score.head) for score in scores if score.score is None}
    shape = (1 + max(layer for layer, _ in heads), 1 + max(head for _, head in heads))

    def cells(values: Sequence[float | None]) -> Cells:
        made = np.full(shape, np.nan)
        for head, value in zip(heads, values, strict=True):
            # without an eigenvalue other than 0 a null is undefined too
            if value is not None and not (np.isnan(value) and head in without):
                if not np.isfinite(value):
                    raise PvmlError(
                        f"a score or null of head {head[0]}.{head[1]} is {value}, which cannot be "
                        f"drawn"
                    )
                made[head] = value
        return made

    beyond, undefined = np.zeros(shape, bool), np.zeros(shape, bool)
    for score in scores:
        at = score.layer, score.head
        beyond[at], undefined[at] = score.beyond, at in without
    copying = isinstance(scores[0], CopyingScore)
    grids = [
        _Grid(name="score", values=cells([score.score for score in scores])),
        _Grid(
            name="random heads" if copying else "shuffled tokens",
            values=cells([score.null_mean for score in scores]),
            spreads=cells([score.null_spread for score in scores]),
        ),
    ]
    random = [score.random for score in scores if isinstance(score, HeadScore) and score.random]
    if len(random) == len(scores):
        grids.append(
            _Grid(
                name="random heads",
                values=cells([null.mean for null in random]),
                spreads=cells([null.spread for null in random]),
            )
        )
    return _Scores(
        title=f"{next(iter(kinds)).capitalize()}: every head's score beside its nulls",
        unit="copying score (-1 to 1)" if copying else "mean share of attention (0 to 1)",
        lowest=-1.0 if copying else 0.0,
        grids=tuple(grids),
        beyond=beyond,
        undefined=undefined,
        n=len(scores),
        earned=SURELY if copying else f"at least {EXCESS} more; {SURELY}",
    )


def _kind(score: CopyingScore | HeadScore) -> str:
    if isinstance(score, CopyingScore):
        return "copying"
    text = "natural text" if score.text == "natural" else "repeated random tokens"
    return f"{score.kind} ({text})"


class _Layout:
    """Where the grids lie on a page, in inches, side by side."""

    def __init__(self, n_layers: int, n_heads: int, n_grids: int):
        self.layers, self.heads = n_layers, n_heads
        self.written = max(n_layers, n_heads) <= _WRITTEN
        self.cell = (0.44, 0.36) if self.written else (0.17, 0.17)
        self.size = (n_heads * self.cell[0], n_layers * self.cell[1])
        self._wide = max(self.size[0], 1.1) + 0.3
        self.page = (0.7 + n_grids * self._wide, self.size[1] + 0.85)

    def corner(self, place: int) -> tuple[float, float]:
        """A grid's upper left corner."""
        return 0.7 + place * self._wide, 0.35 + self.size[1]

    def middle(self, place: int, layer: int, head: int) -> tuple[float, float]:
        left, top = self.corner(place)
        return left + (head + 0.5) * self.cell[0], top - (layer + 0.5) * self.cell[1]


def _draw(axes: Axes, layout: _Layout, place: int, grid: _Grid, found: _Scores) -> AxesImage:
    left, top = layout.corner(place)
    box = (left, left + layout.size[0], top - layout.size[1], top)
    axes.add_patch(
        Rectangle((left, box[2]), *layout.size, facecolor="#E0E0E0", edgecolor="none", zorder=0)
    )
    return axes.imshow(
        np.ma.masked_invalid(grid.values),
        vmin=found.lowest,
        vmax=1,
        cmap=DIVERGING if found.lowest < 0 else "Blues",
        interpolation="nearest",
        extent=box,
        zorder=1,
    )


def _write(axes: Axes, layout: _Layout, place: int, grid: _Grid, found: _Scores) -> None:
    """Every cell's number, in white where the cell is dark."""
    for (layer, head), value in np.ndenumerate(grid.values):
        if np.isnan(value) and not found.undefined[layer, head]:
            continue
        told = _cell(float(value), found, signed=True)
        if grid.spreads is not None and not np.isnan(value):
            told += f"\n±{grid.spreads[layer, head]:.2f}"
        axes.text(
            *layout.middle(place, layer, head),
            told,
            fontsize=6.5 if grid.spreads is not None else 8,
            fontweight="bold" if place == 0 and found.beyond[layer, head] else "normal",
            color="white" if abs(value) > 0.6 else "black",
            ha="center",
            va="center",
            zorder=3,
        )


def _label(axes: Axes, layout: _Layout, place: int, grid: _Grid) -> None:
    left, top = layout.corner(place)
    style: dict[str, Any] = {"fontsize": 8 if layout.written else 6}
    middle = left + layout.size[0] / 2
    axes.text(middle, top + 0.22, grid.name, fontsize=10, ha="center", va="bottom")
    for head in range(layout.heads):
        x, _ = layout.middle(place, 0, head)
        axes.text(x, top + 0.04, str(head), ha="center", va="bottom", **style)
    axes.text(middle, top - layout.size[1] - 0.06, "head", ha="center", va="top", fontsize=8.5)
    if place == 0:
        for layer in range(layout.layers):
            _, y = layout.middle(place, layer, 0)
            axes.text(left - 0.06, y, str(layer), ha="right", va="center", **style)
        y = top - layout.size[1] / 2
        axes.text(left - 0.4, y, "layer", rotation=90, ha="center", va="center", fontsize=8.5)


def _frame(axes: Axes, layout: _Layout, found: _Scores) -> None:
    width, height = layout.cell
    for layer, head in np.argwhere(found.beyond):
        x, y = layout.middle(0, int(layer), int(head))
        axes.add_patch(
            Rectangle(
                (x - width / 2, y - height / 2),
                width,
                height,
                fill=False,
                edgecolor="black",
                linewidth=1.8,
                zorder=2,
            )
        )
