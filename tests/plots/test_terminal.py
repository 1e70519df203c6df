"""Pictures in text: every line has the width it should, and marks are as long as their numbers."""

import pytest
from rich.cells import cell_len

from pvml.errors import PvmlError
from pvml.plots.terminal import (
    bar,
    fitted,
    height,
    require_width,
    shade,
    shown,
    signed_bar,
    widest,
)


def test_tokens_are_made_visible() -> None:
    """Spaces are dots, what steers a terminal or hides is an escape, other scripts stay."""
    texts = [" cat", "\n", "\x1b[31m", "\u202e", "中", "\ud800", ""]

    assert [shown(text) for text in texts] == [
        "·cat",
        "\\n",
        "\\x1b[31m",
        "\\u202e",
        "中",
        "\\ud800",
        "''",
    ]


@pytest.mark.parametrize(
    "text", ["", "cat", "catalogue", "中文中文中文", "a中a中a中", "e\u0301" * 9]
)
def test_a_line_fits_its_cells(text: str) -> None:
    """Short or long, narrow or wide: exactly six cells, and an ellipsis only where it was cut."""
    line = fitted(text, 6)

    assert cell_len(line) == 6
    assert ("…" in line) == (cell_len(text) > 6)


def test_a_line_may_stand_on_the_right() -> None:
    """Numbers are filled up from the left."""
    assert fitted("1.5", 5, right=True) == "  1.5"


def test_widest() -> None:
    """The widest line decides, up to the most that is allowed; no line takes nothing."""
    assert widest(["a", "中文"], 9) == 4
    assert widest(["a", "long"], 3) == 3
    assert widest([], 3) == 0


def test_bars_are_as_long_as_their_numbers() -> None:
    """Halves of a cell; minus goes left of the middle; a share beyond 1 fills the bar."""
    bars = [bar(share, 4) for share in (0.0, 0.5, 0.625, 1.0, 2.0)]

    assert bars == ["", "██", "██▌", "████", "████"]
    assert signed_bar(3.0, 4.0, 2) == "  │█▌"
    assert signed_bar(-3.0, 4.0, 2) == "▐█│  "
    assert signed_bar(0.0, 0.0, 2) == "  │  "


def test_shades_and_heights() -> None:
    """Quarters of dark, eighths of height; a trace is a low line, not an empty cell."""
    assert [shade(share) for share in (0.0, 0.1, 0.125, 0.5, 1.0)] == [" ", " ", "░", "▒", "█"]
    assert [height(share) for share in (0.0, 0.01, 0.5, 1.0)] == [" ", "▁", "▄", "█"]


def test_a_narrow_terminal_is_refused() -> None:
    """Below 60 cells there is no room for labels and marks."""
    require_width(60)
    with pytest.raises(PvmlError, match="at least 60, got 20"):
        require_width(20)
