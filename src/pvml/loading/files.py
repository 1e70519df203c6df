"""The tensors of a folder, in one file or in shards. Nothing in a file is ever executed."""

import os
from pathlib import Path

from torch import Tensor

from pvml.errors import PvmlError
from pvml.runs.json_object import read_json
from pvml.runs.weights import read_state_dict

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
INDEX = ".index.json"
WHOLE = ("model.safetensors", "pytorch_model.bin")
"""What Hugging Face calls the weights; in shards, there is an index of that name and INDEX."""


def read_folder(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors that a folder holds under Hugging Face's file names, and the file, or the index.

    They are mapped where possible, not read, until they are used.

    Raises: PvmlError naming the file that is missing, damaged or malicious.
    """
    for name in WHOLE:
        for there in (folder / name, folder / (name + INDEX)):
            if os.path.lexists(there) and not there.is_file():
                raise PvmlError(f"{there} is there, and is no file that can be read")
        if (folder / name).is_file():
            return read_state_dict(folder / name), folder / name
        if (folder / (name + INDEX)).is_file():
            index = folder / (name + INDEX)
            return _read_shards(index), index
    raise PvmlError(f"{folder} holds no weights: expected {' or '.join(WHOLE)}, whole or in shards")


def shards_of(index: Path) -> list[str]:
    """The files that an index names, each in the index's own folder.

    Raises: PvmlError if it names none, or one elsewhere.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise PvmlError(f"{index} is damaged: it has no weight_map")
    shards = sorted({str(file) for file in weight_map.values()})
    for shard in shards:
        if Path(shard).name != shard or "\\" in shard:
            raise PvmlError(f"{index} points out of its folder, to {shard!r}")
    return shards


def _read_shards(index: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for shard in shards_of(index):
        if not (index.parent / shard).is_file():
            raise PvmlError(f"{index} names the shard {shard}, which is missing")
        part = read_state_dict(index.parent / shard)
        twice = sorted(part.keys() & state.keys())
        if twice:
            raise PvmlError(f"{index}: {', '.join(twice)} in {shard} and in another shard, too")
        state |= part
    return state
