"""Corpora by name, read anew at each pass; what tells one from another."""

import json
import os
import socket
from pathlib import Path

import pytest

from pvml.data.sources import Corpus, open_corpus
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


def test_a_corpus_can_be_read_again(tmp_path: Path) -> None:
    """Each pass gives the same documents and counts what it left out once, not once more."""
    opened = open_corpus(str(write(tmp_path / "a.jsonl", ["one", "", "two", " "])))

    assert opened.notes == []
    assert list(opened) == list(opened) == ["one", "two"]
    assert opened.notes == ["Empty documents skipped: 2."]


def test_documents_are_read_one_by_one(tmp_path: Path) -> None:
    """The first documents are given before a fault further on is met: nothing is read ahead."""
    path = write(tmp_path / "a.jsonl", ["one", "two"])
    path.write_text(path.read_text() + "not JSON\n")
    reading = iter(open_corpus(str(path)))

    assert [next(reading), next(reading)] == ["one", "two"]
    with pytest.raises(PvmlError, match="line 3 is not JSON"):
        next(reading)


def test_a_changed_source_has_another_identity(tmp_path: Path) -> None:
    """Size, time or place of a file and the number of stories change it; reading does not."""
    path = write(tmp_path / "a.jsonl", ["one"])
    base = open_corpus(str(path))
    before = base.identity
    list(base)
    assert open_corpus(str(path)).identity == before
    assert open_corpus(str(tmp_path)).identity == before  # the same files

    os.utime(path, ns=(1, 1))
    touched = open_corpus(str(path)).identity
    other = write(tmp_path / "b.jsonl", ["one"])
    os.utime(other, ns=(1, 1))
    identities = {
        before,
        touched,
        *(open_corpus(spec).identity for spec in (str(other), "storybook")),
    }
    assert len(identities | {open_corpus("storybook:3").identity}) == 5


# Contracts


@pytest.mark.parametrize(
    "spec", ["storybok", "storybook:", "storybook:x", "storybook:0", "", "a/b"]
)
def test_an_unknown_corpus_is_refused(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that is neither known nor a path is an error that tells what is known."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        PvmlError, match=r"storybook:N, tinystories, tinystories:validation, or an existing file"
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
    """tinystories without a hub is refused, not waited for, with the two ways to go on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    with pytest.raises(
        HubUnavailable, match=r"TinyStories.*refused.*--data PATH.*--data storybook"
    ):
        open_corpus("tinystories")


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


@pytest.mark.parametrize("there", ["streamed", "offline", "limit"])
def test_both_parts_of_the_data_set_are_corpora(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tinystories:validation is the other part, by either way of reading, with its own identity."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("pvml.data.sources.require_hub", lambda what, instead: None)
    monkeypatch.setattr("pvml.data.sources.offline", lambda: there == "offline")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("pvml.data.sources.HUB_NAME", str(tmp_path / "set"))
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", [f"Story {n}." for n in range(7)])
    write(tmp_path / "set" / "validation.jsonl", ["Kept 1.", " ", "Kept 2.", "Kept 3."])
    limit = 2 if there == "limit" else None
    train, validation = (
        open_corpus(spec, limit) for spec in ("tinystories", "tinystories:validation")
    )

    assert list(validation) == ["Kept 1.", "Kept 2.", "Kept 3."][:limit]
    # the data set, a gigabyte with its other part, is kept only where there is no network
    assert any((tmp_path / "cache").rglob("*.arrow")) == (there == "offline")
    assert next(iter(train)) == "Story 0."
    assert validation.notes[0] == "Empty documents skipped: 1."
    assert (train.name, validation.name) == ("tinystories", "tinystories:validation")
    assert train.identity != validation.identity


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
