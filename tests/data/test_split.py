"""The split by document: by content and seed alone, no text on both sides."""

import hashlib
import itertools
import random

import pytest

from pvml.data.rows import pack
from pvml.data.sources import open_corpus
from pvml.data.split import split_documents, survey
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

# By hand


def test_the_choice_is_kept_for_good() -> None:
    """The held-out stories of storybook:400 under seed 0 are those of the first version."""
    held_out = split_documents(list(open_corpus("storybook:400")), None, seed=0)[1]

    assert len(held_out) == 40
    digest = hashlib.sha256("\n".join(held_out).encode()).hexdigest()
    assert digest.startswith("0de1b1a190877ff4")


# Laws


def test_a_survey_is_the_split_and_the_fingerprint() -> None:
    """One pass that keeps no text finds the same documents, their bytes and their fingerprint."""
    opened = open_corpus("storybook:53")
    documents = list(opened)
    found = survey(opened, 7, seed=3)
    train, held_out = split_documents(documents, 7, seed=3)

    assert list(itertools.compress(documents, found.held_out)) == held_out
    assert list(itertools.compress(documents, ~found.held_out)) == train
    assert found.fingerprint == opened.fingerprint
    assert found.n_bytes == sum(len(document.encode()) for document in documents)


def test_the_split_ignores_the_order_of_documents() -> None:
    """However the documents are shuffled, the same ones are held out (case 27)."""
    documents = [f"story number {n}" for n in range(101)]
    train, held_out = split_documents(documents, 17, seed=3)
    for seed in range(5):
        shuffled = random.Random(seed).sample(documents, len(documents))
        train_again, held_out_again = split_documents(shuffled, 17, seed=3)
        assert set(held_out_again) == set(held_out)
        assert train_again == [document for document in shuffled if document in set(train)]


def test_the_split_puts_each_document_on_one_side() -> None:
    """Both sides together are the documents, each in its old order, with no text on both."""
    documents = [f"story number {n % 37}" for n in range(101)]
    train, held_out = split_documents(documents, 19, seed=0)

    assert sorted(train + held_out) == sorted(documents)
    assert not set(train) & set(held_out)
    assert 17 <= len(held_out) <= 19


def test_other_seeds_hold_out_other_documents() -> None:
    """The seed chooses: over ten seeds no two splits agree."""
    documents = [f"story number {n}" for n in range(101)]
    chosen = {tuple(split_documents(documents, 11, seed)[1]) for seed in range(10)}

    assert len(chosen) == 10


def test_every_document_is_as_likely_to_be_held_out() -> None:
    """Over 400 seeds each of 11 documents is among the 3 held out about 3/11 of the time."""
    documents = [f"story number {n}" for n in range(11)]
    held_out = [split_documents(documents, 3, seed)[1] for seed in range(400)]
    counts = [sum(document in chosen for chosen in held_out) for document in documents]

    assert sum(counts) == 400 * 3
    assert all(abs(count - 400 * 3 / 11) < 45 for count in counts)  # 5 standard deviations


def test_the_split_ignores_n_ctx() -> None:
    """Ten documents of three rows each, 20 % held out: one choice for every n_ctx (case 27)."""
    tokenizer = Tokenizer.train(["a b c"], 257)
    documents = [f"{chr(65 + n)}" * 3 * 10 for n in range(10)]
    splits = []
    for n_ctx in (5, 11, 31):
        train, held_out = split_documents(documents, 2, seed=0)
        rows = {
            side: pack(tokenizer, side_documents, n_ctx)
            for side, side_documents in (("train", train), ("held out", held_out))
        }
        letters = {
            side: set(tokenizer.decode(packed.stream.ids())) for side, packed in rows.items()
        }
        shared = letters["train"] & letters["held out"]
        assert shared <= set("<|endoftext|>")
        splits.append(held_out)

    assert all(a == b for a, b in itertools.pairwise(splits))
    assert len(splits[0]) == 2


# Contracts


@pytest.mark.parametrize(("n_documents", "held_out"), [(2, 1), (19, 1), (503, 50), (10_007, 1000)])
def test_a_thousand_documents_are_held_out_or_a_tenth(n_documents: int, held_out: int) -> None:
    """Unset, 1,000 documents are held out, a tenth of a small corpus, and never none."""
    train, kept = split_documents([f"{n}" for n in range(n_documents)], None, seed=0)

    assert (len(train), len(kept)) == (n_documents - held_out, held_out)


@pytest.mark.parametrize("n_held_out", [-1, 0, 7, 8])
def test_a_side_without_documents_is_refused(n_held_out: int) -> None:
    """At least one document stays on each side, or the error tells both numbers."""
    message = f"cannot hold out {n_held_out} of 7 documents"
    with pytest.raises(PvmlError, match=message):
        split_documents([f"{n}" for n in range(7)], n_held_out, seed=0)
    assert len(split_documents([f"{n}" for n in range(7)], 6, seed=0)[0]) == 1


def test_copies_are_never_torn_apart() -> None:
    """Where only copies exist and fewer are asked for, the error says how many there are."""
    with pytest.raises(PvmlError, match=r"copies of one text stay together.*here 3 times"):
        split_documents(["a"] * 3 + ["b"] * 5, 2, seed=0)
    for seed in range(7):
        train, held_out = split_documents(["a"] * 3 + ["b"] * 5 + ["c"], 3, seed)
        assert held_out in (["a"] * 3, ["c"])
        assert len(train) + len(held_out) == 9


def test_half_a_surrogate_pair_can_be_split() -> None:
    """What cannot be encoded is on one side or the other; packing it is where it is refused."""
    train, held_out = split_documents(["\ud800", "b"], 1, 0)

    assert sorted([*train, *held_out]) == ["b", "\ud800"]
