"""What the name of a run means, to every command and to `pvml.load`. It needs no torch."""

import os
from pathlib import Path

from pvml.bundled import bundled_folder, bundled_models
from pvml.errors import PvmlError

RUNS = Path("runs")
"""Where `pvml train` puts runs unless it is told."""
LONGEST_NAME = 200
"""Bytes of a run's name: with a seed's number, or hidden while it is made, it stays below 255."""


def named_run(word: str | os.PathLike[str], folder: Path = RUNS) -> Path:
    """The folder that a word means: itself if there is one, else that of a run in `folder`.

    So NAME is runs/NAME, and NAME/checkpoints/step-N a checkpoint in it. If there is neither, it is
    the word as a path. Whether a run lies there is not looked at.
    """
    given = Path(word)
    inside = folder / given
    return inside if not given.is_dir() and inside.is_dir() else given


def known_run(word: str | os.PathLike[str], folder: Path = RUNS) -> Path:
    """As `named_run`, and the folder of a bundled model where no run has the name: as in `load`."""
    path, name = named_run(word, folder), os.fspath(word)
    return bundled_folder(name) if not path.is_dir() and name in bundled_models() else path


def require_name(name: str, flag: str = "--name") -> None:
    """Nothing, if a run may have this name: that of one folder, shown in lists. flag: who gave it.

    Raises: PvmlError that says what is wrong with it.
    """
    # half surrogates, which bytes that are no UTF-8 become, are not printable: weights written
    # under such a name cannot be read back
    plain = name.isprintable() and not any(sign in name for sign in "/\\")
    if not plain or name in ("", ".", ".."):
        raise PvmlError(
            f"{flag} {name!r} is not the name of one folder: --run-dir says where runs lie"
        )
    if name.startswith("."):
        raise PvmlError(
            f"{flag} {name} begins with a dot: such a folder is hidden, and `pvml runs` would not "
            f"list it"
        )
    if name.startswith("-"):
        raise PvmlError(f"{flag} {name} begins with a dash: every command would take it for a flag")
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise PvmlError(
            f"{flag} {name[:40]}... has {len(os.fsencode(name))} bytes: give at most {LONGEST_NAME}"
        )
