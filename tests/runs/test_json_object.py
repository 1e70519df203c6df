"""JSON files of one object: valid whatever goes in, and damage is told by the file's name."""

import json
from pathlib import Path

import pytest

from pvml.errors import RunDirError
from pvml.runs.json_object import read_json, to_json

DEEP = '{"a":' * 101 + "1" + "}" * 101
"""Read, but too deep for whoever compares or writes it."""


def test_what_json_lacks_becomes_null() -> None:
    """NaN and infinities become null at any depth, so that any reader takes the text."""
    text = to_json({"a": float("nan"), "b": [1.5, float("-inf")], "c": {"d": float("inf")}})

    assert json.loads(text) == {"a": None, "b": [1.5, None], "c": {"d": None}}


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "7", '"{}"', "\x00", "[" * 100_000, '{"a":' * 100_000, DEEP]
)
def test_a_file_that_holds_no_object_is_named(tmp_path: Path, text: str) -> None:
    """A damaged file, or one of something else, is an error that says which."""
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(RunDirError, match=r"config\.json is (missing, )?damaged"):
        read_json(path)


def test_an_object_survives(tmp_path: Path) -> None:
    """What was written is read; a file that is not there is told."""
    path = tmp_path / "config.json"
    path.write_text(to_json({"name": "für", "n": 3}, indent=2), encoding="utf-8")

    assert read_json(path) == {"name": "für", "n": 3}
    with pytest.raises(RunDirError, match=r"other\.json is missing"):
        read_json(tmp_path / "other.json")
