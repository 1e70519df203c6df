"""The small language that plots are written in: a header that names the cast, then text.

A header line gives a role and what it asks `cast` for: `gift: toy`; or words to pick from:
`bag: = box | sack`. In the text, `[this|that]` picks one alternative (they nest), `<once>` stands
for a shared phrase, `{gift}` for a role and `{gift.a}` for one of its forms. A blank line starts a
paragraph; other line breaks are spaces. Which roles and forms there are lives in `cast`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pvml.errors import PvmlError


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot, ready to be told: whom to cast, and a text with choices to make."""

    name: str
    """The plot's name, for messages."""
    roles: tuple[tuple[str, str | tuple[str, ...]], ...]
    """(role, what it asks for or the words to pick from), in the order in which they are cast."""
    parts: tuple[Any, ...]
    """The text as `expand` reads it: a str is itself, a tuple a choice between such texts."""


def parse_plot(name: str, source: str, phrases: Mapping[str, str]) -> Plot:
    """The plot that `source` describes.

    Raises: PvmlError for a bad header line, an unknown phrase or an unmatched bracket.
    """
    header, _, body = source.strip().partition("\n\n")
    paragraphs = (" ".join(paragraph.split()) for paragraph in body.split("\n\n"))
    text = re.sub(
        r"<(\w*)>", lambda found: _phrase(name, found[1], phrases), "\n\n".join(paragraphs)
    )
    (parts,) = _parse_choice(name, iter(re.split(r"([\[|\]])", text)), nested=False)
    return Plot(name=name, roles=_parse_header(name, header), parts=parts)


def _parse_header(plot: str, header: str) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    roles: list[tuple[str, str | tuple[str, ...]]] = []
    for line in header.splitlines():
        role, colon, asks = (piece.strip() for piece in line.partition(":"))
        if not (role.isidentifier() and colon and asks):
            raise PvmlError(f"plot {plot}: expected `role: what it asks for`, got {line!r}")
        if asks.startswith("="):
            roles.append((role, tuple(word.strip() for word in asks[1:].split("|"))))
        else:
            roles.append((role, asks))
    return tuple(roles)


def _phrase(plot: str, name: str, phrases: Mapping[str, str]) -> str:
    if name not in phrases:
        raise PvmlError(f"plot {plot}: unknown phrase <{name}>, expected one of {sorted(phrases)}")
    return phrases[name]


def _parse_choice(plot: str, tokens: Iterator[str], nested: bool) -> tuple[tuple[Any, ...], ...]:
    alternatives: list[list[Any]] = [[]]
    for token in tokens:
        if token == "[":
            alternatives[-1].append(_parse_choice(plot, tokens, nested=True))
        elif token in ("|", "]") and not nested:
            raise PvmlError(f"plot {plot}: a {token!r} outside brackets")
        elif token == "|":
            alternatives.append([])
        elif token == "]":
            return tuple(map(tuple, alternatives))
        elif token:
            alternatives[-1].append(token)
    if nested:
        raise PvmlError(f"plot {plot}: a '[' is never closed")
    return tuple(map(tuple, alternatives))


def expand(parts: tuple[Any, ...], random: Callable[[], float], out: list[str]) -> None:
    """Append to `out` the text of `parts`, each choice made by one call of `random`."""
    for part in parts:
        if type(part) is str:
            out.append(part)
        else:
            expand(part[int(random() * len(part))], random, out)
