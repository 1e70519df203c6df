"""What figures share: how one is made and saved, and token texts as labels that can be drawn."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from pvml.atomic import replacing


def figure(width: float, height: float, n_axes: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure of so many inches, with its axes side by side.

    It belongs to nobody else: pyplot would keep it alive, and might look for a screen.
    """
    made = Figure(figsize=(width, height), layout="constrained")
    return made, list(made.subplots(1, n_axes, squeeze=False)[0])


def save(made: Figure, path: Path) -> Path:
    """The figure as a PNG file, whole or not at all.

    Raises: RunDirError if the file cannot be written.
    """
    with replacing(path) as partial:
        path.parent.mkdir(parents=True, exist_ok=True)
        # tight: a square grid with long labels would otherwise push its title off the page
        made.savefig(partial, format="png", dpi=150, bbox_inches="tight")
    return path


def labels(texts: Iterable[str]) -> list[str]:
    """Each token's text on one line: a dot for a space, an escape for what the font cannot draw."""
    return ["".join(_drawable(sign) for sign in text) or "''" for text in texts]


def _drawable(sign: str) -> str:
    if sign == " ":
        return "·"
    if sign.isprintable() and ord(sign) in _signs_of_the_font():
        return sign
    return sign.encode("unicode_escape").decode()


@cache
def _signs_of_the_font() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())
