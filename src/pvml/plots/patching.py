"""Activation patching as a heat map: a row for each layer or head, a column for each part of it.

White is where a patch changes nothing, whichever way the patches go.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from pvml.errors import PvmlError
from pvml.patching.result import Patched
from pvml.plots.canvas import (
    DIVERGING,
    around,
    colour_scale,
    label_inches,
    labels,
    save,
    sheet,
    with_processing,
)
from pvml.plots.terminal import fitted, require_width, shade, shown

MOST = 144
"""Rows or columns in one picture: as many rows as GPT-2 small has heads."""
_WRITTEN = 16
"""Rows and columns up to which every number is also written."""
_LONGEST = 22
_MEANING = "0: as corrupted, 1: as clean"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Map:
    """What is drawn."""

    cells: Float[np.ndarray[Any, Any], "n_rows n_columns"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    """A label for each column, with the tokens as they are."""
    sides: tuple[str, str]
    """What a row is, and what a column is."""
    base: float
    """What a cell is where the patch changes nothing."""
    reach: float
    """How far from there the colours go."""

    def share(self, value: float) -> float:
        """How dark a cell is, from 0 to 1."""
        return abs(value - self.base) / self.reach


def patch_map(found: Patched, path: Path) -> Path:
    """The picture's path: a cell for each patch, what it leaves of the clean prompt's metric.

    Blue is above what no patch gives, red below; up to 16 rows and columns the numbers are written
    in the cells.

    Raises: PvmlError for more than 144 rows or columns, or a path that ends in neither .png nor
        .svg; RunDirError if the file cannot be written.
    """
    of = _map(found)
    n_rows, n_columns = of.cells.shape
    if max(n_rows, n_columns) > MOST:
        raise PvmlError(
            f"{n_rows:,} rows of {n_columns:,} columns are too many for one picture, which holds "
            f"{MOST} of {MOST}: patch heads without positions, or a shorter prompt"
        )
    written = max(n_rows, n_columns) <= _WRITTEN
    cell = (0.46, 0.34) if written else (0.17, 0.17)
    page = (cell[0] * n_columns, cell[1] * n_rows)
    made, axes = sheet(*page)
    picture = axes.imshow(
        of.cells,
        vmin=of.base - of.reach,
        vmax=of.base + of.reach,
        cmap=DIVERGING,
        interpolation="nearest",
        extent=(0, page[0], 0, page[1]),
        aspect="auto",
    )
    if written:
        _write(axes, of, cell)
    above = _label(axes, of, cell, 8.5 if written else 6.5)
    colour_scale(made, picture, _MEANING)
    around(made, found.title, _caption(found), over=above)
    return save(made, path)


def patch_text(found: Patched, *, width: int = 80) -> str:
    """The same for a terminal: a number in each cell, and a shade for how much the patch changes.

    Columns that do not fit beside each other follow below, with the same rows.

    Raises: PvmlError for a width below 60.
    """
    require_width(width)
    of = _map(found)
    label = max(map(len, of.rows))
    at_once = (width - label) // 8
    blocks = [f"{found.title}\nrows: {of.sides[0]}, columns: {of.sides[1]}\n{_MEANING}"]
    for start in range(0, len(of.columns), at_once):
        part = slice(start, start + at_once)
        names = "".join(f" {fitted(shown(x), 6, right=True)} " for x in of.columns[part])
        lines = [f"{'':{label}}{names}".rstrip()]
        for name, values in zip(of.rows, of.cells[:, part], strict=True):
            cells = "".join(f" {v:>+z6.2f}{shade(of.share(float(v)))}" for v in values)
            lines.append(f"{name:<{label}}{cells}".rstrip())
        blocks.append("\n".join(lines))
    blocks.append("\n".join(textwrap.fill(x, width) for x in _caption(found).splitlines()))
    return "\n\n".join(blocks)


def _map(found: Patched) -> _Map:
    cells = found.normalised.numpy()
    if found.axes == ("layer", "head", "position"):
        n_layers, n_heads, posn = found.shape
        rows = tuple(f"{layer}.{head}" for layer in range(n_layers) for head in range(n_heads))
        cells, sides = cells.reshape(n_layers * n_heads, posn), ("head", "position")
    else:
        rows, sides = tuple(map(str, range(found.shape[0]))), (found.axes[0], found.axes[1])
    columns = tuple(map(str, range(cells.shape[1])))
    if sides[1] == "position":
        columns = tuple(map(_position, range(len(columns)), *_tokens(found)))
    largest = float(np.abs(cells - found.base).max())
    return _Map(
        cells=cells,
        rows=rows,
        columns=columns,
        sides=sides,
        base=found.base,
        reach=max(1.0, largest),
    )


def _tokens(found: Patched) -> tuple[Sequence[str], Sequence[str]]:
    """Of each position; nothing where several prompts have several."""
    if found.n_prompts > 1:
        return [""] * found.shape[-1], [""] * found.shape[-1]
    return found.clean_tokens, found.corrupted_tokens


def _position(i: int, clean: str, corrupted: str) -> str:
    """A position's label: its token, or both where the prompts differ."""
    if not clean:
        return str(i)
    return clean if clean == corrupted else f"{clean}/{corrupted.strip()}"


def _caption(found: Patched) -> str:
    if found.direction == "denoising":
        means = "a patch that changes nothing leaves 0, one that restores the answer makes it 1"
    else:
        means = "a patch that changes nothing leaves 1, one that destroys the answer makes it 0"
    lines = [
        f"Metric: {found.metric}; clean {found.clean:+.3f}, corrupted {found.corrupted:+.3f}. "
        f"{means[0].upper()}{means[1:]}."
    ]
    if found.n_prompts > 1:
        lines.append(f"Over {found.n_prompts:,} pairs of prompts.")
    return with_processing("\n".join(lines), found.processing)


def _write(axes: Axes, of: _Map, cell: tuple[float, float]) -> None:
    """Every number, in white where the cell is dark."""
    n_rows = len(of.rows)
    for (row, column), value in np.ndenumerate(of.cells):
        axes.text(
            (column + 0.5) * cell[0],
            (n_rows - row - 0.5) * cell[1],
            f"{value:+z.2f}",
            fontsize=7.5,
            color="white" if of.share(float(value)) > 0.6 else "black",
            ha="center",
            va="center",
        )


def _label(axes: Axes, of: _Map, cell: tuple[float, float], size: float) -> float:
    """Names beside and above the cells; how high they reach (inches)."""
    width, height = cell[0] * len(of.columns), cell[1] * len(of.rows)
    # a token may be a $, which would otherwise begin a formula
    style: dict[str, Any] = {"fontsize": size, "parse_math": False}
    for i, name in enumerate(of.rows):
        axes.text(-0.06, height - (i + 0.5) * cell[1], name, ha="right", va="center", **style)
    names = labels(of.columns, _LONGEST)
    turned = 90 if of.sides[1] == "position" else 0
    for i, name in enumerate(names):
        x = (i + 0.5) * cell[0]
        axes.text(x, height + 0.06, name, ha="center", va="bottom", rotation=turned, **style)
    beside = label_inches(of.rows, size) + 0.2
    above = (label_inches(names, size) if turned else size / 72) + 0.2
    axes.text(-beside, height / 2, of.sides[0], fontsize=9, rotation=90, ha="right", va="center")
    axes.text(width / 2, height + above, of.sides[1], fontsize=9, ha="center", va="bottom")
    return above + 0.25
