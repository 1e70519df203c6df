"""The calls by which bytes reach a disk, listed in order, so that any one of them can go wrong.

For tests and for `kills.py`: a checkpoint must survive a failure, or a kill, at each of them.
"""

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from typing import Any
from unittest import mock

import pvml.runs.weights

_PLAIN = ("fsync", "rename", "replace", "link", "unlink", "rmdir", "mkdir", "truncate")


class WatchedDisk:
    """Within it, `calls` lists what is done to the disk, and `strike` is called at one of them.

    at: which call goes wrong, counted from 0; none unless given. A write that goes wrong has
    written its first half. lasting: every later call goes wrong too, but those that free space.
    """

    def __init__(
        self,
        at: int | None = None,
        strike: Callable[[], object] | None = None,
        lasting: bool = False,
    ):
        self.calls: list[str] = []
        self._at = at
        self._strike = strike
        self._lasting = lasting
        self._patches: list[Any] = []

    def __enter__(self) -> "WatchedDisk":
        for name in _PLAIN:
            self._patch(os, name, self._watched(name, getattr(os, name)))
        self._patch(os, "open", self._os_open(os.open))
        self._patch(os, "write", self._os_write(os.write))
        self._patch(io, "open", self._io_open(builtins.open))
        self._patch(pvml.runs.weights, "save_file", self._save_file(pvml.runs.weights.save_file))
        return self

    def __exit__(self, *error: object) -> None:
        while self._patches:
            self._patches.pop().stop()

    def _patch(self, where: Any, name: str, new: Any) -> None:
        patch = mock.patch.object(where, name, new)
        patch.start()
        self._patches.append(patch)

    def happens(self, call: str, half: Callable[[], object] | None = None) -> None:
        """A call is about to be made. half: does the first half of it."""
        self.calls.append(call)
        now = len(self.calls) - 1
        frees = call in ("unlink", "rmdir", "truncate")
        if self._at is None or self._strike is None or now < self._at:
            return
        if now == self._at or (self._lasting and not frees):
            if half is not None and now == self._at:
                half()
            self._strike()

    def _watched(self, name: str, genuine: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.happens(name)
            return genuine(*args, **options)

        return call

    def _os_open(self, genuine: Any) -> Any:
        def call(path: Any, flags: int, *args: Any, **options: Any) -> Any:
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.happens("open")
            return genuine(path, flags, *args, **options)

        return call

    def _os_write(self, genuine: Any) -> Any:
        def call(handle: int, data: Any) -> Any:
            self.happens("write", lambda: genuine(handle, data[: len(data) // 2]))
            return genuine(handle, data)

        return call

    def _io_open(self, genuine: Any) -> Any:
        def call(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if mode in ("r", "rb"):
                return genuine(file, mode, *args, **options)
            self.happens("open")
            return _WatchedFile(genuine(file, mode, *args, **options), self)

        return call

    def _save_file(self, genuine: Any) -> Any:
        def call(tensors: Any, path: Any, *args: Any, **options: Any) -> None:
            def half() -> None:
                genuine(tensors, path, *args, **options)
                with builtins.open(path, "rb+") as file:
                    file.truncate(os.path.getsize(path) // 2)

            self.happens("save_file", half)
            genuine(tensors, path, *args, **options)

        return call


class _WatchedFile:
    """An open file that tells a disk of its writes."""

    def __init__(self, file: Any, disk: WatchedDisk):
        self._file = file
        self._disk = disk

    def write(self, data: Any) -> Any:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.happens("write", half)
        return self._file.write(data)

    def __enter__(self) -> "_WatchedFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def full() -> None:
    """What a call on a full disk answers."""
    raise OSError(errno.ENOSPC, "No space left on device")


def die() -> None:
    """End this process as SIGKILL does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
