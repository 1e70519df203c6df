"""A corpus tokenised once: reused while nothing changed, rebuilt if it did, whole or not there."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from pvml.data import tokenised as module
from pvml.data.rows import Rows, pack
from pvml.data.split import split_documents
from pvml.data.tokenised import (
    FOLDER,
    Recipe,
    Tokenised,
    find_tokenised,
    tokenise,
    tokenise_in_memory,
)
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError, RunDirError

DOCUMENTS = [f"The {n}th bird sat on tree {n * n}." for n in range(211)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "birds.jsonl", DOCUMENTS)


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def recipe(data: Path, **changes: object) -> Recipe:
    return Recipe(**{"data": str(data), "tokenizer": "bpe:277", "n_held_out": 7, **changes})


def never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, reading a corpus is an error."""

    def refuse(corpus: object) -> None:
        raise AssertionError("the corpus was read again")

    monkeypatch.setattr("pvml.data.sources.Corpus.__iter__", refuse)


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in (root / FOLDER).iterdir() if path.is_dir())


def same(one: Tokenised, two: Tokenised) -> bool:
    facts = [
        (m.name, m.fingerprint, m.documents, m.n_bytes, m.notes, m.held_out) for m in (one, two)
    ]
    return (
        facts[0] == facts[1]
        and np.array_equal(one.stream.ids(), two.stream.ids())
        and np.array_equal(one.stream.starts, two.stream.starts)
        and one.stream.digest == two.stream.digest
        and one.tokenizer.to_json() == two.tokenizer.to_json()
    )


# Laws


@pytest.mark.parametrize("tokenizer", ["bpe:277", "gpt2"])
def test_it_is_the_split_and_the_packing(data: Path, tmp_path: Path, tokenizer: str) -> None:
    """On disk and in memory: the held-out texts, the vocabulary and the rows of the plain way."""
    asked = recipe(data, tokenizer=tokenizer, split_seed=3)
    made = tokenise(asked, tmp_path)
    train, held_out = split_documents(DOCUMENTS, 7, seed=3)
    expected = pack(Tokenizer.from_spec(tokenizer, train), train, 23)

    assert same(made, tokenise_in_memory(asked))
    assert made.held_out == held_out
    assert (made.documents, made.n_bytes) == (211, sum(map(len, DOCUMENTS)))
    rows = Rows(made.stream, 23, made.tokenizer.bos_token_id)
    assert rows.identity == expected.identity
    assert rows.batch([5, 0]).tolist() == expected.batch([5, 0]).tolist()


def test_processes_change_no_byte(data: Path, tmp_path: Path) -> None:
    """Made by one process and by two, every file of the folder is the same (case 24)."""
    made = [tokenise(recipe(data), tmp_path / str(n), workers=n) for n in (1, 2)]
    one, two = (tmp_path / str(n) / FOLDER / str(made[0].key) for n in (1, 2))

    assert folders(tmp_path / "1") == folders(tmp_path / "2")
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_what_did_not_change_is_not_read_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same recipe is answered from the folder, and `find_tokenised` only looks there."""
    assert find_tokenised(recipe(data), tmp_path) is None
    assert not (tmp_path / FOLDER).exists()
    made = tokenise(recipe(data), tmp_path)
    never_again(monkeypatch)
    found = find_tokenised(recipe(data), tmp_path)

    assert same(tokenise(recipe(data), tmp_path), made)
    assert found is not None and same(found, made)
    assert folders(tmp_path) == [made.key]


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 200},
        {"tokenizer": "bpe:270"},
        {"n_held_out": 8},
        {"split_seed": 1},
    ],
)
def test_another_recipe_has_another_folder(
    data: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    """Whatever decides the tokens is in the key."""
    tokenise(recipe(data), tmp_path)
    tokenise(recipe(data, **change), tmp_path)

    assert len(folders(tmp_path)) == 2


def test_a_changed_file_is_tokenised_again(data: Path, tmp_path: Path) -> None:
    """A file with other text is another corpus, even at the same size."""
    before = tokenise(recipe(data), tmp_path)
    data.write_text(data.read_text().replace("bird", "bear"))
    after = tokenise(recipe(data), tmp_path)

    assert after.key != before.key
    assert after.fingerprint != before.fingerprint
    assert "bear" in after.tokenizer.decode(after.stream.ids())


def test_a_run_with_its_own_tokenizer_finds_the_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer equal to the folder's uses it; another one gets a folder of its own."""
    made = tokenise(recipe(data), tmp_path)
    other = Tokenizer.train(["another text " * 7], 260)
    with_other = tokenise(recipe(data), tmp_path, other)
    assert with_other.tokenizer.to_json() == other.to_json()
    assert with_other.key != made.key
    never_again(monkeypatch)

    assert tokenise(recipe(data), tmp_path, made.tokenizer).key == made.key
    assert tokenise(recipe(data), tmp_path, other).key == with_other.key


def test_a_deleted_folder_comes_back_the_same(data: Path, tmp_path: Path) -> None:
    """Rebuilt from a run's own tokenizer, the tokens are the same, so the run can go on."""
    made = tokenise(recipe(data), tmp_path)
    rows = Rows(made.stream, 23, 0).identity
    shutil.rmtree(tmp_path / FOLDER)
    again = tokenise(recipe(data), tmp_path, made.tokenizer)

    assert Rows(again.stream, 23, 0).identity == rows
    assert again.held_out == made.held_out


# Damage and interruption


def test_damage_is_told_and_mended(data: Path, tmp_path: Path) -> None:
    """A shard cut short is made anew, with a sentence that says why."""
    key = tokenise(recipe(data), tmp_path).key
    shard = tmp_path / FOLDER / str(key) / "tokens-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    told: list[str] = []

    assert find_tokenised(recipe(data), tmp_path) is None
    again = tokenise(recipe(data), tmp_path, say=told.append)
    assert same(again, tokenise_in_memory(recipe(data)))
    assert shard.read_bytes() == whole
    assert len(told) == 1 and "is made anew: tokens-00000.bin has" in told[0]


def test_ids_damaged_at_equal_size_are_told_and_mended(data: Path, tmp_path: Path) -> None:
    """A shard whose size is right and whose ids are not is made anew, with a sentence."""
    key = tokenise(recipe(data), tmp_path).key
    shard = tmp_path / FOLDER / str(key) / "tokens-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[2:] + whole[:2])
    told: list[str] = []

    again = tokenise(recipe(data), tmp_path, say=told.append)
    assert same(again, tokenise_in_memory(recipe(data)))
    assert shard.read_bytes() == whole
    assert len(told) == 1 and "is made anew: the token ids are damaged." in told[0]


def test_what_a_killed_build_left_is_removed(data: Path, tmp_path: Path) -> None:
    """A half-made folder of a process that is gone makes room; other corpora's stay."""
    key = tokenise(recipe(data), tmp_path / "elsewhere").key
    ours, others = (tmp_path / FOLDER / f".{name}.part-7" for name in (key, "other"))
    for folder in (ours, others):
        folder.mkdir(parents=True)
        (folder / "tokens-00000.bin").write_bytes(b"half")

    assert tokenise(recipe(data), tmp_path).key == key
    assert folders(tmp_path) == sorted([str(key), others.name])


def test_the_second_process_waits(data: Path, tmp_path: Path) -> None:
    """While another makes the folder, it is waited for, and that is said."""
    key = tokenise(recipe(data), tmp_path / "elsewhere").key
    (tmp_path / FOLDER).mkdir()
    waiting, made = threading.Event(), []

    def say(sentence: str) -> None:
        assert "waits" in sentence
        waiting.set()

    with FileLock(tmp_path / FOLDER / f".{key}.lock"):
        second = threading.Thread(
            target=lambda: made.append(tokenise(recipe(data), tmp_path, say=say))
        )
        second.start()
        assert waiting.wait(20)
        shutil.copytree(tmp_path / "elsewhere" / FOLDER / str(key), tmp_path / FOLDER / str(key))
        inode = (tmp_path / FOLDER / str(key)).stat().st_ino
    second.join()

    assert made[0].key == key
    assert (tmp_path / FOLDER / str(key)).stat().st_ino == inode  # not made again


def test_without_locks_the_slower_one_uses_the_others(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk knows no locks, a folder that appears meanwhile is taken, not refused."""
    elsewhere = tokenise(recipe(data), tmp_path / "elsewhere")
    whole = module.write_shards

    def overtaken(*args: object, **names: object) -> None:
        whole(*args, **names)
        shutil.copytree(tmp_path / "elsewhere" / FOLDER, tmp_path / FOLDER, dirs_exist_ok=True)

    def no_locks(*args: object, **names: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(module, "write_shards", overtaken)
    monkeypatch.setattr(FileLock, "acquire", no_locks)

    assert same(tokenise(recipe(data), tmp_path), elsewhere)
    assert folders(tmp_path) == [elsewhere.key]


# Contracts


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "holds no document"),
        (["", "", ""], "holds no document. Empty documents skipped: 3"),
        (["a"], "cannot hold out 1 of 1 documents"),
        (["a"] * 9, "copies of one text stay together"),
    ],
)
def test_a_corpus_with_too_little_leaves_nothing(
    tmp_path: Path, texts: list[str], message: str
) -> None:
    """Nothing, only empty documents, one document, copies: a sentence, no folder (case 25)."""
    data = write(tmp_path / "a.jsonl", texts)

    with pytest.raises(PvmlError, match=message):
        tokenise(recipe(data, n_held_out=None), tmp_path)
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize("length", [7, 8, 9])
def test_a_document_about_as_long_as_a_row(tmp_path: Path, length: int) -> None:
    """A training document of n_ctx - 1, n_ctx or n_ctx + 1 tokens fills one row (case 25)."""
    data = write(tmp_path / "a.jsonl", ["a" * length, "b" * length])
    made = tokenise(recipe(data, tokenizer="bpe:257", n_held_out=1), tmp_path)
    rows = Rows(made.stream, 8, made.tokenizer.bos_token_id)

    assert (len(rows), rows.remainder) == (1, length + 1 - 7)
    assert int(made.stream.ids().max()) < made.tokenizer.d_vocab


def test_a_check_stops_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    """The check sees tokenizer and held-out texts; what it raises leaves no folder."""

    def check(tokenizer: Tokenizer, held_out: list[str]) -> None:
        assert (tokenizer.name, len(held_out)) == ("bpe:277", 7)
        raise PvmlError("too little")

    with pytest.raises(PvmlError, match="too little"):
        tokenise(recipe(data), tmp_path, check=check)
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize(
    "change",
    [lambda texts: [*texts, "one more"], lambda texts: texts[:-1], lambda texts: texts[::-1]],
    ids=["longer", "shorter", "turned round"],
)
def test_a_corpus_that_changes_meanwhile_is_refused(
    data: Path, tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    """Documents that differ between the passes are an error, and no folder is left."""

    def check(tokenizer: Tokenizer, held_out: list[str]) -> None:
        write(data, change(DOCUMENTS))

    with pytest.raises(PvmlError, match="birds changed while it was read"):
        tokenise(recipe(data), tmp_path, check=check)
    assert folders(tmp_path) == []


def test_a_vocabulary_from_a_part_says_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the limit the vocabulary is learnt from the first texts only, and a note tells."""
    train = split_documents(DOCUMENTS, 7, 0)[0]
    monkeypatch.setattr(module, "VOCABULARY_BYTES", sum(map(len, train)))
    whole = tokenise(recipe(data), tmp_path)
    monkeypatch.setattr(module, "VOCABULARY_BYTES", sum(map(len, train[:5])) + 3)
    part = tokenise(recipe(data), tmp_path)

    assert whole.notes == []
    assert "learnt from the first 0 MiB of the training documents" in part.notes[0]
    assert part.tokenizer.to_json() == Tokenizer.train(train[:5], 277).to_json()
    assert part.key != whole.key


def test_a_folder_that_cannot_be_written_is_named(data: Path, tmp_path: Path) -> None:
    """A file in the way of the folder is an error with the path."""
    (tmp_path / "runs").write_text("in the way")

    with pytest.raises(RunDirError, match=r"runs/\.tokens, where tokens are kept"):
        tokenise(recipe(data), tmp_path / "runs")
