"""Shards: what is written comes back mapped, in parts of any size; damage is recognised."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pvml.data.shards import Shards, open_shards, write_shards
from pvml.data.stream import token_stream
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

DOCUMENTS = [f"Story {n}: " + "the bird sat on a tree. " * (n % 7) for n in range(53)]
HELD_OUT = ["One\nheld out.", "Zoë said “hi” \u2028 🙂"]
FACTS = {"name": "birds", "notes": []}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(DOCUMENTS, 307)


def written(folder: Path, tokenizer: Tokenizer, block: int = 7, shard_tokens: int = 101) -> Shards:
    folder.mkdir(exist_ok=True)
    write_shards(
        folder,
        tokenizer.blocks(DOCUMENTS, block),
        key="a key",
        tokenizer=tokenizer,
        held_out=HELD_OUT,
        facts=FACTS,
        shard_tokens=shard_tokens,
    )
    return open_shards(folder, "a key")


# Laws


@pytest.mark.parametrize(("block", "shard_tokens"), [(1, 1000), (7, 101), (100, 7), (13, 10**9)])
def test_what_is_written_comes_back(
    tmp_path: Path, tokenizer: Tokenizer, block: int, shard_tokens: int
) -> None:
    """However the stream is cut, ids, places, bytes and digest are those of the one in memory."""
    shards = written(tmp_path, tokenizer, block, shard_tokens)
    memory = token_stream(tokenizer, DOCUMENTS)

    assert np.array_equal(shards.stream.ids(), memory.ids())
    assert np.array_equal(shards.stream.starts, memory.starts)
    assert np.array_equal(shards.stream.n_bytes, memory.n_bytes)
    assert shards.stream.digest == memory.digest
    assert (shards.held_out, shards.facts) == (HELD_OUT, FACTS)
    assert shards.tokenizer.to_json() == tokenizer.to_json()
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("tokens-*.bin"))]
    assert sizes == [
        2 * len(part)
        for part in np.split(memory.ids(), range(shard_tokens, len(memory), shard_tokens))
    ]


def test_ids_are_mapped_not_loaded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A row is read from the file when it is taken: it shows what the file says by then."""
    stream = written(tmp_path, tokenizer).stream
    with (tmp_path / "tokens-00001.bin").open("r+b") as file:
        file.write(np.array([7, 8, 9], "<u2").tobytes())

    assert stream.take(np.array([100]), 5)[0, 1:4].tolist() == [7, 8, 9]


def test_a_large_vocabulary_takes_four_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ids do not fit two bytes they are stored in four, and come back."""
    tokenizer = Tokenizer.train(["ab"], 257)
    for module in ("encoding", "shards", "stream"):
        monkeypatch.setattr(f"pvml.data.{module}.id_dtype", lambda d_vocab: np.uint32)
    stream = written(tmp_path, tokenizer).stream

    assert stream.ids().dtype == np.dtype("<u4")
    assert np.array_equal(stream.ids(), token_stream(tokenizer, DOCUMENTS).ids())


# Contracts


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("tokens-00000.bin", "has 199 bytes instead of 202"),
        ("tokens-00003.bin", "has .* bytes instead of 202"),
        ("documents.bin", "bytes instead of 848"),
        ("held_out.jsonl", "held_out.jsonl is damaged"),
        ("tokenizer.json", "tokenizer.json is damaged"),
        ("index.json", "cannot be read"),
    ],
)
def test_a_shortened_file_is_recognised(
    tmp_path: Path, tokenizer: Tokenizer, name: str, complaint: str
) -> None:
    """Three bytes less in any file are told, and so is a file that is gone."""
    written(tmp_path, tokenizer)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-3])
    with pytest.raises(PvmlError, match=complaint):
        open_shards(tmp_path, "a key")

    (tmp_path / name).unlink()
    with pytest.raises(PvmlError, match="cannot be read"):
        open_shards(tmp_path, "a key")


def rotated(content: bytes) -> bytes:
    return content[2:] + content[:2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def overwritten(content: bytes) -> bytes:
    return bytes(len(content))


@pytest.mark.parametrize("damage", [rotated, flipped, overwritten])
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("tokens-00000.bin", "the token ids are damaged"),
        ("tokens-00003.bin", "the token ids are damaged"),
        ("documents.bin", "documents.bin is damaged"),
        ("held_out.jsonl", "held_out.jsonl is damaged"),
        ("tokenizer.json", "tokenizer.json is damaged"),
    ],
)
def test_damage_of_equal_size_is_recognised(
    tmp_path: Path,
    tokenizer: Tokenizer,
    name: str,
    complaint: str,
    damage: Callable[[bytes], bytes],
) -> None:
    """Bytes moved, one bit flipped, or zeros all over: no file is used that was not written so."""
    written(tmp_path, tokenizer)
    path = tmp_path / name
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(PvmlError, match=complaint):
        open_shards(tmp_path, "a key")


def test_shards_in_another_order_are_recognised(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Two shards of one size that changed places hold the right bytes at the wrong place."""
    written(tmp_path, tokenizer)
    first, second = (tmp_path / f"tokens-0000{number}.bin" for number in (0, 1))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)

    with pytest.raises(PvmlError, match="the token ids are damaged"):
        open_shards(tmp_path, "a key")


@pytest.mark.parametrize("entry", ["tokens", "digest", "documents", "key", "checksums", "facts"])
def test_a_changed_index_is_recognised(tmp_path: Path, tokenizer: Tokenizer, entry: str) -> None:
    """The index has a checksum of its own: no entry of it can be changed unnoticed."""
    written(tmp_path, tokenizer)
    path = tmp_path / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), entry: 7}))

    with pytest.raises(PvmlError, match=r"index\.json is damaged"):
        open_shards(tmp_path, "a key")


@pytest.mark.parametrize("text", ["", "[]", "null", '{"format": "pvml tokens"}', "\x00" * 99])
def test_another_file_is_no_index(tmp_path: Path, text: str) -> None:
    """Whatever stands where the index should is an error, never a traceback."""
    (tmp_path / "index.json").write_text(text)

    with pytest.raises(PvmlError, match="cannot be read|is damaged"):
        open_shards(tmp_path, "a key")


def test_another_key_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A folder that was renamed is not taken for what its new name says."""
    written(tmp_path, tokenizer)

    with pytest.raises(PvmlError, match="another format or corpus"):
        open_shards(tmp_path, "another key")
