"""Corpora by name, their fingerprint, and the split by document."""

import itertools
import json
import random
import socket
import time
from pathlib import Path

import pytest

from pvml.data.rows import pack
from pvml.data.sources import Corpus, open_corpus
from pvml.data.split import split_documents
from pvml.data.tokenizer import Tokenizer
from pvml.errors import HubUnavailable, PvmlError
from pvml.hub import require_hub


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def corpus(documents: list[str], name: str = "x") -> Corpus:
    return Corpus(name, lambda tally: iter(documents))


# By hand


def test_a_file_becomes_a_corpus(tmp_path: Path) -> None:
    """A file gives its documents, its name without suffixes, and what was skipped."""
    path = write(tmp_path / "bed.time.jsonl", ["one", "", "two"])
    opened = open_corpus(str(path))

    assert list(opened) == ["one", "two"]
    assert opened.name == "bed.time"
    assert opened.notes == ["Empty documents skipped: 1."]


def test_a_folder_becomes_a_corpus(tmp_path: Path) -> None:
    """A folder's corpus carries the folder's name."""
    folder = tmp_path / "v1.5"
    folder.mkdir()
    write(folder / "b.jsonl", ["two"])
    write(folder / "a.jsonl", ["one"])

    assert list(open_corpus(str(folder))) == ["one", "two"]
    assert open_corpus(str(folder)).name == "v1.5"


def test_a_limit_stops_the_reading(tmp_path: Path) -> None:
    """With a limit only the first documents are read, so a later fault is never met."""
    path = write(tmp_path / "a.jsonl", ["one", "two", "three"])
    path.write_text(path.read_text() + "not JSON\n")

    limited = open_corpus(str(path), limit=2)
    assert list(limited) == ["one", "two"]
    assert limited.notes == ["Reading stopped after 2 documents, as asked."]
    with pytest.raises(PvmlError, match="line 4 is not JSON"):
        list(open_corpus(str(path)))


def test_the_storybook_is_the_builtin_corpus() -> None:
    """storybook:N gives N stories, each time the same; a smaller N gives the first of them."""
    first, again = open_corpus("storybook:13"), open_corpus("storybook:13")

    assert len(list(first)) == 13
    assert list(first) == list(again)
    assert list(open_corpus("storybook:5")) == list(first)[:5]
    assert list(open_corpus("storybook", limit=3)) == list(first)[:3]
    assert first.name == "storybook"


# Laws


def test_the_fingerprint_is_of_the_content() -> None:
    """Same documents, same fingerprint, whatever the name; any change of them changes it."""
    base = corpus(["ab", "c"])

    assert base.fingerprint == corpus(["ab", "c"], "y").fingerprint
    assert len(base.fingerprint) == 64
    others = [["a", "bc"], ["c", "ab"], ["ab", "c", ""], ["ab"], ["abc"]]
    prints = {corpus(documents).fingerprint for documents in others}
    assert len(prints | {base.fingerprint}) == len(others) + 1


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


@pytest.mark.parametrize(
    "spec", ["storybok", "storybook:", "storybook:x", "storybook:0", "", "a/b"]
)
def test_an_unknown_corpus_is_refused(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that is neither known nor a path is an error that tells what is known."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        PvmlError, match=r"storybook, storybook:N, tinystories, or an existing file"
    ):
        open_corpus(spec)


@pytest.mark.parametrize("texts", [[], ["", "", ""]])
def test_a_corpus_with_nothing_in_it_is_refused(texts: list[str], tmp_path: Path) -> None:
    """No document, or only empty ones: the error names the file and the cause (case 25)."""
    path = write(tmp_path / "a.jsonl", texts)
    message = rf"holds no document\.{' Empty documents skipped: 3.' * bool(texts)}$"
    with pytest.raises(PvmlError, match=message) as error:
        list(open_corpus(str(path)))
    assert str(path) in str(error.value)


def test_a_limit_below_one_is_refused() -> None:
    """A limit of 0 documents is an error, not an empty corpus."""
    with pytest.raises(PvmlError, match="limit must be at least 1 document, got 0"):
        open_corpus("storybook", limit=0)


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """tinystories without a hub is reported at once, with the two ways to go on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    start = time.monotonic()

    with pytest.raises(HubUnavailable, match=r"TinyStories.*--data PATH.*--data storybook"):
        open_corpus("tinystories")
    assert time.monotonic() - start < 2.5


@pytest.mark.parametrize("limit", [None, 3])
def test_a_data_set_is_read_through_its_library(
    limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code that reads the hub's data set reads one in a folder, whole and streamed alike."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("pvml.data.sources.HUB_NAME", str(tmp_path / "set"))
    (tmp_path / "set").mkdir()
    texts = ["", *(f"Story {n}." for n in range(7))]
    write(tmp_path / "set" / "train.jsonl", texts)
    opened = open_corpus("tinystories", limit)

    assert list(opened) == texts[1:][:limit]
    assert opened.notes[0] == "Empty documents skipped: 1."


@pytest.mark.network
def test_tinystories_from_the_hub() -> None:
    """Where the hub can be reached, the first stories are the data set's."""
    try:
        require_hub("TinyStories")
    except HubUnavailable as error:
        pytest.skip(str(error))
    opened = open_corpus("tinystories", limit=3)

    assert next(iter(opened)).startswith("One day, a little girl named Lily found a needle")
    assert len(list(opened)) == 3


@pytest.mark.parametrize("size", ["10000001", "9" * 40, "9" * 5000])
def test_a_storybook_too_large_to_hold_is_refused(size: str) -> None:
    """A number of stories that no memory holds is refused at once, however long it is."""
    with pytest.raises(PvmlError, match="at most 10,000,000 stories"):
        open_corpus(f"storybook:{size}")


def test_a_limit_beyond_every_number_of_documents_is_none() -> None:
    """A limit that no list could reach leaves nothing out."""
    assert len(list(open_corpus("storybook:3", limit=10**30))) == 3


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    """A link that goes in a circle is an error that names it."""
    (tmp_path / "loop.txt").symlink_to("loop.txt")

    with pytest.raises(PvmlError, match=r"loop\.txt cannot be read"):
        list(open_corpus(str(tmp_path / "loop.txt")))


def test_half_a_surrogate_pair_can_be_split() -> None:
    """What cannot be encoded is on one side or the other; packing it is where it is refused."""
    train, held_out = split_documents(["\ud800", "b"], 1, 0)

    assert sorted([*train, *held_out]) == ["b", "\ud800"]
