"""Where a new run may be made, and how one that is there makes way."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from pvml.atomic import is_alive
from pvml.errors import RunDirError
from pvml.runs.json_object import read_json
from pvml.runs.layout import CONFIG, FORMAT
from pvml.runs.lock import lock_holder

_OLD = ".old-"


def require_free(path: Path, overwrite: bool) -> None:
    """Nothing, if a run may be made here. Only our own run directories are ever overwritten.

    A run that a killed `--overwrite` left hidden is put back first.

    Raises: RunDirError that says what is there, and what to do.
    """
    put_back(path)
    if not path.exists() and not path.is_symlink():
        return
    if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
        return
    if path.is_symlink() or not _is_ours(path):
        raise RunDirError(
            f"{path} exists and is not a run directory of this program, so it is left alone: "
            f"--name gives the run another name"
        )
    if not overwrite:
        raise RunDirError(
            f"{path} already holds a run: --resume continues it, --overwrite removes it and "
            f"starts anew, --name gives the new run another name"
        )
    holder = lock_holder(path)
    if holder is not None:
        raise RunDirError(
            f"{path} is being trained by {holder}, so it is not overwritten: stop it first, or "
            f"give the new run another --name"
        )


@contextmanager
def out_of_the_way(path: Path) -> Iterator[Callable[[bool], None]]:
    """A call that moves what is at `path` aside: removed on leaving, put back on failure."""
    aside = path.with_name(f".{path.name}{_OLD}{os.getpid()}")

    def clear(overwrite: bool) -> None:
        require_free(path, overwrite)  # again: another process may have made a run here meanwhile
        if path.exists():
            os.rename(path, aside)

    try:
        yield clear
    except BaseException:
        if aside.exists() and not path.exists():
            os.rename(aside, path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def put_back(path: Path) -> None:
    """A run that was moved aside, by a process that was killed before its own took the place.

    Where something is at `path`, or that process is alive, nothing is done.
    """
    if path.exists() or path.is_symlink():
        return
    with suppress(OSError):  # read only, say: then it stays where it is, and `path` is empty
        for aside in sorted(path.parent.glob(f".{escape(path.name)}{_OLD}*")):
            if _is_ours(aside) and not is_alive(aside.name.rpartition("-")[2]):
                os.rename(aside, path)
                return


def _is_ours(path: Path) -> bool:
    with suppress(RunDirError):
        return read_json(path / CONFIG).get("format") == FORMAT
    return False
