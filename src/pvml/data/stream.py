"""All documents as one stream of token ids, each document followed by one end-of-text.

Cutting the stream into rows is in `rows.py`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Integer, UInt
from numpy.typing import DTypeLike

from pvml.data.tokenizer import Tokenizer

BLOCK = 1000


def token_stream(
    tokenizer: Tokenizer, documents: Sequence[str], block: int = BLOCK
) -> UInt[np.ndarray[Any, Any], " n_tokens"]:
    """The ids of all documents in order, an end-of-text after each; 2 or 4 bytes a token.

    Neither `block` (documents tokenised at once) nor the number of cores changes the result.
    """
    dtype = id_dtype(tokenizer.d_vocab)
    # A bytearray grows in place: joining arrays at the end would hold a large corpus twice.
    stream = bytearray()
    for start in range(0, len(documents), block):
        ids: list[int] = []
        for document_ids in tokenizer.encode_batch(documents[start : start + block]):
            ids += document_ids
            ids.append(tokenizer.eos_token_id)
        stream += np.array(ids, dtype).tobytes()
    return np.frombuffer(stream, dtype)


def id_dtype(d_vocab: int) -> DTypeLike:
    """The smallest unsigned type that holds every id of a vocabulary."""
    return np.uint16 if d_vocab <= 1 << 16 else np.uint32


def document_lengths(
    stream: Integer[np.ndarray[Any, Any], " n_tokens"], eos_token_id: int
) -> Int[np.ndarray[Any, Any], " n_documents"]:
    """Tokens of each document of a stream, its end-of-text not counted."""
    ends = np.flatnonzero(stream == eos_token_id)
    return np.diff(ends, prepend=-1) - 1
