"""Excerpts of QK and OV circuits as heat maps: chosen rows and columns, with their tokens.

Only the entries that are drawn are ever computed, whatever the size of the vocabulary.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from pvml.circuits.weights.maps import Circuit, Space
from pvml.circuits.weights.scales import TypicalScale, unit_of, what_is_left_out
from pvml.errors import PvmlError
from pvml.plots.canvas import (
    DIVERGING,
    around,
    colour_scale,
    label_inches,
    labels,
    save,
    sheet,
)
from pvml.plots.curves import LARGEST_DRAWN
from pvml.plots.terminal import fitted, number, require_width, shade, shown, widest

MOST = 64
"""Rows or columns in one picture."""
_WRITTEN = 16
"""Rows and columns up to which every entry is also written as a number."""
_LONGEST = 18
_THINGS: dict[Space, str] = {
    "vocabulary": "token",
    "positions": "position",
    "stream": "direction of the stream",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Excerpt:
    """What is drawn."""

    title: str
    values: Float[np.ndarray[Any, Any], "n_rows n_columns"]
    texts: tuple[list[str], list[str]]
    """Of the rows and of the columns, as they are."""
    meaning: tuple[str, str, str]
    """What a row is, what a column is, what an entry is."""
    below: str
    """What has to hold, and what was left out."""

    @property
    def largest(self) -> float:
        size = float(np.abs(self.values).max())
        return size if size > 1 / LARGEST_DRAWN else 0.0

    def number(self, value: float) -> str:
        """An entry, told as exactly as the largest of them."""
        return number(value, self.largest)


def excerpt_map(
    circuit: Circuit,
    rows: Sequence[int],
    columns: Sequence[int],
    path: Path,
    *,
    texts: Sequence[str] | None = None,
    scale: TypicalScale | None = None,
) -> Path:
    """The picture's path: the circuit's entries at these rows and columns, in their order.

    Blue is above 0, red below, white 0; the numbers are written in while 16 rows and columns are
    not exceeded. texts: what each id of the vocabulary stands for (default: show ids). What has to
    hold for the circuit to be what the model computes stands under it, and which 1/std are left
    out; scale: what these typically come to (of `typical_scale`).

    Raises: PvmlError for no row or column or more than 64 of either, ids that the circuit or
        `texts` do not have, entries that overflow, or a path that ends in neither .png nor .svg;
        RunDirError if the file cannot be written.
    """
    excerpt = _excerpt(circuit, rows, columns, texts, scale)
    for what, ids in (("rows", rows), ("columns", columns)):
        if len(ids) > MOST:
            raise PvmlError(f"an excerpt has at most {MOST} {what} in a picture, got {len(ids):,}")
    down, across = (labels(names, _LONGEST) for names in excerpt.texts)
    written = max(len(rows), len(columns)) <= _WRITTEN
    cell = (0.5, 0.32) if written else (0.17, 0.17)
    size = 8.5 if written else 7.0
    page = (cell[0] * len(columns), cell[1] * len(rows))
    made, axes = sheet(*page)
    picture = axes.imshow(
        excerpt.values,
        vmin=-(excerpt.largest or 1.0),
        vmax=excerpt.largest or 1.0,
        cmap=DIVERGING,
        interpolation="nearest",
        extent=(0, page[0], 0, page[1]),
        aspect="auto",
    )
    if written:
        _write(axes, excerpt, cell)
    style: dict[str, Any] = {"fontsize": size, "parse_math": False}
    for i, name in enumerate(down):
        middle = page[1] - (i + 0.5) * cell[1]
        axes.text(-0.06, middle, name, ha="right", va="center", **style)
    for i, name in enumerate(across):
        middle = (i + 0.5) * cell[0]
        axes.text(middle, page[1] + 0.06, name, ha="center", va="bottom", rotation=90, **style)
    what_rows, what_columns, what = excerpt.meaning
    beside, above = (label_inches(names, size) + 0.25 for names in (down, across))
    axes.text(-beside, page[1] / 2, what_rows, fontsize=9.5, rotation=90, ha="right", va="center")
    axes.text(page[0] / 2, page[1] + above, what_columns, fontsize=9.5, ha="center", va="bottom")
    colour_scale(made, picture, what)
    around(made, excerpt.title, excerpt.below, over=above + 0.25)
    return save(made, path)


def excerpt_text(
    circuit: Circuit,
    rows: Sequence[int],
    columns: Sequence[int],
    *,
    texts: Sequence[str] | None = None,
    scale: TypicalScale | None = None,
    width: int = 80,
) -> str:
    """The same for a terminal: a number in each cell, and a shade for its size beside the largest.

    Columns that do not fit beside each other follow below, with the same rows.

    Raises: as `excerpt_map` does, but for a path; PvmlError for a width below 60.
    """
    require_width(width)
    excerpt = _excerpt(circuit, rows, columns, texts, scale)
    down, across = ([shown(text) for text in names] for names in excerpt.texts)
    label = widest(down, 16)
    at_once = (width - label) // 9
    what_rows, what_columns, what = excerpt.meaning
    blocks = [f"{excerpt.title}\nrows: {what_rows}\ncolumns: {what_columns}\nentries: {what}"]
    for start in range(0, len(columns), at_once):
        part = slice(start, start + at_once)
        lines = [" " * label + "".join(f" {fitted(name, 8, right=True)}" for name in across[part])]
        for name, values in zip(down, excerpt.values[:, part], strict=True):
            cells = "".join(_cell(excerpt, float(value)) for value in values)
            lines.append(f"{fitted(name, label)}{cells}".rstrip())
        blocks.append("\n".join(lines))
    blocks.append(textwrap.fill(excerpt.below, width))
    return "\n\n".join(blocks)


def _excerpt(
    circuit: Circuit,
    rows: Sequence[int],
    columns: Sequence[int],
    texts: Sequence[str] | None,
    scale: TypicalScale | None,
) -> _Excerpt:
    if not rows or not columns:
        raise PvmlError("an excerpt needs at least one row and one column")
    n_rows, n_columns = circuit.map.shape
    down = [row for row in rows for _ in columns]
    values = circuit.map.entries(down, list(columns) * len(rows)).view(len(rows), len(columns))
    if not bool((values.abs() <= LARGEST_DRAWN).all()):
        raise PvmlError(
            f"an entry of {circuit.name} is beyond {LARGEST_DRAWN:g} or no number, which cannot be "
            f"drawn"
        )
    return _Excerpt(
        title=f"{circuit.name}: {len(rows)} × {len(columns)} entries of {n_rows:,} × {n_columns:,}",
        values=values.double().cpu().numpy(),
        texts=(_named(circuit.rows, rows, texts), _named(circuit.columns, columns, texts)),
        meaning=_meaning(circuit),
        below=f"{what_is_left_out(circuit, scale)} {_held(circuit)}".strip(),
    )


def _meaning(circuit: Circuit) -> tuple[str, str, str]:
    row, column = _THINGS[circuit.rows], _THINGS[circuit.columns]
    unit = unit_of(circuit)
    if circuit.name.startswith("QK"):
        return f"query: {row}", f"key: {column}", f"score of the key ({unit})"
    read = f"{row} here" if circuit.name == "bigram" else f"{row} that is read"
    if circuit.columns == "vocabulary":
        return read, "token whose logit it changes", f"added to the logit ({unit})"
    return read, f"{column} that is written", f"added to the stream ({unit})"


def _named(space: Space, ids: Sequence[int], texts: Sequence[str] | None) -> list[str]:
    if space != "vocabulary" or texts is None:
        return [str(i) for i in ids]
    if max(ids) >= len(texts):
        raise PvmlError(f"there are {len(texts):,} texts, and none for token {max(ids):,}")
    return [texts[i] for i in ids]


def _held(circuit: Circuit) -> str:
    return f"Holds with {'; '.join(circuit.holds)}." if circuit.holds else "Nothing is left out."


def _write(axes: Axes, excerpt: _Excerpt, cell: tuple[float, float]) -> None:
    """Every entry as a number, in white where the cell is dark."""
    n_rows, _ = excerpt.values.shape
    for (row, column), value in np.ndenumerate(excerpt.values):
        axes.text(
            (column + 0.5) * cell[0],
            (n_rows - row - 0.5) * cell[1],
            excerpt.number(float(value)),
            fontsize=7.5,
            color="white" if abs(value) > 0.6 * excerpt.largest else "black",
            ha="center",
            va="center",
        )


def _cell(excerpt: _Excerpt, value: float) -> str:
    mark = shade(abs(value) / excerpt.largest) if excerpt.largest else " "
    return f" {excerpt.number(value):>7}{mark}"
