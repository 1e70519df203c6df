"""The Markdown page of `pvml compare --page FILE`: a table, then each prompt's texts."""

import re
import textwrap
from collections.abc import Sequence

from pvml.cli.compare import COLUMNS, COLUMNS_EXPLAINED, CompareFlags, Writer

_WIDTH = 80


def page(writers: Sequence[Writer], flags: CompareFlags, command: str) -> str:
    """The whole page. command: the line that made it."""
    parts = [
        "# Samples compared",
        f"Written by `{command}`.",
        f"{flags.settings()}.",
        table(writers),
        COLUMNS_EXPLAINED,
    ]
    for prompt in flags.prompts if flags.n_texts else ():
        parts.append(f"## {_line(prompt) or '(no prompt)'} ...")
        for writer in writers:
            parts.append(f"### {_line(writer.name)}")
            for caption, text in writer.told(prompt, flags):
                parts += [f"{caption}.", fenced(text)]
    return "\n\n".join(parts) + "\n"


def table(writers: Sequence[Writer]) -> str:
    """The figures as a Markdown table, a line for each model."""
    rules = ["---" if heading == "model" else "---:" for heading in COLUMNS]
    rows = [[_line(show(writer)) for show in COLUMNS.values()] for writer in writers]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(COLUMNS), rules, *rows])


def fenced(text: str) -> str:
    """A text as a block that Markdown leaves alone, its lines at most 80 columns where they can be.

    The fence is longer than any row of backticks inside.
    """
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    lines = [
        textwrap.fill(line, _WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return "\n".join([f"{fence}text", *lines, fence])


def _line(text: str) -> str:
    """Words that may stand in a heading or a cell: one line, nothing that ends the cell."""
    return " ".join(text.split()).replace("|", "\\|")
