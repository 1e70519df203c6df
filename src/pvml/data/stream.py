"""All documents as one stream of token ids, each document followed by one end-of-text.

The stream on disk is in `shards.py`; cutting it into rows is in `rows.py`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from pvml.data.encoding import BLOCK, id_dtype
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError


class TokenStream:
    """The ids of documents one after the other, and where each document starts.

    It may lie in several parts, in memory or mapped from files: only what is taken is read.
    """

    def __init__(
        self,
        parts: Sequence[Integer[np.ndarray[Any, Any], " n_part"]],
        starts: Int[np.ndarray[Any, Any], " n_documents"],
        n_bytes: Int[np.ndarray[Any, Any], " n_documents"] | None = None,
        digest: str | None = None,
    ):
        """parts: the ids, cut anywhere. starts: the place (tokens) of each document's first id.

        n_bytes: size of each document's text, where it is known. digest: as `digest`, where known.

        Raises: PvmlError for ids that are no whole numbers, or below 0.
        """
        self._parts = list(parts)
        for part in self._parts:
            _require_ids(part)
        self._ends = np.cumsum([len(part) for part in self._parts])
        self._digest = digest
        self.starts = starts
        self.n_bytes = n_bytes

    @classmethod
    def of_ids(
        cls, ids: Integer[np.ndarray[Any, Any], " n_tokens"], eos_token_id: int
    ) -> "TokenStream":
        """A stream in memory, its documents told by the end-of-text after each."""
        ends = np.flatnonzero(ids == eos_token_id) + 1
        starts = np.concatenate([[0], ends]).astype(np.int64)
        return cls([ids], starts[starts < len(ids)])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def lengths(self) -> Int[np.ndarray[Any, Any], " n_documents"]:
        """Tokens of each document, its end-of-text not counted."""
        return np.diff(self.starts, append=len(self)) - 1

    @cached_property
    def digest(self) -> str:
        """32 hex digits of all ids: BLAKE2b of their bytes."""
        if self._digest is not None:
            return self._digest
        digest = hashlib.blake2b(digest_size=16)
        for part in self._parts:
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def ids(self) -> Integer[np.ndarray[Any, Any], " n_tokens"]:
        """All ids as one array, in memory."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)

    def take(
        self, starts: Int[np.ndarray[Any, Any], " n"], length: int
    ) -> Integer[np.ndarray[Any, Any], "n length"]:
        """The `length` ids from each of the places on; all must lie inside the stream."""
        places = starts[:, None] + np.arange(length)
        if len(self._parts) == 1:
            return self._parts[0][places]
        taken = np.empty(places.shape, self._parts[0].dtype)
        owner = np.searchsorted(self._ends, places, "right")
        for number in np.unique(owner):
            here = owner == number
            start = self._ends[number] - len(self._parts[number])
            taken[here] = self._parts[number][places[here] - start]
        return taken


def _require_ids(part: Integer[np.ndarray[Any, Any], " n_part"]) -> None:
    if part.ndim != 1 or not np.issubdtype(part.dtype, np.integer):
        raise PvmlError(
            f"token ids must be one array of whole numbers, got {part.dtype} of shape {part.shape}"
        )
    # of unsigned ids nothing is read: a part may be a file mapped to memory
    if np.issubdtype(part.dtype, np.signedinteger) and part.size and part.min() < 0:
        raise PvmlError(f"token ids count from 0, got {part.min()} among them")


def token_stream(tokenizer: Tokenizer, documents: Iterable[str], block: int = BLOCK) -> TokenStream:
    """The ids of all documents in order, in memory; 2 or 4 bytes a token.

    The number of documents tokenised at once, `block`, changes no id.
    """
    # A bytearray grows in place: joining arrays at the end would hold a large corpus twice.
    ids, lengths, n_bytes = bytearray(), bytearray(), bytearray()
    for tokenised in tokenizer.blocks(documents, block):
        ids += tokenised.ids.data
        lengths += tokenised.lengths.data
        n_bytes += tokenised.n_bytes.data
    ends = np.cumsum(np.frombuffer(lengths, np.int64))
    starts = np.concatenate([np.zeros(1, np.int64), ends])[: len(ends)]
    part = np.frombuffer(ids, id_dtype(tokenizer.d_vocab))
    return TokenStream([part], starts, np.frombuffer(n_bytes, np.int64))
