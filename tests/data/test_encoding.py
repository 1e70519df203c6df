"""Encoding in bulk: the library's ids, by words remembered, by any number of processes."""

import json
import multiprocessing
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pvml.data import encoding
from pvml.data.byte_level import END_OF_TEXT, gpt2_backend, trained_backend
from pvml.data.encoding import Encoder, encoded_blocks
from pvml.data.sources import open_corpus
from pvml.errors import PvmlError

STORIES = list(open_corpus("storybook:60"))
CHARACTERS = [chr(code) for code in range(128)] + ["'", " ", "\n", "s", "ll", "7"] * 20
CHANGES: dict[str, Callable[[Backend], object]] = {
    "none": lambda backend: None,
    "lower-casing": lambda backend: setattr(backend, "normalizer", normalizers.Lowercase()),
    "digits apart": lambda backend: setattr(
        backend,
        "pre_tokenizer",
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ),
    "a space in front": lambda backend: setattr(
        backend, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)
    ),
    "words uncut": lambda backend: setattr(
        backend, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ),
    "an added word": lambda backend: backend.add_tokens([AddedToken("e o")]),
}


def backend_of(name: str) -> Backend:
    backend = gpt2_backend() if name == "gpt2" else trained_backend(STORIES, 307)
    backend.encode_special_tokens = True
    return backend


def one_by_one(backend: Backend, texts: list[str]) -> list[int]:
    """The ids as the library gives them, an end-of-text after each text."""
    end = backend.token_to_id(END_OF_TEXT)
    return [
        token
        for text in texts
        for token in [*backend.encode(text, add_special_tokens=False).ids, end]
    ]


def random_texts(seed: int, characters: list[str]) -> list[str]:
    dice = random.Random(seed)
    return ["".join(dice.choices(characters, k=dice.randrange(40))) for _ in range(1500)]


# By hand


def test_a_block_by_hand() -> None:
    """One byte is one token here: ids, lengths with the end-of-text, and bytes of text."""
    backend = trained_backend(["ab"], 257)
    block = Encoder(backend).block(["ab", "", "é"])
    a, b = (backend.token_to_id(letter) for letter in "ab")
    end = backend.token_to_id(END_OF_TEXT)

    assert block.ids.tolist()[:4] == [a, b, end, end]
    assert block.lengths.tolist() == [3, 1, 3]
    assert block.n_bytes.tolist() == [2, 0, 2]


# Laws


@pytest.mark.parametrize("name", ["gpt2", "trained"])
def test_words_have_the_librarys_ids(name: str) -> None:
    """Random text of all ASCII characters, spaces and apostrophes in every order: equal ids."""
    texts = [*random_texts(5, CHARACTERS), *STORIES]
    backend = backend_of(name)
    encoder = Encoder(backend)

    assert encoder.block(texts).ids.tolist() == one_by_one(backend, texts)
    assert encoder.block(texts).ids.tolist() == one_by_one(backend, texts)  # from memory


def test_other_characters_have_the_librarys_ids() -> None:
    """Texts with and without other alphabets in turn: each is in its place, with equal ids."""
    others = [*CHARACTERS, "É", "\u0301", "日", "\xa0", "\u2028", "Ⅷ", "🙂", "ſ"]
    texts = [*random_texts(7, others), "plain", "“curly”"]
    backend = backend_of("gpt2")

    assert Encoder(backend).block(texts).ids.tolist() == one_by_one(backend, texts)


@pytest.mark.parametrize("change", CHANGES)
def test_another_way_to_cut_words_is_left_to_the_library(change: str) -> None:
    """A tokenizer that lower-cases, cuts or joins words in its own way keeps its own ids."""
    backend = backend_of("trained")
    CHANGES[change](backend)
    texts = [*random_texts(11, CHARACTERS)[:300], "The owl. In 1987 it was so old."]

    assert Encoder(backend).block(texts).ids.tolist() == one_by_one(backend, texts)


def test_forgetting_words_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory that holds 7 words and is emptied again and again gives the same ids."""
    backend = backend_of("trained")
    whole = np.concatenate([block.ids for block in encoded_blocks(backend, STORIES)])
    monkeypatch.setattr(encoding, "_MOST_WORDS", 7)
    blocks = [block.ids for block in encoded_blocks(backend, STORIES, block=3)]

    assert np.array_equal(np.concatenate(blocks), whole)
    assert len(blocks) == 20


def test_two_processes_give_the_same_blocks() -> None:
    """Blocks come in the documents' order, whoever made them (case 24)."""
    backend, texts = backend_of("trained"), [*STORIES, "“curly”"]
    alone, shared = (list(encoded_blocks(backend, texts, 7, workers)) for workers in (1, 2))

    assert len(alone) == len(shared) == 9
    for one, two in zip(alone, shared, strict=True):
        assert np.array_equal(one.ids, two.ids)
        assert np.array_equal(one.lengths, two.lengths)


# Contracts


def test_long_documents_make_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block ends after so many documents or characters, so that memory stays bounded."""
    monkeypatch.setattr(encoding, "_BLOCK_CHARACTERS", 10)
    blocks = encoded_blocks(backend_of("trained"), ["a" * 4] * 7 + ["b" * 99, "c"], 4)

    assert [len(block.lengths) for block in blocks] == [3, 3, 2, 1]


def test_a_long_word_is_not_remembered() -> None:
    """A word of thousands of characters has the library's ids and takes no memory afterwards."""
    backend, long = backend_of("trained"), "owl" * 1000
    encoder = Encoder(backend)

    assert encoder.block([long, "owl"]).ids.tolist() == one_by_one(backend, [long, "owl"])
    assert list(encoder._words) == ["owl"]


def test_a_process_that_is_ended_is_told() -> None:
    """A worker killed from outside, as for want of memory, is an error and not a hang."""

    def killing() -> Iterator[str]:
        yield from STORIES
        for child in multiprocessing.active_children():
            child.kill()
        yield from STORIES * 10

    with pytest.raises(PvmlError, match="was ended from outside"):
        list(encoded_blocks(backend_of("trained"), killing(), 7, workers=2))


def test_half_a_surrogate_pair_is_named() -> None:
    """What is no character is an error that tells its place, also among other texts."""
    with pytest.raises(PvmlError, match=r"character 2 of the text is '\\ud800'"):
        Encoder(backend_of("trained")).block(["fine", "ab\ud800", "é"])


def test_the_tokenizer_is_left_as_it_was() -> None:
    """Encoding changes nothing in the tokenizer (case 25)."""
    backend = backend_of("trained")
    before = json.loads(backend.to_str())
    list(encoded_blocks(backend, STORIES))

    assert json.loads(backend.to_str()) == before
