"""Which documents are held out: chosen by their content, so that no text stands on both sides."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt64

from pvml.data.sources import Fingerprint
from pvml.errors import PvmlError


@dataclass(frozen=True)
class Survey:
    """What one reading of a corpus finds; of each document 9 bytes are kept, not its text."""

    fingerprint: str
    """64 hex digits of the documents and their order."""
    n_bytes: int
    """Size of the texts (UTF-8 bytes)."""
    held_out: Bool[np.ndarray[Any, Any], " n_documents"]
    """True for the documents that are not to be trained on."""


def survey(documents: Iterable[str], n_held_out: int | None, seed: int) -> Survey:
    """The documents read once; the same are held out as by `split_documents`.

    Raises: PvmlError as `split_documents`.
    """
    fingerprint, n_bytes, hashes = _read(documents, seed)
    return Survey(fingerprint, n_bytes, _held_out(hashes, n_held_out))


def survey_beside(documents: Iterable[str], others: Iterable[str]) -> tuple[Survey, int]:
    """The documents read once, none of them held out, and how many of the others stand among them.

    The others are what is held out instead; a text that is on both sides is no test.
    """
    fingerprint, n_bytes, hashes = _read(documents, seed=0)
    of_others = np.array([_hash(other.encode(), 0) for other in others], np.uint64)
    nothing = np.zeros(len(hashes), np.bool_)
    return Survey(fingerprint, n_bytes, nothing), int(np.isin(of_others, hashes).sum())


def split_documents(
    documents: Sequence[str], n_held_out: int | None, seed: int
) -> tuple[list[str], list[str]]:
    """Documents to train on, and `n_held_out` others, chosen by their content and the seed.

    n_held_out: unset, 1,000, or a tenth of the documents where that is fewer.
    The choice depends neither on the documents' order nor on how they are cut into rows. Copies of
    one text stay together, so fewer may be held out where copies do not fit; never more.

    Raises: PvmlError if either side would be empty.
    """
    hashes = [_hash(document.encode(errors="surrogatepass"), seed) for document in documents]
    held_out = _held_out(np.array(hashes, np.uint64), n_held_out)
    return list(compress(documents, ~held_out)), list(compress(documents, held_out))


def _read(
    documents: Iterable[str], seed: int
) -> tuple[str, int, UInt64[np.ndarray[Any, Any], " n_documents"]]:
    """The documents' fingerprint, their bytes, and the hash of each."""
    fingerprint, hashes, n_bytes = Fingerprint(), array("Q"), 0
    for document in documents:
        text = document.encode()
        fingerprint.add(text)
        hashes.append(_hash(text, seed))
        n_bytes += len(text)
    return fingerprint.hexdigest(), n_bytes, np.frombuffer(hashes, np.uint64)


def _hash(text: bytes, seed: int) -> int:
    # 8 bytes of 16, which earlier versions sorted by: the same documents are held out
    return int.from_bytes(hashlib.blake2b(b"%d\n" % seed + text, digest_size=16).digest()[:8])


def _held_out(
    hashes: UInt64[np.ndarray[Any, Any], " n_documents"], n_held_out: int | None
) -> Bool[np.ndarray[Any, Any], " n_documents"]:
    """The documents of the lowest hashes whose copies all fit."""
    if n_held_out is None:
        n_held_out = max(1, min(1000, len(hashes) // 10))
    if not 1 <= n_held_out < len(hashes):
        raise PvmlError(
            f"cannot hold out {n_held_out:,} of {len(hashes):,} documents: hold out at least 1 "
            f"and leave at least 1, or give more documents"
        )
    texts, copies = np.unique(hashes, return_counts=True)
    fitting = np.flatnonzero(copies <= n_held_out)
    if not len(fitting):
        raise PvmlError(
            f"cannot hold out {n_held_out:,} of {len(hashes):,} documents: copies of one text "
            f"stay together, and the rarest stands here {int(copies.min()):,} times. Give "
            f"documents that differ"
        )
    room, chosen = n_held_out, []
    for index in fitting:
        if copies[index] <= room:
            chosen.append(index)
            room -= int(copies[index])
        if not room:
            break
    return np.isin(hashes, texts[chosen])
