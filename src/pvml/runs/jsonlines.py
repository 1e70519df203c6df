"""A log that only grows: one JSON object a line. A crash can tear the last line, and no other."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pvml.atomic import sync
from pvml.errors import RunDirError
from pvml.runs.json_object import to_json

Row = dict[str, Any]


class JsonLines:
    """The log in one file, which need not exist yet."""

    def __init__(self, path: Path):
        self.path = path
        self._ends_whole = False

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. It outlives the process at once, and a power cut after `sync`.

        Raises: RunDirError if the disk refuses.
        """
        line = (to_json(row) + "\n").encode()
        if not self._ends_whole:
            self.cut_torn_line()
        self._ends_whole = False
        with self._writing(), self.path.open("ab", buffering=0) as file:
            if file.write(line) < len(line):
                raise OSError("the disk took only a part of the row")
        self._ends_whole = True

    def __iter__(self) -> Iterator[Row]:
        """The whole rows in order; a torn last line is left out.

        Raises: RunDirError naming file and line for damage anywhere else, or if it is unreadable.
        """
        for _, row in self._placed():
            yield row

    def size(self) -> int:
        """Bytes in the log; 0 if it was never written."""
        return self.path.stat().st_size if self.path.exists() else 0

    def tail(self, n_bytes: int) -> list[Row]:
        """The whole rows that begin within the last so many bytes; a torn last line is left out.

        Raises: RunDirError naming file and place for damage among them, before the last line.
        """
        start = max(0, self.size() - n_bytes)
        return [row for _, row in self._placed(start)]

    def cut_torn_line(self) -> None:
        """Take off a last line that is not whole: the next row would be glued to it."""
        self.keep_while(lambda row: True)

    def keep_while(self, wanted: Callable[[Row], bool]) -> None:
        """Cut the log before the first row that is not wanted; a torn last line goes too.

        Raises: RunDirError naming file and line for damage before the last line, or if the disk
        refuses.
        """
        end = 0
        for after, row in self._placed():
            if not wanted(row):
                break
            end = after
        if self.path.exists() and self.path.stat().st_size > end:
            with self._writing():
                os.truncate(self.path, end)
                sync(self.path)
        self._ends_whole = True

    def sync(self) -> None:
        """Return once every row is on the disk.

        Raises: RunDirError if the disk refuses.
        """
        if self.path.exists():
            with self._writing():
                sync(self.path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunDirError(f"{self.path} could not be written: {error}") from error

    def _placed(self, start: int = 0) -> Iterator[tuple[int, Row]]:
        """Each whole row that begins at a place or later, with the place where its line ends."""
        try:
            opened = self.path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunDirError(f"{self.path} cannot be read: {error.strerror or error}") from error
        damaged = None
        with opened as file:
            end = start
            if start > 0:
                file.seek(start - 1)
                end += len(file.readline()) - 1
            for number, line in enumerate(file, start=1):
                if damaged is not None:
                    which = f"line {damaged}" if start == 0 else f"a line after byte {start:,}"
                    raise RunDirError(
                        f"{self.path} is damaged: {which} is not a JSON object. Mend or "
                        f"remove that line"
                    )
                end += len(line)
                row = _parse(line)
                if row is None:
                    damaged = number
                else:
                    yield end, row


def _parse(line: bytes) -> Row | None:
    """The row, or None for a line that is torn: no newline at its end, or no JSON object."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
