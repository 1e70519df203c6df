"""One long text cut into documents where nobody marked them, so that some can be held out."""

SIZE = 2000
_BREAKS = ("\n\n", "\n", " ")


def cut_text(text: str, size: int = SIZE) -> list[str]:
    """Documents of about `size` characters, cut at blank lines; newlines at the cuts are dropped.

    A stretch of twice the size without a blank line is cut at line ends, or else at spaces.
    """
    return [piece.strip("\n") for piece in _cut(text, size, _BREAKS)]


def _cut(text: str, size: int, breaks: tuple[str, ...]) -> list[str]:
    if len(text) <= size or not breaks:
        return [text]
    pieces: list[str] = []
    current = ""
    for part in _parts(text, breaks[0]):
        if len(part) >= 2 * size:
            pieces += [current] if current.strip() else []
            pieces += _cut(part, size, breaks[1:])
            current = ""
            continue
        current += part
        if len(current) >= size:
            pieces.append(current)
            current = ""
    if current.strip():
        pieces.append(current)
    return pieces


def _parts(text: str, end: str) -> list[str]:
    """The text in parts that each keep their end."""
    *ended, last = text.split(end)
    return [part + end for part in ended] + [last]
