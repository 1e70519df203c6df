"""Attention patterns as grids: a row for each reader, a column for what it reads."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from pvml.errors import PvmlError
from pvml.plots.canvas import (
    around,
    colour_scale,
    label_inches,
    labels,
    save,
    sheet,
    with_processing,
)
from pvml.plots.terminal import SHADES, fitted, require_width, shade, shown, widest

MOST_GRIDS = 144
"""Patterns in one picture."""
MOST_TOKENS = 96
"""Tokens along a side, beyond which nobody could read them."""
_LONGEST = 16
"""Signs of a token's label."""
_ALL_LABELLED = 4
"""Grids that each have their tokens along both sides; of more, only the outer ones do."""

Pattern = Float[np.ndarray[Any, Any], "posn_q posn_k"]


def attention_grids(
    patterns: Mapping[str, Pattern],
    texts: Sequence[str],
    path: Path,
    *,
    title: str = "",
    processing: Sequence[str] = (),
) -> Path:
    """The picture's path: a grid for each pattern, under its name, with the tokens as labels.

    Masked cells (the future) stay empty; the darkest cell is a share of 1. Up to four stand side by
    side; more, as all heads of a layer, in rows, whose outer grids have the labels. processing: the
    model's own, which stands under them.

    Raises: PvmlError for no pattern, one whose sides are not as long as `texts`, what are no shares
        (NaN, or outside 0 to 1), more than 144 patterns or 96 tokens, or a path that ends in
        neither .png nor .svg; RunDirError if the file cannot be written.
    """
    _require_patterns(patterns, texts)
    n = len(texts)
    if len(patterns) > MOST_GRIDS or n > MOST_TOKENS:
        raise PvmlError(
            f"{len(patterns):,} patterns of {n:,} tokens are too many for one picture, which holds "
            f"{MOST_GRIDS} of {MOST_TOKENS}: give some heads, or the last tokens only"
        )
    layout = _Layout(len(patterns), labels(texts, _LONGEST))
    made, axes = sheet(*layout.page)
    for place, (name, pattern) in enumerate(patterns.items()):
        picture = _grid(axes, layout, place, pattern)
        left, top = layout.corner(place)
        axes.text(
            left + layout.side / 2,
            top + 0.06,
            name,
            fontsize=10 if layout.each else 7.5,
            ha="center",
            va="bottom",
            parse_math=False,
        )
        _label(axes, layout, place)
    # a picture in axes takes their limits and aspect for its own
    axes.set(xlim=(0, layout.page[0]), ylim=(0, layout.page[1]), aspect="auto")
    colour_scale(made, picture, "share of the reader's attention")
    caption = "A row for each reader, a column for what it reads."
    around(made, title, with_processing(caption, processing))
    return save(made, path)


def attention_text(
    patterns: Mapping[str, Pattern], texts: Sequence[str], *, width: int = 80
) -> str:
    """The same for a terminal: a block of rows for each pattern, and what each reader reads most.

    Raises: PvmlError as `attention_grids` does, for any number of patterns; for a width below 60,
        or too many tokens for it.
    """
    require_width(width)
    _require_patterns(patterns, texts)
    names = [shown(text) for text in texts]
    label, digits = widest(names, 12), len(str(len(texts) - 1))
    before, most = digits + 1 + label + 1, 2 + digits + 1 + label + 6
    cell = 2 if before + 2 * len(texts) + most <= width else 1
    if before + cell * len(texts) + most > width:
        raise PvmlError(
            f"{len(texts):,} tokens are too many for a width of {width}, which holds "
            f"{width - before - most}: give the last tokens only, or a wider terminal"
        )
    places = [str(place).rjust(digits) for place in range(len(texts))]
    heading = [
        (" " * before + "".join(digit.ljust(cell) for digit in row)).rstrip()
        for row in zip(*places, strict=True)
    ]
    blocks = []
    for name, pattern in patterns.items():
        lines = [name, *heading]
        for reader, row in enumerate(pattern):
            cells = "".join(shade(float(share)) * cell for share in row[: reader + 1])
            read = int(np.argmax(row[: reader + 1]))
            lines.append(
                f"{places[reader]} {fitted(names[reader], label)} "
                f"{cells:{cell * len(texts)}}  {places[read]} {fitted(names[read], label)} "
                f"{row[read]:.2f}"
            )
        blocks.append("\n".join(lines))
    key = ", ".join(f"{SHADES[i]} {(2 * i - 1) / 8:.3f}" for i in range(1, len(SHADES)))
    blocks.append(
        f"rows read columns; on the right what each reads most\nshares of attention from: {key}"
    )
    return "\n\n".join(blocks)


def _require_patterns(patterns: Mapping[str, Pattern], texts: Sequence[str]) -> None:
    if not patterns:
        raise PvmlError("there is no pattern to draw")
    n = len(texts)
    for name, pattern in patterns.items():
        if pattern.shape != (n, n) or not n:
            raise PvmlError(f"the pattern {name!r} has shape {pattern.shape}, for {n} tokens")
        visible = pattern[np.tril_indices(n)]
        wrong = visible[~((visible >= -1e-5) & (visible <= 1 + 1e-5))]
        if len(wrong):
            raise PvmlError(
                f"the pattern {name!r} holds {wrong[0]:g}, and shares of attention are 0 to 1"
            )


class _Layout:
    """Where the grids lie on a page, in inches: rows of them, the first on top."""

    def __init__(self, n: int, names: Sequence[str]):
        self.names, self.each = names, n <= _ALL_LABELLED
        self.columns = n if self.each else min(12, max(4, math.ceil(n**0.5)))
        self.rows = -(-n // self.columns)
        self.n = n
        self.cell = max(0.17, 3.0 / len(names)) if self.each else max(0.1, 1.2 / len(names))
        self.size = min(9.0, 60 * self.cell)
        self.side = self.cell * len(names)
        self._label = label_inches(names, self.size) + 0.15
        beside = self._label if self.each else 0.15
        self._wide, self._high = self.side + beside, self.side + 0.28
        self.page = (
            self._label - beside + self.columns * self._wide + 0.03,
            self._label + self.rows * self._high,
        )

    def corner(self, place: int) -> tuple[float, float]:
        """A grid's upper left corner."""
        row, column = divmod(place, self.columns)
        return (
            self._label + column * self._wide,
            self._label + (self.rows - row) * self._high - 0.28,
        )

    def labelled(self, place: int) -> tuple[bool, bool]:
        """Whether the tokens stand beside a grid, and whether they stand under it."""
        return self.each or place % self.columns == 0, place + self.columns >= self.n


def _grid(axes: Axes, layout: _Layout, place: int, pattern: Pattern) -> AxesImage:
    future = np.triu(np.ones(pattern.shape, dtype=bool), 1)
    left, top = layout.corner(place)
    box = (left, left + layout.side, top - layout.side, top)
    axes.add_patch(
        Rectangle((box[0], box[2]), layout.side, layout.side, fill=False, color="#555555", lw=0.6)
    )
    return axes.imshow(
        np.ma.masked_array(pattern, future),
        vmin=0,
        vmax=1,
        cmap="Blues",
        interpolation="nearest",
        extent=box,
    )


def _label(axes: Axes, layout: _Layout, place: int) -> None:
    """The tokens beside and under a grid, where they belong there."""
    (left, top), (beside, under) = layout.corner(place), layout.labelled(place)
    # a token may be a $, which would otherwise begin a formula
    style: dict[str, Any] = {"fontsize": layout.size, "parse_math": False}
    for i, name in enumerate(layout.names):
        middle = (i + 0.5) * layout.cell
        if beside:
            axes.text(left - 0.05, top - middle, name, ha="right", va="center", **style)
        if under:
            bottom = top - layout.side - 0.05
            axes.text(left + middle, bottom, name, ha="center", va="top", rotation=90, **style)
