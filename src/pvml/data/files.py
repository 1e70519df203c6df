"""Documents out of files: .txt, .jsonl and .parquet, also compressed, one file or a folder.

Every error names the file and, where there is one, the line. What is a corpus is in `sources.py`.
"""

import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

import zstandard

from pvml.data.byte_level import END_OF_TEXT, require_unicode
from pvml.data.cutting import SIZE, cut_lines
from pvml.errors import PvmlError

KINDS = ".txt and .jsonl (each also .gz, .xz or .zst), .parquet"
_COMPRESSIONS = ("", ".gz", ".xz", ".zst")
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError)


@dataclass(kw_only=True)
class Tally:
    """What reading left out or did to the texts, counted."""

    empty: int = 0
    """Documents without a printable character, skipped."""
    other_files: int = 0
    """Files of a folder that are hidden or of other kinds, passed over."""
    cut_files: int = 0
    """Text files without an end-of-text mark, cut by us."""
    cut_documents: int = 0
    """Documents that these were cut into, as far as they were read."""

    def notes(self) -> list[str]:
        """The counts that are not 0, as sentences."""
        sentences = {
            f"Empty documents skipped: {self.empty:,}.": self.empty,
            f"Files of other kinds passed over: {self.other_files:,}.": self.other_files,
            f"Text without {END_OF_TEXT} between its documents (files: {self.cut_files:,}) was cut "
            f"at blank lines or line ends into {self.cut_documents:,} documents of about {SIZE:,} "
            f"characters. To keep documents whole, put {END_OF_TEXT} between them, or give .jsonl, "
            f'a line {{"text": ...}} for each.': self.cut_files,
        }
        return [sentence for sentence, count in sentences.items() if count]


def read_documents(path: Path, tally: Tally) -> Iterator[str]:
    """The documents of a file, or of a folder's files in sorted order; empty ones are counted.

    Raises: PvmlError naming file and line for whatever cannot be read.
    """
    for file in files_of(path, tally):
        for text in _READERS[_kind_of(file)[0]](file, tally):
            if text.strip():
                yield text
            else:
                tally.empty += 1


def files_of(path: Path, tally: Tally) -> list[Path]:
    """The files that `read_documents` reads, in its order.

    Raises: PvmlError for a pipe or a device, or a folder without a file of a known kind.
    """
    if not path.is_dir():
        _require_file(path)
        return [path]
    found = [file for file in path.rglob("*") if not file.is_dir()]
    usable = [file for file in found if _usable(file, file.relative_to(path))]
    if not usable:
        raise PvmlError(f"{path} holds no file of a known kind; known are {KINDS}")
    tally.other_files += len(found) - len(usable)
    return sorted(usable, key=lambda file: file.relative_to(path).as_posix())


def _usable(file: Path, relative: Path) -> bool:
    if any(part.startswith(".") for part in relative.parts) or _known_kind(relative) is None:
        return False
    # a link to nothing is kept, so that it is told; a pipe is waited for, for ever
    return file.is_file() or not file.exists()


def _require_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise PvmlError(f"{path} is a pipe or a device, not a file: give a file or a folder")


def _kind_of(path: Path) -> tuple[str, str]:
    kind = _known_kind(path)
    if kind is None:
        raise PvmlError(f"{path} is of no known kind; known are {KINDS}")
    return kind


def base_name(path: Path) -> str:
    """A file's name without the suffixes of its kind; a folder's whole name."""
    kind = None if path.is_dir() else _known_kind(path)
    return path.name[: -len("".join(kind))] if kind else path.name


def _known_kind(path: Path) -> tuple[str, str] | None:
    """The format and the compression that a file's name tells, such as (".jsonl", ".xz")."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return ".parquet", ""
    for form in (".txt", ".jsonl"):
        for compression in _COMPRESSIONS:
            if name.endswith(form + compression):
                return form, compression
    return None


def _read_text(path: Path, tally: Tally) -> Iterator[str]:
    mark = END_OF_TEXT.encode()
    marked = any(mark in raw for _, raw in _raw_lines(path))
    lines = (line.replace("\r\n", "\n") for _, line in _lines(path))
    if marked:
        yield from _between_marks(lines)
        return
    for number, document in enumerate(cut_lines(lines), 1):
        if number > 1:  # counted while reading, which a limit may end
            tally.cut_files += number == 2
            tally.cut_documents += 2 if number == 2 else 1
        yield document


def _between_marks(lines: Iterator[str]) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        *ends, rest = line.split(END_OF_TEXT)
        for end in ends:
            yield "".join([*held, end]).strip("\n")
            held = []
        held.append(rest)
    # After the last mark of a file usually nothing follows; that is no empty document.
    last = "".join(held)
    if last.strip():
        yield last.strip("\n")


def _read_jsonl(path: Path, tally: Tally) -> Iterator[str]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PvmlError(f"{place} is not JSON: {error}") from error
        if not isinstance(row, dict) or "text" not in row:
            raise PvmlError(f'{place} is not an object with a "text": {line.strip()[:80]}')
        yield _string(row["text"], place)


def _read_parquet(path: Path, tally: Tally) -> Iterator[str]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise PvmlError(
            f'{path} needs pyarrow to be read: pip install "pvml[hub]", or give .jsonl'
        ) from error
    try:
        with ParquetFile(path) as table:
            columns = table.schema_arrow.names
            if "text" not in columns:
                raise PvmlError(f'{path} has no column "text"; it has {", ".join(columns)}')
            row = 0
            for batch in table.iter_batches(columns=["text"]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield _string(value, f"{path}, row {row}")
    except (OSError, ArrowException, UnicodeDecodeError) as error:
        raise PvmlError(f"{path} cannot be read as parquet: {error}") from error


_READERS = {".txt": _read_text, ".jsonl": _read_jsonl, ".parquet": _read_parquet}


def _string(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise PvmlError(f'{place}: "text" must be a string, got {type(value).__name__}')
    try:
        require_unicode(value)
    except PvmlError as error:
        raise PvmlError(f"{place}: {error}") from None
    return value


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, decompressed and decoded."""
    for number, raw in _raw_lines(path):
        yield number, _decoded(raw, path, number)


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _open(path) as file:
            for raw in file:
                number += 1
                yield number, raw
    except _DAMAGE as error:
        raise PvmlError(
            f"{path} is damaged or cut short after line {number} ({error}): fetch it again"
        ) from error
    except OSError as error:
        raise PvmlError(f"{path} cannot be read: {error.strerror or error}") from error


def _open(path: Path) -> BufferedIOBase:
    match _kind_of(path)[1]:
        case ".gz":
            return gzip.open(path)
        case ".xz":
            return lzma.open(path)
        case ".zst":
            return BufferedReader(_Zstandard(path))
    return path.open("rb")


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise PvmlError(
            f"{path}, line {number} is not UTF-8: byte {raw[error.start]:#04x} at place "
            f"{error.start + 1} of the line"
        ) from error


class _Zstandard(RawIOBase):
    """A zstandard file, decompressed; unlike the library's reader it notices a missing end."""

    def __init__(self, path: Path):
        self._file = path.open("rb")
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and self._refill():
            pass
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _refill(self) -> bool:
        packed = (self._frame.unused_data if self._frame.eof else b"") or self._file.read(1 << 18)
        if not packed:
            if not self._frame.eof:
                raise EOFError("the end of the compressed data is missing")
            return False
        if self._frame.eof:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._ready = self._frame.decompress(packed)
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
