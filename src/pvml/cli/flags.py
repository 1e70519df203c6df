"""Flags out of dataclasses: a field is a flag, the text under it is its help.

Files that define such a class import no torch, so that `--help` answers at once.
"""

import inspect
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import tyro

from pvml.atomic import require_writable
from pvml.config import LARGEST_SEED
from pvml.errors import PvmlError

Flags = TypeVar("Flags")
_FILES = ("page", "plot", "save")
"""Fields whose path is a file's: `Path` forgets a slash at its end."""
_NARROWEST = 20
"""Columns; in fewer than 8 the parser's help never ends."""


def parse(flags: type[Flags], command: str, arguments: Sequence[str]) -> Flags:
    """What the arguments of `pvml COMMAND` say; a field that is a dataclass adds its own flags.

    Raises: SystemExit with 0 after --help and 2 after a message about what cannot be understood;
        PvmlError for a seed that nothing can be drawn with, or a path that is empty.
    """
    if shutil.get_terminal_size().columns < _NARROWEST:
        os.environ["COLUMNS"] = str(_NARROWEST)
    about, _, _ = (inspect.getdoc(flags) or "").partition("\n\nRaises:")
    found = tyro.cli(
        flags,
        prog=f"pvml {command}",
        description=about,
        args=list(arguments),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    _require_seed(found)
    _require_paths(flags, arguments)
    return found


def given(flags: type[Any], arguments: Sequence[str]) -> frozenset[str]:
    """The fields of a dataclass of flags that stand among the arguments, at their default or not.

    The parser takes no abbreviations, and a value that starts with -- only behind an equals sign.
    """
    words = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    named = {word.removeprefix("--").replace("-", "_") for word in words}
    positive = {name.removeprefix("no_") for name in named}
    return frozenset((named | positive) & set(_field_names(flags)))


def require_file(path: Path, what: str, flag: str) -> None:
    """Nothing, if a file can be written there: asked before the work that makes its content.

    what: what is written, in words. flag: who gave the path.

    Raises: PvmlError for a folder that is not there; RunDirError for another thing in its place, or
    a disk that refuses.
    """
    if not path.parent.is_dir():
        raise PvmlError(f"there is no folder {path.parent} for {what}: make it first")
    if path.is_dir():
        raise PvmlError(f"{path} is a folder: give {flag} the name of a file")
    require_writable(path)


def _field_names(flags: type[Any]) -> Iterator[str]:
    for field in fields(flags):
        yield field.name
        if is_dataclass(field.default_factory):
            yield from _field_names(field.default_factory)


def _require_seed(found: Any) -> None:
    for field in fields(found):
        value = getattr(found, field.name)
        if is_dataclass(value):
            _require_seed(value)
        elif field.name == "seed" and value is not None and not 0 <= value <= LARGEST_SEED:
            raise PvmlError(f"--seed must be a whole number from 0 to 2**63 - 1, got {value}")


def _require_paths(flags: type[Any], arguments: Sequence[str]) -> None:
    """An empty path is this folder to Python, and to whoever typed it a mistake."""
    for name, kind in get_type_hints(flags).items():
        flag = f"--{name.replace('_', '-')}"
        if Path not in (kind, *get_args(kind)):
            continue
        values = list(_values(flag, arguments))
        if "" in values:
            raise PvmlError(f"{flag} is empty: give a path, or . for this folder")
        if name in _FILES and any(word.endswith(os.sep) for word in values):
            raise PvmlError(f"{flag} ends in {os.sep}, as a folder's path: give the name of a file")


def _values(flag: str, arguments: Sequence[str]) -> Iterator[str]:
    for word, following in pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        if name == flag:
            yield value if equals else following
