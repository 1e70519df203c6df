"""Flags out of dataclasses: a field is a flag, the text under it is its help.

Files that define such a class import no torch, so that `--help` answers at once.
"""

import inspect
import os
import shutil
from collections.abc import Sequence
from typing import TypeVar

import tyro

Flags = TypeVar("Flags")
_NARROWEST = 20
"""Columns; in fewer than 8 the parser's help never ends."""


def parse(flags: type[Flags], command: str, arguments: Sequence[str]) -> Flags:
    """What the arguments of `pvml COMMAND` say; a field that is a dataclass adds its own flags.

    Raises: SystemExit with 0 after --help and 2 after a message about what cannot be understood.
    """
    if shutil.get_terminal_size().columns < _NARROWEST:
        os.environ["COLUMNS"] = str(_NARROWEST)
    about, _, _ = (inspect.getdoc(flags) or "").partition("\n\nRaises:")
    return tyro.cli(
        flags,
        prog=f"pvml {command}",
        description=about,
        args=list(arguments),
        config=(tyro.conf.OmitArgPrefixes,),
    )
