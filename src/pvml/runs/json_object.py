"""A JSON file that holds one object: valid whatever goes in, refused by name if it is damaged."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pvml.errors import RunDirError

_DEEPEST = 100
"""Levels: what is far deeper can be read, and then not be compared or written."""
_LARGEST = 64 << 20
"""Bytes: no program of this kind writes more, and Python needs many times as much to hold it."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises: RunDirError naming the file if it is missing, damaged, or holds no object.
    """
    try:
        if not path.is_file():  # a pipe or a device would be read without end
            raise FileNotFoundError("it is no file")
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirError(f"{path} is missing, damaged or cut short: {error}") from error
    if not isinstance(content, dict):
        raise RunDirError(f"{path} is damaged: expected a JSON object")
    if _is_deeper(content, _DEEPEST):
        raise RunDirError(f"{path} is damaged: it is nested more than {_DEEPEST} deep")
    return content


def to_json(value: Any, indent: int | None = None) -> str:
    """Valid JSON, which has no NaN and no infinity: null stands for them."""
    text = json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name's bytes that are no UTF-8 come as half surrogates
        return json.dumps(_finite(value), allow_nan=False, indent=indent)
    return text


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            entry
            for one in level
            if isinstance(one, dict | list)
            for entry in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
