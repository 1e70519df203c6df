"""A tokenised corpus on disk: a folder that is whole or not there, read by mapping it to memory.

    index.json        format, version, key, what was tokenised and how, sizes, checksums
    tokens-00000.bin  token ids, little endian, the stream cut every 2**27 tokens
    documents.bin     for each document its first token's place and its bytes of text (int64 pairs)
    held_out.jsonl    the held-out documents' texts
    tokenizer.json    the whole tokenizer

What is tokenised, and where the folder lies, is in `tokenised.py`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pvml.data.encoding import Block, id_dtype
from pvml.data.stream import TokenStream
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

FORMAT = "pvml tokens"
VERSION = 2
SHARD_TOKENS = 1 << 27

_INDEX = "index.json"
_DOCUMENTS = "documents.bin"
_HELD_OUT = "held_out.jsonl"
_TOKENIZER = "tokenizer.json"
_CHECKED = (_DOCUMENTS, _HELD_OUT, _TOKENIZER)
_PAIR = np.dtype("<i8")
"""A document's start and its bytes."""


@dataclass(frozen=True)
class Shards:
    """What a folder of shards holds."""

    stream: TokenStream
    """The training documents', mapped to memory."""
    tokenizer: Tokenizer
    held_out: list[str]
    facts: dict[str, Any]
    """What the writer told about the corpus."""


def write_shards(
    folder: Path,
    blocks: Iterable[Block],
    *,
    key: str,
    tokenizer: Tokenizer,
    held_out: Sequence[str],
    facts: Mapping[str, Any],
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """Write everything into a folder that exists; the index comes last.

    Raises: OSError if the disk refuses, and whatever making the blocks raises.
    """
    digest, sizes, start = hashlib.blake2b(digest_size=16), [0], 0
    dtype = np.dtype(id_dtype(tokenizer.d_vocab)).newbyteorder("<")
    with ExitStack() as files, (folder / _DOCUMENTS).open("wb") as documents:
        shard = _new_shard(folder, 0, files)
        for block in blocks:
            ids = block.ids.astype(dtype, copy=False)
            digest.update(ids.data)
            _write_documents(documents, block, start)
            start += len(ids)
            while len(ids):
                if sizes[-1] == shard_tokens:
                    shard = _new_shard(folder, len(sizes), files)
                    sizes.append(0)
                room = shard_tokens - sizes[-1]
                shard.write(ids[:room].data)
                sizes[-1] += len(ids[:room])
                ids = ids[room:]
    with (folder / _HELD_OUT).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in held_out)
    tokenizer.save(folder / _TOKENIZER)
    index = {
        "format": FORMAT,
        "version": VERSION,
        "key": key,
        "tokenizer": tokenizer.name,
        "documents": (folder / _DOCUMENTS).stat().st_size // (2 * _PAIR.itemsize),
        "tokens": start,
        "dtype": dtype.str,
        "shards": sizes,
        "digest": digest.hexdigest(),
        "checksums": {name: _checksum(folder / name) for name in _CHECKED},
        "facts": dict(facts),
    }
    index["checksum"] = _checksum_of_index(index)
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def open_shards(folder: Path, key: str) -> Shards:
    """The shards in a folder. Every file is read once and compared with its checksum.

    Raises: PvmlError that says what is wrong with the folder.
    """
    try:
        index = json.loads((folder / _INDEX).read_text("utf-8"))
        if not isinstance(index, dict) or index.get("checksum") != _checksum_of_index(index):
            raise PvmlError(f"{_INDEX} is damaged")
        if (index["format"], index["version"], index["key"]) != (FORMAT, VERSION, key):
            raise PvmlError(f"{_INDEX} is of another format or corpus")
        dtype = np.dtype(index["dtype"])
        paths = [folder / _name(number) for number in range(len(index["shards"]))]
        parts = [
            _mapped(path, dtype, n_tokens)
            for path, n_tokens in zip(paths, index["shards"], strict=True)
        ]
        n_numbers = 2 * index["documents"]
        pairs = _mapped(folder / _DOCUMENTS, _PAIR, n_numbers).reshape(-1, 2)
        for name, checksum in index["checksums"].items():
            if _checksum(folder / name) != checksum:
                raise PvmlError(f"{name} is damaged")
        if _checksum(*paths) != index["digest"]:
            raise PvmlError("the token ids are damaged")
        texts = (folder / _HELD_OUT).read_text("utf-8").split("\n")[:-1]
    except PvmlError:
        raise
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise PvmlError(f"{folder} cannot be read: {error}") from error
    return Shards(
        stream=TokenStream(parts, pairs[:, 0], pairs[:, 1], index["digest"]),
        tokenizer=Tokenizer.load(folder / _TOKENIZER),
        held_out=[json.loads(text)["text"] for text in texts],
        facts=index["facts"],
    )


def _name(number: int) -> str:
    return f"tokens-{number:05d}.bin"


def _new_shard(folder: Path, number: int, files: ExitStack) -> BinaryIO:
    files.pop_all().close()
    return files.enter_context((folder / _name(number)).open("wb"))


def _write_documents(file: BinaryIO, block: Block, start: int) -> None:
    ends = start + np.cumsum(block.lengths)
    pairs = np.stack([ends - block.lengths, block.n_bytes], axis=1)
    file.write(pairs.astype(_PAIR).tobytes())


def _mapped(path: Path, dtype: np.dtype[Any], n: int) -> np.ndarray[Any, np.dtype[Any]]:
    size = path.stat().st_size
    if size != n * dtype.itemsize:
        raise PvmlError(f"{path.name} has {size:,} bytes instead of {n * dtype.itemsize:,}")
    return np.asarray(np.memmap(path, dtype, "r"))


def _checksum(*paths: Path) -> str:
    """Of the files' bytes in a row, read in pieces: what is mapped would count as memory."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def _checksum_of_index(index: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in index.items() if name != "checksum"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16).hexdigest()
