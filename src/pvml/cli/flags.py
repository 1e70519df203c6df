"""Flags out of dataclasses: a field is a flag, the text under it is its help.

Files that define such a class import no torch, so that `--help` answers at once.
"""

import inspect
from collections.abc import Sequence
from typing import TypeVar

import tyro

Flags = TypeVar("Flags")


def parse(flags: type[Flags], command: str, arguments: Sequence[str]) -> Flags:
    """What the arguments of `pvml COMMAND` say; a field that is a dataclass adds its own flags.

    Raises: SystemExit with 0 after --help and 2 after a message about what cannot be understood.
    """
    about, _, _ = (inspect.getdoc(flags) or "").partition("\n\nRaises:")
    return tyro.cli(
        flags,
        prog=f"pvml {command}",
        description=about,
        args=list(arguments),
        config=(tyro.conf.OmitArgPrefixes,),
    )
