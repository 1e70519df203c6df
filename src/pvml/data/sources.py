"""A corpus by its name: the built-in stories, files and folders, TinyStories from the hub.

What is inside a file is in `files.py`; which documents are held out, in `split.py`.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from pvml.data.files import KINDS, Tally, base_name, files_of, read_documents
from pvml.errors import HubUnavailable, PvmlError
from pvml.hub import offline, require_hub

STORYBOOK_SIZE = 20_000
_LARGEST_STORYBOOK = 10_000_000
STORYBOOK_SEED = 0
HUB_NAME = "roneneldan/TinyStories"
_HUB_PARTS = {"tinystories": "train", "tinystories:validation": "validation"}
_WITHOUT_HUB = (
    "Give a file or folder (--data PATH) or the built-in stories (--data storybook); "
    "HF_HUB_OFFLINE=1 uses a copy that was downloaded before."
)

Read = Callable[[Tally], Iterator[str]]
"""Begins a reading from the first document on; what is left out is counted in the tally."""


class Corpus:
    """Documents with a name, in the order of their source; none is empty.

    Iterating reads them, each time anew, and never holds more than a few. It raises PvmlError
    naming file and line for what cannot be read, or if there is no document.
    """

    def __init__(
        self,
        name: str,
        read: Read,
        *,
        spec: str | None = None,
        limit: int | None = None,
        identity: Callable[[], str] | None = None,
    ):
        """read: as `Read`. spec: how the corpus was asked for. limit: documents to stop after.

        identity: see `Corpus.identity`; unset: the fingerprint.
        """
        self.name = name
        self.notes: list[str] = []
        """What the last reading skipped or cut, as sentences; empty before one reached the end."""
        self._spec = spec or name
        self._read = read
        self._limit = limit
        self._identity = identity

    def __iter__(self) -> Iterator[str]:
        tally, count = Tally(), 0
        stop = None if self._limit is None else min(self._limit, sys.maxsize)
        for document in islice(self._read(tally), stop):
            count += 1
            yield document
        if not count:
            raise PvmlError(f"{self._spec} holds no document. {' '.join(tally.notes())}".strip())
        self.notes = tally.notes()
        if count == self._limit:
            self.notes.append(f"Reading stopped after {self._limit:,} documents, as asked.")

    @property
    def identity(self) -> str:
        """What changes when the source does, told without reading it: sizes, times, versions."""
        return self._identity() if self._identity else self.fingerprint

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits of the documents and their order, for which they are read."""
        return fingerprint_of(self)


class Fingerprint:
    """SHA-256 of documents and their order, one after the other."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, document: bytes) -> None:
        # The length goes in first: otherwise ["ab", "c"] and ["a", "bc"] would look the same.
        self._digest.update(len(document).to_bytes(8, "big"))
        self._digest.update(document)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def fingerprint_of(documents: Iterable[str]) -> str:
    """64 hex digits of documents and their order."""
    fingerprint = Fingerprint()
    for document in documents:
        fingerprint.add(document.encode())
    return fingerprint.hexdigest()


def open_corpus(spec: str, limit: int | None = None) -> Corpus:
    """The corpus that a word or path asks for, at most `limit` documents of it, not yet read.

    spec: "storybook" or "storybook:N" (N built-in stories), "tinystories" or
    "tinystories:validation" (the hub's two parts), or a file or folder.

    Raises: PvmlError for a word or path that is no corpus; HubUnavailable if the hub cannot be
    reached.
    """
    if limit is not None and limit < 1:
        raise PvmlError(f"limit must be at least 1 document, got {limit}")
    if spec in _HUB_PARTS:
        return _from_hub(spec, limit)
    word, colon, size = spec.partition(":")
    size = size.lstrip("0") if size.isascii() and size.isdigit() else ""
    if word == "storybook" and (size or not colon):
        # the length first: Python refuses to read numbers of thousands of digits
        if len(size) > 18 or int(size or 1) > _LARGEST_STORYBOOK:
            raise PvmlError(
                f"a storybook has at most {_LARGEST_STORYBOOK:,} stories, got {spec[:80]!r}"
            )
        return _storybook(int(size or STORYBOOK_SIZE), limit)
    path = Path(spec)
    if not spec or not (path.exists() or path.is_symlink()):
        raise PvmlError(
            f"there is no corpus {spec!r}: give storybook, storybook:N, tinystories, "
            f"tinystories:validation, or an existing file or folder with {KINDS}"
        )
    return Corpus(
        # realpath, because Path.resolve raises on links that go in a circle
        base_name(Path(os.path.realpath(path))) or "data",
        lambda tally: read_documents(path, tally),
        spec=spec,
        limit=limit,
        identity=lambda: _state_of(path),
    )


def _state_of(path: Path) -> str:
    lines = []
    for file in files_of(path, Tally()):
        try:
            found = file.stat()
            lines.append(f"{os.path.realpath(file)} {found.st_size} {found.st_mtime_ns}")
        except OSError:  # told when it is read
            lines.append(f"{file} unreadable")
    return "\n".join(lines)


def _storybook(size: int, limit: int | None) -> Corpus:
    from pvml.data.storybook import stories, version

    return Corpus(
        "storybook",
        lambda tally: stories(STORYBOOK_SEED, size),
        limit=limit,
        identity=lambda: f"storybook {version()} seed {STORYBOOK_SEED} size {size}",
    )


def _from_hub(spec: str, limit: int | None) -> Corpus:
    """A part of TinyStories: little is streamed, the whole training part is kept on disk."""
    part = _HUB_PARTS[spec]
    if not offline():
        require_hub("The data set TinyStories", instead=_WITHOUT_HUB)
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise PvmlError(
            f'tinystories needs the package datasets: pip install "pvml[hub]". {_WITHOUT_HUB}'
        ) from error
    try:
        builder = load_dataset_builder(HUB_NAME)
    except (OSError, ValueError, RuntimeError) as error:
        raise _unavailable(error) from error

    @cache  # what comes over the network is fetched once, and is small
    def streamed() -> tuple[list[str], Tally]:
        tally = Tally()
        return list(islice(_hub_documents(builder, part, True, tally), limit)), tally

    def read(tally: Tally) -> Iterator[str]:
        # the validation part, 20 MB, does not need the other's gigabyte
        if limit is None and (part == "train" or offline()):
            return _hub_documents(builder, part, False, tally)
        documents, counted = streamed()
        tally.empty += counted.empty
        return iter(documents)

    identity = f"{HUB_NAME} {builder.config_id} {builder.hash}"
    return Corpus(
        spec,
        read,
        limit=limit,
        identity=lambda: identity if part == "train" else f"{identity} {part}",
    )


def _hub_documents(builder: Any, part: str, streamed: bool, tally: Tally) -> Iterator[str]:
    try:
        if streamed:
            rows = builder.as_streaming_dataset(split=part)
        else:
            builder.download_and_prepare()
            rows = builder.as_dataset(split=part, in_memory=False)
        for batch in rows.iter(batch_size=1000):
            for text in batch["text"]:
                if text.strip():
                    yield text
                else:
                    tally.empty += 1
    except (OSError, ValueError, RuntimeError) as error:
        raise _unavailable(error) from error


def _unavailable(error: Exception) -> HubUnavailable:
    return HubUnavailable(
        f"TinyStories could not be fetched from the Hugging Face hub ({error}). {_WITHOUT_HUB}"
    )
