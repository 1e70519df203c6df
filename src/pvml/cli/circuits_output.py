"""How `pvml circuits` tells things: tables and pictures in text, JSON, files, progress.

Text is plain: no colour, 80 columns into a pipe, and signs that any terminal has where this one
lacks those of the pictures.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pvml.cli.flags import require_file
from pvml.errors import PvmlError

_NARROWEST = 60
"""Columns; pictures in text take no fewer."""
_PLAIN: dict[str, str] = {
    **dict.fromkeys("█▇▆▅", "#"),
    **dict.fromkeys("▓▄▌▐", "+"),
    **dict.fromkeys("▒▃▂", "-"),
    **dict.fromkeys("░▁·", "."),
    **{"│": "|", "…": "~", "–": "-", "×": "x", "±": "+-", "≤": "<="},
    "\N{NO-BREAK SPACE}": " ",
}
"""What stands for the signs of pictures in text where the terminal has none of them."""


def width() -> int:
    """Columns to write in: the terminal's, or 80 into a pipe."""
    return max(_NARROWEST, Console().width)


def say(text: str = "") -> None:
    """Print a text, its pictures in plain signs where the terminal's encoding lacks theirs."""
    try:
        "█±".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = "".join(_PLAIN.get(sign, sign) for sign in text)
    print(text, flush=True)


def told(text: str, indent: int = 0) -> str:
    """A text of many sentences, each of its lines wrapped and set further in than the next."""
    lines = []
    for line in text.splitlines():
        before = " " * (indent + len(line) - len(line.lstrip()))
        lines += _wrapped(line.strip(), before) or [""]
    return "\n".join(lines)


def _wrapped(line: str, before: str) -> list[str]:
    import textwrap

    return textwrap.wrap(
        line,
        width(),
        initial_indent=before,
        subsequent_indent=f"{before}  ",
        break_on_hyphens=False,
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]) -> str:
    """Rows under headings, numbers to the right. left: headings whose columns stand on the left."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    for heading in headings:
        made.add_column(
            Text(heading),
            justify="left" if heading in left else "right",
            overflow="fold",
        )
    for row in rows:
        made.add_row(*map(Text, row))
    console = Console(file=StringIO(), width=width(), color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(made)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def p_of(p: float) -> str:
    """A probability in six signs at most."""
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def null_of(mean: float, spread: float) -> str:
    """A null's mean and spread."""
    return f"{mean:z.2f} ± {spread:.2f}"


def print_json(found: dict[str, Any]) -> None:
    """One JSON object; null for what is no number."""
    from pvml.runs.json_object import to_json

    print(to_json(found))


def require_picture(path: Path | None, flag: str = "--plot") -> None:
    """Complain about a picture's path before anything is computed.

    Raises: PvmlError for another ending than .png or .svg, or a place that cannot be written.
    """
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".svg"):
        raise PvmlError(f"{flag} must end in .png or .svg, got {str(path)!r}")
    require_file(path, "the picture", flag)


def say_drawn(*paths: Path) -> None:
    """Tell which pictures were written."""
    say()
    for path in paths:
        say(f"picture: {path}")


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, told what is done, how much of it, of how much.

    Where stderr is no terminal: a line there for each thing that is begun.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        begun: set[str] = set()

        def begin(what: str, done: int, of: int) -> None:
            if what not in begun:
                begun.add(what)
                _begins(f"{what}, {of:,} in all")

        yield begin
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        yield tell


def waiting(what: str) -> AbstractContextManager[Any]:
    """A line on stderr: for as long as it takes where that is a terminal, and else to stay."""
    console = Console(stderr=True)
    if console.is_terminal:
        return console.status(what)
    _begins(what)
    return nullcontext()


def _begins(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)
