"""One long text cut into documents where nobody marked them, so that some can be held out."""

from collections.abc import Iterable, Iterator
from itertools import chain

SIZE = 2000


def cut_text(text: str, size: int = SIZE) -> list[str]:
    """Documents of about `size` characters, cut at blank lines; newlines at the cuts are dropped.

    A stretch of twice the size without a blank line is cut at line ends, or else at spaces.
    """
    return list(cut_lines(_parts(text, "\n"), size))


def cut_lines(lines: Iterable[str], size: int = SIZE) -> Iterator[str]:
    """What `cut_text` makes of the lines joined; no more of them is held than a document needs.

    lines: each but the last ends with its newline.
    """
    paragraphs = _paragraphs(lines, 2 * size)
    short: list[str] = []
    for first in paragraphs:
        if not isinstance(first, str) or sum(map(len, short)) + len(first) > size:
            paragraphs = chain(short, [first], paragraphs)
            break
        short.append(first)
    else:
        yield "".join(short).strip("\n")
        return
    for piece in _gathered(paragraphs, size, ("\n", " ")):
        yield piece.strip("\n")


def _gathered(
    parts: Iterable[str | Iterable[str]], size: int, breaks: tuple[str, ...]
) -> Iterator[str]:
    """Parts joined up to the size; one of twice the size is cut at the next kind of break."""
    current = ""
    for part in parts:
        if isinstance(part, str) and len(part) < 2 * size:
            current += part
            if len(current) >= size:
                yield current
                current = ""
            continue
        if current.strip():
            yield current
        current = ""
        if isinstance(part, str) and not breaks:
            yield part
        else:
            smaller = _parts(part, breaks[0]) if isinstance(part, str) else part
            yield from _gathered(smaller, size, breaks[1:])
    if current.strip():
        yield current


def _paragraphs(lines: Iterable[str], long: int) -> Iterator[str | Iterable[str]]:
    """Each paragraph with its blank line; one of `long` characters or more as its lines."""
    lines = iter(lines)
    held: list[str] = []
    length = 0
    for line in lines:
        held.append(line)
        length += len(line)
        ended = line == "\n" and len(held) > 1
        if length >= long:
            yield held if ended else chain(held, _to_blank(lines))
        elif ended:
            yield "".join(held)
        else:
            continue
        held, length = [], 0
    yield "".join(held)


def _to_blank(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line == "\n":
            return


def _parts(text: str, end: str) -> list[str]:
    """The text in parts that each keep their end."""
    *ended, last = text.split(end)
    return [part + end for part in ended] + [last]
