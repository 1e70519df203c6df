"""One process trains a run: a lock that the system takes back when its holder dies, however.

It is advisory, and only where the system has `flock` (not on Windows, nor on every network disk):
elsewhere two processes are not kept apart.
"""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

from pvml.errors import RunDirError
from pvml.runs.layout import LOCK

_PATIENCE_S = 1.0
"""A listing looks at the lock for a moment, and must not keep a training from starting."""
_LONGEST = 200


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Within it, no other process (nor another part of this one) can lock the same run.

    Raises: RunDirError naming the process that has the lock, or if the disk refuses.
    """
    path = run / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RunDirError(
            f"{path} could not be written ({error.strerror or error}), so {run} cannot be "
            f"trained: give a folder that can be written"
        ) from error
    try:
        patience = time.monotonic() + _PATIENCE_S
        while not _take(handle, exclusive=True):
            if time.monotonic() > patience:
                raise RunDirError(
                    f"{run} is being trained by {_read(handle)}: wait for it to end or stop it, "
                    f"or give a new run another --name"
                )
            time.sleep(0.02)
        with suppress(OSError):  # a full disk: the name of the holder is a courtesy
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
        with suppress(OSError):
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def lock_holder(run: Path) -> str | None:
    """Who trains this run now, such as "process 4711 on mercury"; None if nobody does."""
    try:
        handle = os.open(run / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if _take(handle, exclusive=False) else _read(handle)
    finally:
        os.close(handle)


def _take(handle: int, *, exclusive: bool) -> bool:
    """Whether the lock is ours, or cannot be had on this system at all."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _read(handle: int) -> str:
    text = os.pread(handle, _LONGEST, 0).decode(errors="replace").strip()
    return text if text.isprintable() and text else "another process"
