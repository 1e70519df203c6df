"""A log of JSON lines: valid whatever is logged, and a torn last line is never fatal."""

import json
import math
from pathlib import Path

import pytest

from pvml.errors import RunDirError
from pvml.runs.jsonlines import JsonLines, to_json

ROWS = [{"step": 1, "loss": 2.5}, {"step": 2, "text": "é\n🙂"}, {"step": 3, "loss": 0.1}]


@pytest.fixture
def log(tmp_path: Path) -> JsonLines:
    log = JsonLines(tmp_path / "log.jsonl")
    for row in ROWS:
        log.append(row)
    return log


def forbid(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


# By hand


def test_nan_becomes_null() -> None:
    """NaN and infinity, however deep, are written as null; other values as they are."""
    row = {"a": math.nan, "b": [math.inf, (1, -math.inf)], "c": {"d": math.nan}, "e": 1e300}

    assert to_json(row) == '{"a": null, "b": [null, [1, null]], "c": {"d": null}, "e": 1e+300}'


# Laws


def test_rows_come_back_in_order(log: JsonLines) -> None:
    """Each row is one line of strict JSON, and reads back equal."""
    lines = log.path.read_text("utf-8").splitlines()

    assert [json.loads(line, parse_constant=forbid) for line in lines] == ROWS
    assert list(log) == list(JsonLines(log.path)) == ROWS


def test_wherever_the_last_line_is_torn(log: JsonLines) -> None:
    """Cut after any of its bytes, the last row is left out, and the next one replaces it."""
    whole = log.path.read_bytes()
    kept = len(b"".join(whole.splitlines(keepends=True)[:2]))
    for end in range(kept, len(whole)):
        log.path.write_bytes(whole[:end])
        torn = JsonLines(log.path)
        assert list(torn) == ROWS[:2]
        torn.append(ROWS[2])
        assert log.path.read_bytes() == whole


def test_a_last_line_of_nonsense_is_torn(log: JsonLines) -> None:
    """NUL bytes, as a power cut leaves them, and a line that is no object count as torn."""
    whole = log.path.read_bytes()
    for nonsense in (b"\0" * 99, b"\0\0\n", b"17\n", b"\xff\n"):
        log.path.write_bytes(whole + nonsense)
        assert list(JsonLines(log.path)) == ROWS
        JsonLines(log.path).append({"step": 4})
        assert log.path.read_bytes() == whole + b'{"step": 4}\n'


def test_keep_while_cuts_at_the_first_unwanted_row(log: JsonLines) -> None:
    """The rows before the first unwanted one stay, byte for byte; the rest is gone."""
    before = log.path.read_bytes().splitlines(keepends=True)
    log.keep_while(lambda row: "loss" in row)

    assert log.path.read_bytes() == before[0]
    log.keep_while(lambda row: True)
    assert log.path.read_bytes() == before[0]


def test_a_tail_is_the_rows_that_begin_in_it(log: JsonLines) -> None:
    """Of the last n bytes, for every n: the rows that begin there; a torn last line is left out."""
    lines = log.path.read_bytes().splitlines(keepends=True)
    with log.path.open("ab") as file:
        file.write(b'{"step": 4')
    begins = [sum(map(len, lines[:i])) for i in range(len(lines))]
    size = log.size()

    for n_bytes in range(size + 3):
        inside = sum(begin >= size - n_bytes for begin in begins)
        assert log.tail(n_bytes) == ROWS[len(ROWS) - inside :]


# Contracts


def test_an_absent_log_is_empty(tmp_path: Path) -> None:
    """A log that was never written has no rows; reading, cutting and syncing do not make it."""
    log = JsonLines(tmp_path / "log.jsonl")
    log.keep_while(lambda row: False)
    log.sync()

    assert list(log) == log.tail(9) == [] and log.size() == 0 and not log.path.exists()


def test_damage_before_the_last_line_is_named(log: JsonLines) -> None:
    """A damaged line that others follow is no torn one: file and line are named, nothing is cut."""
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(lines[0] + b'{"step": 2, "te\n' + lines[2])
    before = log.path.read_bytes()
    with pytest.raises(RunDirError, match=r"damaged: a line after byte \d+ is not a JSON object"):
        log.tail(len(before) - 1)
    for act in (list, JsonLines.cut_torn_line):
        with pytest.raises(RunDirError, match=r"log\.jsonl is damaged: line 2 is not"):
            act(JsonLines(log.path))

    assert log.path.read_bytes() == before


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A log in a folder that is not there is an error that names the file."""
    with pytest.raises(RunDirError, match=r"log\.jsonl could not be written"):
        JsonLines(tmp_path / "nowhere" / "log.jsonl").append({"step": 1})


def test_half_a_surrogate_pair_survives() -> None:
    """A file name that is no UTF-8 can be written, and is read back as it was."""
    text = to_json({"source": "na\udcffme", "é": 1})

    assert json.loads(text.encode()) == {"source": "na\udcffme", "é": 1}


def test_a_line_nested_beyond_all_depth(log: JsonLines) -> None:
    """Brackets without end are damage like any other: torn as the last line, named before it."""
    with log.path.open("a") as file:
        file.write("[" * 100_000 + "\n")
    assert list(JsonLines(log.path)) == ROWS
    with log.path.open("a") as file:
        file.write("{}\n")
    with pytest.raises(RunDirError, match=r"line 4 is not a JSON object"):
        list(JsonLines(log.path))


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A folder in the log's place: an error of ours, which a listing can tell of one run."""
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(RunDirError, match=r"log\.jsonl cannot be read: Is a directory"):
        list(JsonLines(tmp_path / "log.jsonl"))
