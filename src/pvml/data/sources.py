"""A corpus by its name: the built-in stories, files and folders, TinyStories from the hub.

What is inside a file is in `files.py`; token ids are in `rows.py`.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from pvml.data.files import KINDS, Tally, base_name, read_documents
from pvml.errors import HubUnavailable, PvmlError
from pvml.hub import offline, require_hub

STORYBOOK_SIZE = 20_000
_LARGEST_STORYBOOK = 10_000_000
STORYBOOK_SEED = 0
HUB_NAME = "roneneldan/TinyStories"
_WITHOUT_HUB = (
    "Give a file or folder (--data PATH) or the built-in stories (--data storybook); "
    "HF_HUB_OFFLINE=1 uses a copy that was downloaded before."
)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents with a name, and what was done to get them."""

    name: str
    """A word for run names and headings."""
    documents: list[str]
    """The texts, in the order of their source; none is empty."""
    notes: list[str]
    """What was skipped or cut, as sentences."""

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits of the documents and their order: SHA-256."""
        digest = hashlib.sha256()
        for document in self.documents:
            data = document.encode()
            # The length goes in first: otherwise ["ab", "c"] and ["a", "bc"] would look the same.
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
        return digest.hexdigest()


def open_corpus(spec: str, limit: int | None = None) -> Corpus:
    """The documents that a word or path asks for, at most `limit` of them.

    spec: "storybook" or "storybook:N" (N built-in stories), "tinystories" (from the hub), or a file
    or folder.

    Raises: PvmlError naming file and line for what cannot be read, or if nothing is in it;
    HubUnavailable if the hub cannot be reached.
    """
    if limit is not None and limit < 1:
        raise PvmlError(f"limit must be at least 1 document, got {limit}")
    tally = Tally()
    name, documents = _source(spec, limit, tally)
    kept = list(islice(documents, None if limit is None else min(limit, sys.maxsize)))
    if not kept:
        raise PvmlError(f"{spec} holds no document. {' '.join(tally.notes())}".strip())
    notes = tally.notes()
    if len(kept) == limit:
        notes.append(f"Reading stopped after {limit:,} documents, as asked.")
    return Corpus(name=name, documents=kept, notes=notes)


def split_documents(
    documents: Sequence[str], n_held_out: int | None, seed: int
) -> tuple[list[str], list[str]]:
    """Documents to train on, and `n_held_out` others, chosen by their content and the seed.

    n_held_out: unset, 1,000, or a tenth of the documents where that is fewer.
    The choice depends neither on the documents' order nor on how they are cut into rows. Copies of
    one text stay together, so fewer may be held out where copies do not fit; never more.

    Raises: PvmlError if either side would be empty.
    """
    if n_held_out is None:
        n_held_out = max(1, min(1000, len(documents) // 10))
    if not 1 <= n_held_out < len(documents):
        raise PvmlError(
            f"cannot hold out {n_held_out:,} of {len(documents):,} documents: hold out at least 1 "
            f"and leave at least 1, or give more documents"
        )
    digests = [
        hashlib.blake2b(
            f"{seed}\n{document}".encode(errors="surrogatepass"), digest_size=16
        ).digest()
        for document in documents
    ]
    copies: dict[bytes, int] = {}
    for digest in digests:
        copies[digest] = copies.get(digest, 0) + 1
    room, chosen = n_held_out, set()
    for digest in sorted(copies):
        if copies[digest] <= room:
            chosen.add(digest)
            room -= copies[digest]
        if not room:
            break
    if not chosen:
        raise PvmlError(
            f"cannot hold out {n_held_out:,} of {len(documents):,} documents: copies of one text "
            f"stay together, and the rarest stands here {min(copies.values()):,} times. Give "
            f"documents that differ"
        )
    pairs = list(zip(documents, digests, strict=True))
    train = [document for document, digest in pairs if digest not in chosen]
    return train, [document for document, digest in pairs if digest in chosen]


def _source(spec: str, limit: int | None, tally: Tally) -> tuple[str, Iterator[str]]:
    if spec == "tinystories":
        return spec, _from_hub(limit, tally)
    word, colon, size = spec.partition(":")
    size = size.lstrip("0") if size.isascii() and size.isdigit() else ""
    if word == "storybook" and (size or not colon):
        # the length first: Python refuses to read numbers of thousands of digits
        if len(size) > 18 or int(size or 1) > _LARGEST_STORYBOOK:
            raise PvmlError(
                f"a storybook has at most {_LARGEST_STORYBOOK:,} stories, got {spec[:80]!r}"
            )
        from pvml.data.storybook import stories

        return word, stories(STORYBOOK_SEED, int(size or STORYBOOK_SIZE))
    path = Path(spec)
    if not spec or not (path.exists() or path.is_symlink()):
        raise PvmlError(
            f"there is no corpus {spec!r}: give storybook, storybook:N, tinystories, or an "
            f"existing file or folder with {KINDS}"
        )
    # realpath, because Path.resolve raises on links that go in a circle
    return base_name(Path(os.path.realpath(path))) or "data", read_documents(path, tally)


def _from_hub(limit: int | None, tally: Tally) -> Iterator[str]:
    """TinyStories' training part; a limited number is streamed, the whole is kept on disk."""
    if not offline():
        require_hub("The data set TinyStories", instead=_WITHOUT_HUB)
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise PvmlError(
            f'tinystories needs the package datasets: pip install "pvml[hub]". {_WITHOUT_HUB}'
        ) from error
    try:
        rows = load_dataset(HUB_NAME, split="train", streaming=limit is not None)
        for batch in rows.iter(batch_size=1000):
            for text in batch["text"]:
                if text.strip():
                    yield text
                else:
                    tally.empty += 1
    except (OSError, ValueError, RuntimeError) as error:
        raise HubUnavailable(
            f"TinyStories could not be fetched from the Hugging Face hub ({error}). {_WITHOUT_HUB}"
        ) from error
