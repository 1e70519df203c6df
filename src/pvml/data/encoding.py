"""Documents to ids in bulk: every different word is tokenised once, on one core or on several.

Nothing here imports torch, so that a worker process starts quickly. One text is tokenised by
`tokenizer.py`, to the same ids.
"""

import json
import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, UInt
from numpy.typing import DTypeLike
from tokenizers import Tokenizer as Backend

from pvml.data.byte_level import END_OF_TEXT, require_unicode
from pvml.errors import PvmlError

BLOCK = 1000
_BLOCK_CHARACTERS = 1 << 20
_MOST_WORDS = 1 << 18
"""Words remembered, some 40 MB; then they are forgotten, and the common ones soon come again."""
_LONGEST_WORD = 64
"""Characters: what is longer is no word that comes again."""
_WORD = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)
"""GPT-2's pattern (openai/gpt-2, encoder.py), by which `ByteLevel` cuts, written for ASCII."""


@dataclass(frozen=True)
class Block:
    """Some documents in a row, tokenised."""

    ids: UInt[np.ndarray[Any, Any], " n_tokens"]
    """Their ids, an end-of-text after each."""
    lengths: Int[np.ndarray[Any, Any], " n_documents"]
    """Tokens of each, its end-of-text included."""
    n_bytes: Int[np.ndarray[Any, Any], " n_documents"]
    """Size of each text (UTF-8 bytes)."""


class Encoder:
    """A byte-level tokenizer that remembers the ids of the words it has met.

    Words are tokenised apart from one another, so a word has the same ids wherever it stands. Text
    that is not ASCII, where Unicode's tables decide what a word is, and tokenizers that cut words
    in another way, go through the library each time.
    """

    def __init__(self, backend: Backend):
        self.backend = backend
        self.dtype = id_dtype(backend.get_vocab_size())
        self._end = np.array([backend.token_to_id(END_OF_TEXT)], self.dtype).tobytes()
        self._words = _Words(self)
        self._cuts_as_gpt2 = _cuts_as_gpt2(backend)

    def block(self, texts: Sequence[str]) -> Block:
        """The ids of each text in turn, as plain text, and an end-of-text after each.

        Raises: PvmlError for half of a surrogate pair, which is no character.
        """
        by_word = [self._cuts_as_gpt2 and text.isascii() for text in texts]
        others = iter(
            self.ids([text for text, word in zip(texts, by_word, strict=True) if not word])
        )
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
        known, size = self._words.__getitem__, np.dtype(self.dtype).itemsize
        documents = [
            b"".join([*map(known, _WORD.findall(text)), self._end])
            if word
            else next(others) + self._end
            for text, word in zip(texts, by_word, strict=True)
        ]
        return Block(
            ids=np.frombuffer(b"".join(documents), self.dtype),
            lengths=np.array([len(document) // size for document in documents], np.int64),
            n_bytes=np.array([len(text.encode()) for text in texts], np.int64),
        )

    def ids(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, by the library, as the bytes of an array."""
        try:
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            for text in texts:
                require_unicode(text)
            raise
        return [np.array(encoding.ids, self.dtype).tobytes() for encoding in encodings]


class _Words(dict[str, bytes]):
    def __init__(self, encoder: Encoder):
        self._encoder = encoder

    def __missing__(self, word: str) -> bytes:
        ids = self._encoder.ids([word])[0]
        if len(word) <= _LONGEST_WORD:
            self[word] = ids
        return ids


def encoded_blocks(
    backend: Backend, documents: Iterable[str], block: int = BLOCK, workers: int = 1
) -> Iterator[Block]:
    """The documents tokenised some at a time, in their order; only a few are held at once.

    workers: processes that tokenise, 1 for this one alone. Their number changes no id. With more,
    the program's main module must be importable, as `multiprocessing` asks.

    Raises: PvmlError for half of a surrogate pair, or if one of the processes is ended.
    """
    groups = _groups(documents, block)
    if workers == 1:
        encoder = Encoder(backend)
        yield from map(encoder.block, groups)
        return
    # spawned, because a fork of a process with threads, such as torch's, may hang
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _begin, (backend.to_str(),)
    ) as pool:
        waiting: deque[Future[Block]] = deque()
        try:
            for texts in groups:
                waiting.append(pool.submit(_block, texts))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise PvmlError(
                "a process that tokenises was ended from outside, perhaps for want of memory: "
                "start again, with less running beside"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def id_dtype(d_vocab: int) -> DTypeLike:
    """The smallest unsigned type that holds every id of a vocabulary."""
    return np.uint16 if d_vocab <= 1 << 16 else np.uint32


def _groups(documents: Iterable[str], block: int) -> Iterator[list[str]]:
    texts: list[str] = []
    characters = 0
    for text in documents:
        texts.append(text)
        characters += len(text)
        if len(texts) >= block or characters >= _BLOCK_CHARACTERS:
            yield texts
            texts, characters = [], 0
    if texts:
        yield texts


def _cuts_as_gpt2(backend: Backend) -> bool:
    """Whether words are cut by GPT-2's pattern, and nothing is matched or changed besides."""
    saved = json.loads(backend.to_str())
    cut = saved["pre_tokenizer"] or {}
    return (
        saved["normalizer"] is None
        and (cut.get("type"), cut.get("add_prefix_space")) == ("ByteLevel", False)
        and cut.get("use_regex", True)
        and saved["model"].get("dropout") is None
        and backend.encode_special_tokens
        and all(added["special"] for added in saved["added_tokens"])
    )


_encoder: Encoder
"""A worker process's own."""


def _begin(saved: str) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that waits for this
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are shared out already
    backend = Backend.from_str(saved)
    backend.encode_special_tokens = True
    _encoder = Encoder(backend)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # killed: nobody waits for this worker any more


def _block(texts: list[str]) -> Block:
    return _encoder.block(texts)
