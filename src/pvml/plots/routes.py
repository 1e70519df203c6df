"""A decomposed logit as bars: what each term adds, the largest on top."""

from collections.abc import Sequence
from pathlib import Path

from pvml.errors import PvmlError
from pvml.plots.canvas import figure, save


def term_bars(values: Sequence[tuple[str, float]], title: str, path: Path) -> Path:
    """The PNG's path: a bar for each (name, value in nats), in their order, and one for their sum.

    Raises: PvmlError for no values; RunDirError if the file cannot be written.
    """
    if not values:
        raise PvmlError("there is no term to draw")
    names = [*(name for name, _ in values), "sum"]
    sizes = [*(value for _, value in values), sum(value for _, value in values)]
    made, (axes,) = figure(8.0, 1.2 + 0.3 * len(names))
    colours = ["tab:blue" if size >= 0 else "tab:red" for size in sizes[:-1]] + ["black"]
    axes.barh(range(len(names)), sizes, color=colours)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    for place, size in enumerate(sizes):
        axes.annotate(
            f"{size:+.2f}",
            (size, place),
            xytext=(4 if size >= 0 else -4, 0),
            textcoords="offset points",
            ha="left" if size >= 0 else "right",
            va="center",
            fontsize=8,
        )
    axes.margins(x=0.15)
    axes.set_xlabel("adds to the logit (nats)")
    axes.set_title(title, parse_math=False)
    return save(made, path)
