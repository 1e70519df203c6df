"""Files and folders that are written whole or not at all, whatever stops the process meanwhile.

Everything is written under a temporary name in the same folder, brought to the disk, and renamed.
A link is followed; nothing but a file is ever replaced by one.
Logs that grow line by line are in `pvml.runs.jsonlines`.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from types import TracebackType

from pvml.errors import RunDirError

_PART, _REMOVED = ".part-", ".removed-"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path; the file written there takes `path`'s place on leaving, or nothing does.

    Where `path` is a link, what it leads to is replaced.

    Raises: RunDirError naming `path` if the disk refuses, or if there is something that is no file;
    what was there before is unchanged.
    """
    target = _place_of(path)
    partial = target.with_name(f".{target.name}.part")
    try:
        yield partial
        sync(partial)
        _place_of(path)  # again: something else may have come there meanwhile
        os.replace(partial, target)
        sync_folder(target.parent)
    except OSError as error:
        raise RunDirError(_refused(path, error)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Put a text into a file, whole or not at all.

    Raises: RunDirError naming the file if the disk refuses.
    """
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def require_writable(path: Path) -> None:
    """Nothing, if a file can be written there: to be asked before the work that makes its content.

    Raises: RunDirError as `replacing`.
    """
    target = _place_of(path)
    probe = target.with_name(f".{target.name}.probe-{os.getpid()}")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        raise RunDirError(_refused(path, error)) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` on leaving, with all its files, or is removed.

    One that a killed process left half made, or half removed, under this name goes first.

    Raises: RunDirError naming `path` if it exists, or if the disk refuses.
    """
    partial = path.with_name(f".{path.name}{_PART}{os.getpid()}")
    try:
        _sweep(path)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        for entry in partial.iterdir():
            (sync_folder if entry.is_dir() else sync)(entry)
        sync_folder(partial)
        os.rename(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise RunDirError(_refused(path, error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder so that it is never seen half removed: it is renamed, hidden, before.

    What cannot be removed is left: a full disk or a stubborn file must not stop the work.
    """
    hidden = path.with_name(f".{path.name}{_REMOVED}{os.getpid()}")
    with suppress(OSError):
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def is_alive(process: str) -> bool:
    """Whether a process of this number runs here; a word that is no number may be anybody's."""
    if not (process.isascii() and process.isdigit()):
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _sweep(path: Path) -> None:
    """Remove what processes that are no more left hidden beside `path`, under its name."""
    for kind in (_PART, _REMOVED):
        for left in path.parent.glob(f".{escape(path.name)}{kind}*"):
            if not is_alive(left.name.rpartition("-")[2]):
                shutil.rmtree(left, ignore_errors=True)


class HashedFile:
    """A new file that is written front to back and hashed on the way. A context manager.

    It is given to writers that hide what the disk said: `error` keeps it.
    """

    def __init__(self, path: Path):
        self.size = 0
        """Bytes written."""
        self.error: OSError | None = None
        """What the disk refused, if it did."""
        self._hash = hashlib.sha256()
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    @property
    def sha256(self) -> str:
        """The hash of what was written, in hexadecimal digits."""
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Add bytes; how many they were.

        Raises: OSError if the disk refuses.
        """
        rest = whole = memoryview(data).cast("B")
        self._hash.update(whole)
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as error:
            self.error = error
            raise
        self.size += len(whole)
        return len(whole)

    def flush(self) -> None:
        """Nothing: every write reaches the system at once."""

    def __enter__(self) -> "HashedFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)


def place_copy(source: Path, path: Path) -> None:
    """Let `path` hold what `source` holds, without copying where the file system has hard links.

    Neither file may be written in place afterwards: both may be one. `replacing` never does.

    Raises: RunDirError naming `path` if the disk refuses.
    """
    with replacing(path) as partial:
        partial.unlink(missing_ok=True)
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)


def sync(path: Path) -> None:
    """Return once the file's content is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Return once the folder's names are on the disk: a rename is lost without it."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link that leads back to itself",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _place_of(path: Path) -> Path:
    """Where a file of this path lies, or would lie: behind the links.

    Raises: RunDirError if something is there that is no file.
    """
    target = Path(os.path.realpath(path))
    try:
        kind = stat.S_IFMT(target.lstat().st_mode)
    except OSError:  # nothing there, or a folder that cannot be looked into: the write tells
        return target
    if kind != stat.S_IFREG:
        raise RunDirError(
            f"{path} is {_KINDS.get(kind, 'no file')}, and is left as it is: give the name of a "
            f"file, new or old"
        )
    return target


def _refused(path: Path, error: OSError) -> str:
    return (
        f"{path} could not be written ({error.strerror or error}); what was there before is "
        f"unchanged. Free some space, or give a folder that can be written"
    )
