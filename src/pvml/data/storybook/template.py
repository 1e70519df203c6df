"""The small language that plots are written in: a header that names the cast, then text.

The header gives one line to each role: `toy: toy` asks `cast` for a toy, `bag: = box | sack` picks
one of the words. In the text, `[this|that]` picks one alternative (they nest), `<once>` stands for a
shared phrase, `{toy}` for a role and `{toy.a}` for one of its forms. A blank line starts a new
paragraph; other line breaks are spaces. What roles there are lives in `cast`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

Parts = tuple["str | Choice", ...]
Choice = tuple["str | Parts", ...]  # alternatives: plain text where one is no more than that


@dataclass(frozen=True)
class Plot:
    """One plot, ready to be told: what its roles ask for, and its parsed text."""

    name: str
    """The plot's file name without its ending."""
    roles: tuple[tuple[str, str], ...]
    """(role, what it asks for), in the order in which they are cast."""
    parts: Parts
    """The text: fixed strings, and choices to be made."""


def parse_plot(name: str, source: str, phrases: Mapping[str, str]) -> Plot:
    """The plot that `source` describes.

    Raises: ValueError for an unknown phrase or an unbalanced bracket, naming the plot.
    """
    header, _, body = source.strip().partition("\n\n")
    roles = tuple((role, asks) for role, asks in _header_lines(header))
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", body)]
    text = re.sub(
        r"<(\w+)>", lambda found: _phrase(name, found[1], phrases), "\n\n".join(paragraphs)
    )
    parts, end = _parse_parts(name, text, 0, depth=0)
    return Plot(name, roles, parts)


def _header_lines(header: str) -> list[tuple[str, str]]:
    fields = (line.split(":", 1) for line in header.splitlines())
    return [(role.strip(), asks.strip()) for role, asks in fields]


def _phrase(plot: str, name: str, phrases: Mapping[str, str]) -> str:
    if name not in phrases:
        raise ValueError(f"plot {plot}: unknown phrase <{name}>, known: {', '.join(phrases)}")
    return phrases[name]
