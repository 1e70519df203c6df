"""The Markdown page of `pvml compare --page FILE`: a table, then each prompt's texts.

Names, prompts and texts are data, whatever signs are in them: nothing of them becomes markup.
"""

import re
import shlex
import textwrap
from collections.abc import Sequence

from pvml.cli.compare import COLUMNS, COLUMNS_EXPLAINED, CompareFlags, Writer, prompt_told

_WIDTH = 80
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|&~$]")


def page(writers: Sequence[Writer], flags: CompareFlags, command: Sequence[str]) -> str:
    """The whole page. command: the words that made it."""
    parts = [
        "# Samples compared",
        f"Written by {code(' '.join(map(_quoted, command)))}.",
        f"{_line(flags.settings())}.",
        table(writers),
        COLUMNS_EXPLAINED,
    ]
    for prompt in flags.prompts if flags.n_texts else ():
        parts.append(f"## {_line(prompt_told(prompt))} ...")
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
    fence = _fence(text, 3)
    lines = [
        textwrap.fill(
            _visible(line.expandtabs()), _WIDTH, break_long_words=False, break_on_hyphens=False
        )
        for line in text.split("\n")
    ]
    return "\n".join([f"{fence}text", *lines, fence])


def code(line: str) -> str:
    """A line as a span of code, between more backticks than it has in a row."""
    fence = _fence(line, 1)
    room = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{room}{line}{room}{fence}"


def _fence(text: str, least: int) -> str:
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))


def _quoted(word: str) -> str:
    """The word for a shell, on one line: bash's $'...' where it has signs that are not seen."""
    if word.isprintable():
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_visible(plain)}'"


def _visible(text: str) -> str:
    r"""The text with escapes, as \x1b, for signs that are not seen."""
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text)


def _escaped(sign: str) -> str:
    number = ord(sign)
    if 0xDC80 <= number <= 0xDCFF:  # a byte of the command line that was no UTF-8
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return sign.encode("unicode_escape").decode()
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _line(text: str) -> str:
    """Words that may stand in a heading or a cell: on one line, with no markup in them."""
    return _MARKUP.sub(r"\\\g<0>", _visible(" ".join(text.split())))
