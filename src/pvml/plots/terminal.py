"""What pictures in text share: labels of a given width, bars and shades that need no colour.

Widths are in a terminal's cells: a Chinese sign takes two, an accent of its own none.
"""

import math
from collections.abc import Iterable

from rich.cells import cell_len

from pvml.errors import PvmlError

SHADES = " ░▒▓█"
"""From nothing to all, in quarters."""
_LEAST = 60
_HEIGHTS = " ▁▂▃▄▅▆▇█"


def require_width(width: int) -> None:
    """Refuse a terminal that is too narrow for a picture.

    Raises: PvmlError below 60 cells.
    """
    if width < _LEAST:
        raise PvmlError(f"a picture in text needs a width of at least {_LEAST}, got {width}")


def shown(text: str) -> str:
    """A token on one line: a dot for a space, an escape for what no terminal should be sent."""
    return "".join(map(_sign, text)) or "''"


def fitted(text: str, cells: int, *, right: bool = False) -> str:
    """A line in exactly so many cells: filled up with spaces, or cut and ended in an ellipsis."""
    if cell_len(text) > cells:
        kept = ""
        for sign in text:
            if cell_len(kept + sign) > cells - 1:
                break
            kept += sign
        text = f"{kept}…"
    space = " " * (cells - cell_len(text))
    return space + text if right else text + space


def number(value: float, largest: float) -> str:
    """A number with its sign in 7 cells at most: all beside one largest have the same decimals.

    The largest has three digits. Below 0.001 and from 10,000 on each has a power of ten.
    """
    if value and not 0.001 <= largest < 9999.5:
        for digits in (1, 0):
            mantissa, _, power = f"{value:+.{digits}e}".partition("e")
            if len(told := f"{mantissa}e{int(power)}") <= 7:
                break
        return told
    decimals = 2 - math.floor(math.log10(largest)) if largest else 2
    return f"{value:+z.{min(4, max(0, decimals))}f}"


def widest(texts: Iterable[str], most: int) -> int:
    """The cells that the widest of some lines takes, or `most` if that is less."""
    return min(most, max(map(cell_len, texts), default=0))


def shade(share: float) -> str:
    """One cell, the darker the nearer the share is to 1."""
    return SHADES[_step(share, len(SHADES) - 1)]


def height(share: float) -> str:
    """One cell, filled from below up to the share; never empty for more than nothing."""
    step = _step(share, len(_HEIGHTS) - 1)
    return _HEIGHTS[max(step, int(share > 0))]


def bar(share: float, cells: int) -> str:
    """A bar to the right, of at most so many cells, in halves of one."""
    halves = _step(share, 2 * cells)
    return "█" * (halves // 2) + "▌" * (halves % 2)


def signed_bar(value: float, largest: float, cells: int) -> str:
    """A bar from the middle, to the right for what is above 0: so many cells on either side."""
    halves = _step(abs(value) / largest if largest else 0.0, 2 * cells)
    if value < 0:
        left = ("▐" * (halves % 2) + "█" * (halves // 2)).rjust(cells)
        return f"{left}│{'':{cells}}"
    return f"{'':{cells}}│{bar(halves / (2 * cells), cells):{cells}}"


def _step(share: float, steps: int) -> int:
    """The nearest step to a share, half a step rounded up."""
    return int(min(max(share, 0.0), 1.0) * steps + 0.5)


def _sign(sign: str) -> str:
    if sign == " ":
        return "·"
    return sign if sign.isprintable() else sign.encode("unicode_escape").decode()
