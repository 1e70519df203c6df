"""Text to token ids and back: GPT-2's vocabulary, or one trained on a corpus.

BOS is handled here and nowhere else. How the vocabularies are built is in `byte_level.py`.
"""

import codecs
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from operator import index
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import torch as t
from jaxtyping import Int
from tokenizers import Tokenizer as Backend
from torch import Tensor

from pvml.atomic import write_whole
from pvml.data.byte_level import (
    END_OF_TEXT,
    bytes_by_id,
    gpt2_backend,
    require_byte_level,
    require_unicode,
    trained_backend,
)
from pvml.data.encoding import BLOCK, Block, encoded_blocks
from pvml.errors import PvmlError

Ids = Iterable[SupportsIndex] | Tensor | np.ndarray
"""Token ids of one text: Python's or NumPy's integers, or a tensor of them."""


class Tokenizer:
    """A byte-level BPE vocabulary that gives every text back exactly.

    name is "gpt2", or "bpe:N" with N the true number of entries. `<|endoftext|>` is both BOS and
    EOS; in a text its spelling is plain text unless asked otherwise.
    """

    def __init__(self, backend: Backend, where: str = "the tokenizer given"):
        """A tokenizer over a copy of `backend`, which stays as it is.

        Raises: PvmlError naming `where`, unless it is byte-level BPE with an end-of-text token.
        """
        self._backend = Backend.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # their spelling in a text is plain text
        require_byte_level(self._backend, where)
        self.d_vocab: int = self._backend.get_vocab_size()
        self.eos_token_id: int = self._backend.get_vocab()[END_OF_TEXT]
        self.bos_token_id: int = self.eos_token_id

    @classmethod
    def gpt2(cls) -> "Tokenizer":
        """GPT-2's 50,257 entries, read from an installed package; no network is needed."""
        return _gpt2()

    @classmethod
    def train(cls, texts: Iterable[str], d_vocab: int) -> "Tokenizer":
        """A vocabulary of at most d_vocab entries learnt from texts; same texts, same result.

        A corpus too small for d_vocab gives fewer: `.d_vocab` tells the true number.

        Raises: PvmlError for a d_vocab below 257, or no text at all.
        """
        return cls(trained_backend(texts, d_vocab))

    @classmethod
    def from_spec(cls, spec: str, texts: Iterable[str] = ()) -> "Tokenizer":
        """The tokenizer that a word asks for: "gpt2", or "bpe:N" trained on texts.

        Raises: PvmlError for any other word.
        """
        if spec == "gpt2":
            return cls.gpt2()
        kind, _, size = spec.partition(":")
        # the length: Python refuses to read numbers of thousands of digits
        if kind != "bpe" or not (size.isascii() and size.isdigit()) or len(size) > 18:
            raise PvmlError(
                f"tokenizer {spec!r} is not known: give gpt2, or bpe:N with N the number of "
                f"entries to train on the corpus, such as bpe:2048"
            )
        return cls.train(texts, int(size))

    @classmethod
    def from_json(cls, text: str, where: str = "the tokenizer given") -> "Tokenizer":
        """The tokenizer that `to_json` described.

        Raises: PvmlError naming `where` for anything else.
        """
        try:
            backend = Backend.from_str(text)
        except Exception as error:  # the library raises a bare Exception
            raise PvmlError(f"{where} is damaged, or not a tokenizer.json: {error}") from error
        return cls(backend, where)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """The tokenizer in a tokenizer.json, ours or another byte-level BPE with end-of-text.

        Raises: PvmlError naming the file if it is missing, damaged or of another kind.
        """
        try:
            if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                raise OSError("it is no file, but a pipe or a device, which need not end")
            text = Path(path).read_text("utf-8")
        except FileNotFoundError as error:
            raise PvmlError(
                f"{path} is missing: put the tokenizer.json that belongs to the model there"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise PvmlError(f"{path} cannot be read as a tokenizer.json: {why}") from error
        return cls.from_json(text, str(path))

    def to_json(self) -> str:
        """The whole tokenizer as one JSON text, in the format of Hugging Face `tokenizers`."""
        return self._backend.to_str()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one tokenizer.json, whole or not at all.

        Raises: RunDirError naming the file if the disk refuses.
        """
        write_whole(Path(path), self.to_json())

    @cached_property
    def name(self) -> str:
        """What the vocabulary is called: "gpt2" for exactly that one, else "bpe:N", N entries."""
        sizes_agree = (self.d_vocab, self.eos_token_id) == (50257, 50256)
        if sizes_agree and self._backend.get_vocab() == gpt2_backend().get_vocab():
            return "gpt2"
        return f"bpe:{self.d_vocab}"

    def __deepcopy__(self, memo: object) -> "Tokenizer":
        """Itself, for it never changes: copying a model that has one copies no vocabulary."""
        return self

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, d_vocab={self.d_vocab})"

    def encode(
        self, text: str, prepend_bos: bool = False, allow_special: bool = False
    ) -> list[int]:
        """The ids of a text.

        allow_special: read the spelling `<|endoftext|>` as the token, not as plain text.

        Raises: PvmlError for what is no text, or half of a surrogate pair, which is no character.
        """
        if not isinstance(text, str):
            require_unicode(text)
        pieces = text.split(END_OF_TEXT) if allow_special else [text]
        ids = [self.bos_token_id] if prepend_bos else []
        for place, piece_ids in enumerate(self.encode_batch(pieces)):
            ids += [self.eos_token_id, *piece_ids] if place else piece_ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, as plain text without BOS; several cores work at once.

        Raises: PvmlError as `encode` does.
        """
        if isinstance(texts, str):
            raise PvmlError("texts are given as a list, got one text: [text] makes it")
        try:
            # the library would take a list among them for one text in pieces
            if not all(isinstance(text, str) for text in texts):
                raise TypeError
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            for text in texts:
                require_unicode(text)
            raise
        return [encoding.ids for encoding in encodings]

    def blocks(
        self, documents: Iterable[str], block: int = BLOCK, workers: int = 1
    ) -> Iterator[Block]:
        """What `encode_batch` gives, an end-of-text after each document, for a whole corpus.

        See `pvml.data.encoding.encoded_blocks`.
        """
        return encoded_blocks(self._backend, documents, block, workers)

    def decode(self, ids: Ids) -> str:
        """The text that ids stand for; bytes that form no character become U+FFFD.

        Raises: PvmlError naming an id outside the vocabulary.
        """
        return self._backend.decode(
            [self._known(i) for i in row_of_ids(ids)], skip_special_tokens=False
        )

    def to_tokens(self, text: str, prepend_bos: bool = True) -> Int[Tensor, "1 posn"]:
        """The ids of a text as a batch of one."""
        return t.tensor([self.encode(text, prepend_bos)], dtype=t.long)

    def to_str_tokens(self, text_or_ids: str | Ids, prepend_bos: bool = True) -> list[str]:
        """Each token's own text; a token that is part of a character shows as U+FFFD.

        prepend_bos: for a text only; ids are shown as they are.
        """
        if isinstance(text_or_ids, str):
            text_or_ids = self.encode(text_or_ids, prepend_bos)
        return [self.decode([i]) for i in row_of_ids(text_or_ids)]

    def stream(self) -> "TextStream":
        """A decoder that takes one id at a time and gives text out as soon as it is whole."""
        return TextStream(self)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that one id stands for.

        Raises: PvmlError naming an id outside the vocabulary.
        """
        return self._bytes[self._known(token_id)]

    @cached_property
    def _bytes(self) -> list[bytes]:
        return bytes_by_id(self._backend)

    def _known(self, token_id: int) -> int:
        if not 0 <= token_id < self.d_vocab:
            raise PvmlError(
                f"token id {token_id} is outside the vocabulary of {self.name}: "
                f"ids run from 0 to {self.d_vocab - 1}"
            )
        return token_id


class TextStream:
    """Decodes one id at a time; never gives out half a character.

    All that `step` and `flush` gave, joined, is what `decode` gives for the same ids.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        """The text that this id completes: empty while a character is still in pieces."""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        left = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return left


def row_of_ids(ids: Ids) -> list[int]:
    """The ids of one text as Python's numbers, a batch of one included.

    Raises: PvmlError for more than one row, or for what is no whole number.
    """
    if isinstance(ids, Tensor | np.ndarray):
        if ids.squeeze().ndim > 1:
            raise PvmlError(f"give the ids of one text, got a tensor of shape {tuple(ids.shape)}")
        ids = ids.flatten().tolist()
    try:
        return [index(i) for i in ids]
    except TypeError as error:
        raise PvmlError(f"token ids are whole numbers, got {ids!r:.60}") from error


@cache
def _gpt2() -> Tokenizer:
    return Tokenizer(gpt2_backend())
