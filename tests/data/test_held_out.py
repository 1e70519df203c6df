"""Held-out text from elsewhere: another corpus is kept to grade on, and all of data trained on."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from pvml.data import tokenised as module
from pvml.data.sources import fingerprint_of, open_corpus
from pvml.data.split import survey_beside
from pvml.data.stream import token_stream
from pvml.data.tokenised import FOLDER, Recipe, tokenise, tokenise_in_memory
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

DOCUMENTS = [f"The {n}th bird sat on tree {n * n}." for n in range(211)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "birds.jsonl", DOCUMENTS)


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def fish(tmp_path: Path) -> Path:
    return write(tmp_path / "fish.jsonl", [f"Fish {n} swam." for n in range(13)])


def with_fish(data: Path, fish: Path, **changes: object) -> Recipe:
    return Recipe(**{"data": str(data), "tokenizer": "bpe:277", "held_out": str(fish), **changes})


def test_text_from_elsewhere_is_held_out(data: Path, fish: Path, tmp_path: Path) -> None:
    """All of data is trained on and gives the vocabulary; the other corpus's texts are kept."""
    made = tokenise(with_fish(data, fish), tmp_path)
    fish_texts = [f"Fish {n} swam." for n in range(13)]

    assert made.tokenizer.to_json() == Tokenizer.train(DOCUMENTS, 277).to_json()
    assert np.array_equal(made.stream.ids(), token_stream(made.tokenizer, DOCUMENTS).ids())
    assert made.held_out == fish_texts
    assert (made.held_out_name, made.held_out_fingerprint) == ("fish", fingerprint_of(fish_texts))
    assert (made.name, made.documents, made.notes) == ("birds", 211, [])
    in_memory = tokenise_in_memory(with_fish(data, fish))
    assert in_memory.stream.digest == made.stream.digest
    assert in_memory.held_out == fish_texts


def test_the_held_out_corpus_is_in_the_key(
    data: Path, fish: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed text has another folder, the same text the same one, whatever would split it."""
    made = tokenise(with_fish(data, fish), tmp_path)
    fish.write_text(fish.read_text().replace("swam", "slept"))
    after = tokenise(with_fish(data, fish), tmp_path)

    assert after.held_out[0] == "Fish 0 slept."
    assert made.key != after.key
    assert made.held_out_fingerprint != after.held_out_fingerprint
    assert made.fingerprint == after.fingerprint

    def refuse(corpus: object) -> None:
        raise AssertionError("a corpus was read again")

    monkeypatch.setattr("pvml.data.sources.Corpus.__iter__", refuse)
    for split_seed in (0, 5):
        again = tokenise(with_fish(data, fish, split_seed=split_seed), tmp_path)
        assert (again.key, again.held_out) == (after.key, after.held_out)
        assert (again.held_out_name, again.notes) == ("fish", after.notes)


def test_the_keys_of_splits_are_as_they_were(data: Path, tmp_path: Path) -> None:
    """Folders made before there was held-out text from elsewhere are found: the key is theirs."""
    decides = {
        "data": open_corpus(str(data)).identity,
        "limit": None,
        "tokenizer": "bpe:277",
        "n_held_out": 7,
        "split_seed": 0,
        "vocabulary_bytes": 128 << 20,
        "version": 2,
    }
    digest = hashlib.blake2b(json.dumps(decides).encode(), digest_size=16)
    recipe = Recipe(data=str(data), tokenizer="bpe:277", n_held_out=7)
    assert tokenise(recipe, tmp_path).key == digest.hexdigest()


def test_a_corpus_of_one_document_will_do(fish: Path, tmp_path: Path) -> None:
    """Nothing has to be left over where nothing is split off."""
    made = tokenise(with_fish(write(tmp_path / "one.jsonl", ["a bird"]), fish), tmp_path)
    assert (made.documents, len(made.held_out)) == (1, 13)


def test_text_that_is_trained_on_too_is_counted(data: Path, tmp_path: Path) -> None:
    """Held-out documents that stand in the training text are told; the folder remembers it."""
    mixed = write(tmp_path / "mixed.jsonl", ["new", DOCUMENTS[5], DOCUMENTS[8], DOCUMENTS[5], ""])
    made = tokenise(with_fish(data, mixed), tmp_path)

    skipped, common = made.notes
    assert skipped == "Held out: Empty documents skipped: 1."
    assert common.startswith("The training text holds 3 of the 4 held-out documents too")
    assert tokenise(with_fish(data, mixed), tmp_path).notes == made.notes


def test_held_out_text_has_a_limit(
    data: Path, fish: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large held-out corpus is read up to the limit, which is told; the next file is not."""
    monkeypatch.setattr(module, "HELD_OUT_BYTES", 2 * len("Fish 0 swam.") + 1)
    made = tokenise(with_fish(data, fish), tmp_path)

    assert made.held_out == [f"Fish {n} swam." for n in range(3)]
    assert made.held_out_fingerprint == fingerprint_of(made.held_out)
    assert "only the first 3 documents are graded" in made.notes[0]
    monkeypatch.setattr(module, "HELD_OUT_BYTES", 10**6)
    assert len(tokenise(with_fish(data, fish), tmp_path).held_out) == 13


@pytest.mark.parametrize(
    ("held_out", "message"),
    [("nowhere.txt", "there is no corpus 'nowhere.txt'"), ("empty", "holds no document")],
)
def test_unusable_held_out_text_leaves_nothing(
    data: Path, tmp_path: Path, held_out: str, message: str
) -> None:
    """A missing or empty held-out corpus is an error before anything is made."""
    if held_out == "empty":
        held_out = str(write(tmp_path / "empty.jsonl", [""]))
    with pytest.raises(PvmlError, match=message):
        tokenise(with_fish(data, Path(held_out)), tmp_path)
    assert not (tmp_path / FOLDER).exists()


def test_one_way_of_holding_out() -> None:
    """A corpus and a number of documents cannot both be held out."""
    with pytest.raises(PvmlError, match=r"either b\.txt, whole, or 7 documents of a\.txt"):
        Recipe(data="a.txt", n_held_out=7, held_out="b.txt")


def test_a_survey_beside_holds_nothing_out() -> None:
    """All documents stay, and each of the others that stands among them is counted, copies too."""
    opened = open_corpus("storybook:53")
    documents = list(opened)
    found, common = survey_beside(opened, [documents[3], "new", documents[3], documents[50]])

    assert (len(found.held_out), found.held_out.any(), common) == (53, False, 3)
    assert found.fingerprint == opened.fingerprint
