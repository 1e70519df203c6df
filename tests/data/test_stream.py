"""The token stream: one end-of-text after each document, the same for any number of workers."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from pvml.data.encoding import id_dtype
from pvml.data.stream import TokenStream, token_stream
from pvml.data.tokenizer import Tokenizer

DOCUMENTS = [f"Story {n}: " + "the bird sat on a tree. " * (n % 7) for n in range(2503)]
SCRIPT = """
import hashlib, os
from pvml.data.stream import token_stream
from pvml.data.tokenizer import Tokenizer
documents = [f"Story {n}: " + "the bird sat on a tree. " * (n % 7) for n in range(2503)]
for workers in ("1", "2", "8"):
    if os.fork() == 0:
        os.environ["RAYON_NUM_THREADS"] = workers  # read once, at the first use in a process
        tokenizer = Tokenizer.train(documents, 307)
        data = tokenizer.to_json().encode() + token_stream(tokenizer, documents).ids().tobytes()
        print(workers, hashlib.sha256(data).hexdigest(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(DOCUMENTS, 307)


# By hand


def test_every_document_is_followed_by_one_end_of_text(tokenizer: Tokenizer) -> None:
    """The stream is the documents' ids in order, an end-of-text after each, also after the last."""
    eos, ab, c = tokenizer.eos_token_id, tokenizer.encode("ab"), tokenizer.encode("c")

    assert token_stream(tokenizer, ["ab", "", "c"]).ids().tolist() == [*ab, eos, eos, *c, eos]
    assert token_stream(tokenizer, []).ids().tolist() == []


def test_lengths_by_hand() -> None:
    """Lengths are counted between the end-of-text tokens, which belong to no document."""
    stream = np.array([5, 5, 9, 9, 5, 9], np.uint16)

    assert TokenStream.of_ids(stream, 9).lengths.tolist() == [2, 0, 1]


def test_ids_are_stored_small() -> None:
    """Two bytes a token while every id fits, four beyond."""
    assert np.dtype(id_dtype(50257)).itemsize == 2
    assert np.dtype(id_dtype(1 << 16)).itemsize == 2
    assert np.dtype(id_dtype((1 << 16) + 1)).itemsize == 4


# Laws


@pytest.mark.parametrize("block", [1, 7, 1000, 5003])
def test_the_block_size_changes_nothing(tokenizer: Tokenizer, block: int) -> None:
    """However many documents are tokenised at once, the stream is the same."""
    documents = DOCUMENTS[:211]
    expected = [i for text in documents for i in [*tokenizer.encode(text), tokenizer.eos_token_id]]

    assert token_stream(tokenizer, documents, block).ids().tolist() == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process here cannot fork")
def test_the_number_of_workers_changes_nothing(tokenizer: Tokenizer) -> None:
    """A vocabulary and a stream made by 1, 2 and 8 workers are the same bytes (case 24)."""
    data = tokenizer.to_json().encode() + token_stream(tokenizer, DOCUMENTS).ids().tobytes()
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )

    digest = hashlib.sha256(data).hexdigest()
    assert done.stdout.splitlines() == [f"{workers} {digest}" for workers in (1, 2, 8)]


def test_lengths_are_those_of_the_documents(tokenizer: Tokenizer) -> None:
    """A text that spells an end-of-text stays one document, so lengths and documents agree."""
    documents = ["one <|endoftext|> two", "", *DOCUMENTS[:53]]

    lengths = token_stream(tokenizer, documents).lengths
    assert lengths.tolist() == [len(tokenizer.encode(text)) for text in documents]
