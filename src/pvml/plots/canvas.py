"""What figures share: how one is made and saved, colours, and texts as labels that can be drawn."""

import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pvml.atomic import replacing
from pvml.errors import PvmlError
from pvml.processing.changes import described

FORMATS = ("png", "svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Told apart by the colour-blind too. Okabe and Ito 2008, "Color universal design"; no yellow."""
FOR, AGAINST, NEITHER = COLOURS[0], COLOURS[1], "#8C8C8C"
"""What is added, what is taken off, and what is neither or left over."""
DIVERGING = "RdBu"
"""Numbers of both signs, white at 0: red below, blue above. Source: ColorBrewer, colour-blind safe.
"""
STROKES = ("-", (0, (5, 1, 1, 1)), (0, (1, 1)))
"""Line styles: the next one once all colours are used."""
_MOST_INSIDE = 6
"""Entries of a legend that still leave room for the lines."""
_LONGEST_LABEL = 48
_GLYPH = 0.55
"""Mean width of a sign of the font, as a share of its size: a little more than of running text."""


def figure(width: float, height: float, n_axes: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure of so many inches, with its axes side by side.

    It belongs to nobody else: pyplot would keep it alive, and might look for a screen.
    """
    made = Figure(figsize=(width, height), layout="constrained")
    return made, list(made.subplots(1, n_axes, squeeze=False)[0])


def sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches, and over all of it axes without ticks whose unit is an inch.

    For what would be a hundred small axes, each of which takes its time.
    """
    made = Figure(figsize=(width, height))
    axes = made.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return made, axes


def colour_scale(made: Figure, picture: ScalarMappable, label: str) -> None:
    """To the right of a figure, what its colours stand for."""
    width, height = made.get_size_inches()
    high = min(2.4, 0.8 * height)
    place = made.add_axes((1 + 0.15 / width, 0.5 - high / height / 2, 0.13 / width, high / height))
    bar = made.colorbar(picture, cax=place)
    bar.set_label(textwrap.fill(label, max(12, int(high * 72 / (_GLYPH * 8.5)))), fontsize=8.5)
    bar.ax.tick_params(labelsize=8)


def label_inches(names: Iterable[str], size: float) -> float:
    """About how long the longest of some labels is, in points of `size`."""
    return _GLYPH * size / 72 * max(map(len, names), default=0)


def with_processing(caption: str, processing: Sequence[str]) -> str:
    """A caption that says, if the weights behind the figure were rewritten, how."""
    words = described(processing)
    return f"{caption} {words[0].upper()}{words[1:]}." if words else caption


def around(made: Figure, title: str, below: str, *, over: float = 0.1) -> None:
    """A title above a figure and a caption under it, each in as many lines as it needs.

    over: between the figure and its title (inches).
    """
    width, height = made.get_size_inches()
    texts: tuple[tuple[str, float, float, dict[str, Any]], ...] = (
        (title, 1 + over / height, 11, {"fontweight": "bold", "va": "bottom"}),
        (below, -0.12 / height, 8.5, {"va": "top", "linespacing": 1.35}),
    )
    for text, y, size, style in texts:
        signs = max(64, int(width * 72 / (_GLYPH * size)))
        wrapped = "\n".join(textwrap.fill(line, signs) for line in text.splitlines())
        made.text(0.5, y, wrapped, fontsize=size, ha="center", parse_math=False, **style)


def save(made: Figure, path: Path) -> Path:
    """The figure as a file, PNG or SVG by the path's ending, whole or not at all.

    The same figure makes the same bytes.

    Raises: PvmlError for another ending; RunDirError if the file cannot be written.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise PvmlError(f"figures are {' or '.join(FORMATS)} files, got {path.name!r}")
    if isinstance(made.get_layout_engine(), ConstrainedLayoutEngine):
        # laid out once and for all: each drawing would otherwise shift everything a little
        made.draw_without_rendering()
        made.set_layout_engine("none")
    # an SVG would otherwise hold the date, and names that are drawn at random
    metadata = {"Date": None} if kind == "svg" else None
    with replacing(path) as partial, matplotlib.rc_context({"svg.hashsalt": "pvml"}):
        path.parent.mkdir(parents=True, exist_ok=True)
        # tight: a square grid with long labels would otherwise push its title off the page
        made.savefig(partial, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
    return path


def save_as(made: Figure, path: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """The figure under this path in each format, whose name is added to the path.

    Raises: as `save` does.
    """
    return [save(made, path.with_name(f"{path.name}.{kind}")) for kind in formats]


def legend(axes: Axes) -> None:
    """Explain the axes' labelled lines: inside, or to the right of them if they are many."""
    handles, texts = axes.get_legend_handles_labels()
    if not handles:
        return
    if len(handles) <= _MOST_INSIDE:
        made = axes.legend(handles, texts, fontsize=9)
    else:
        made = axes.legend(handles, texts, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
        page = axes.get_figure(root=True)
        if page is not None:
            page.set_figwidth(page.get_figwidth() + 0.5 + 0.065 * max(map(len, texts)))
    for text in made.get_texts():
        text.set_parse_math(False)


def line_label(text: str) -> str:
    """A run's name as an entry of a legend: on one line, not too long, and not hidden."""
    drawn = "".join(sign if sign == " " else _drawable(sign) for sign in text)
    if len(drawn) > _LONGEST_LABEL:
        drawn = f"{drawn[: _LONGEST_LABEL // 2]}...{drawn[-_LONGEST_LABEL // 2 :]}"
    # a legend leaves out what begins with an underscore
    return f" {drawn}" if drawn.startswith("_") else drawn


def labels(texts: Iterable[str], most: int | None = None) -> list[str]:
    """Each token's text on one line: a dot for a space, an escape for what the font cannot draw.

    most: the longest label (signs); what is longer ends in an ellipsis.
    """
    return [shortened([_drawable(sign) for sign in text], most) or "''" for text in texts]


def shortened(signs: Sequence[str], most: int | None) -> str:
    """Signs put together, cut between two of them and ended in an ellipsis if they are too many."""
    whole = "".join(signs)
    if most is None or len(whole) <= most:
        return whole
    kept = ""
    for sign in signs:
        if len(kept) + len(sign) > most - 1:
            break
        kept += sign
    return f"{kept}…"


def _drawable(sign: str) -> str:
    if sign == " ":
        return "·"
    if sign.isprintable() and ord(sign) in _signs_of_the_font():
        return sign
    return sign.encode("unicode_escape").decode()


@cache
def _signs_of_the_font() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())
