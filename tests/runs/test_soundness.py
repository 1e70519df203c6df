"""The rows of a run's logs, asked before a training goes on: file and line of what is damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvml.errors import RunDirError
from pvml.runs.jsonlines import JsonLines
from pvml.runs.soundness import require_sound

GRADES = {"accuracy": 0.5, "held_out_loss": 2.0, "bits_per_byte": 1.5}
ROWS: list[dict[str, Any]] = [
    {"step": 1, "loss": 5.0},
    {"step": 2, "loss": 4},
    {"step": 2, **GRADES},
    {"step": 3, "loss": -1e-7},
]


def check(folder: Path, rows: list[dict[str, Any]], step: int = 3) -> None:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = folder / "samples.jsonl"
    samples.write_text(json.dumps({"step": 2, "text": "a"}) + "\n")
    require_sound(JsonLines(path), JsonLines(samples), step)


def test_what_a_training_writes_is_sound(tmp_path: Path) -> None:
    """Steps in order, epochs between them; a run that logged nothing; rows that are cut anyway."""
    check(tmp_path, ROWS)
    check(tmp_path, [])
    check(tmp_path, [*ROWS, {"step": 4, "loss": 1.0}, {"step": 5, "loss": "x"}])


@pytest.mark.parametrize("step", ["x", None, [], 2.5, True, -1])
def test_a_step_that_is_none_is_named(tmp_path: Path, step: object) -> None:
    """A step that is no whole number is an error with file and line."""
    with pytest.raises(RunDirError, match=r"metrics.jsonl is damaged: line 2: its step is "):
        check(tmp_path, [ROWS[0], {**ROWS[1], "step": step}, *ROWS[2:]])


@pytest.mark.parametrize("value", ["x", None, [1], True, 1e308, -1e39, 10**400])
@pytest.mark.parametrize(("row", "name"), [(1, "loss"), *((2, name) for name in GRADES)])
def test_a_number_that_is_none_is_named(tmp_path: Path, value: object, row: int, name: str) -> None:
    """So is a loss or a grade that is no number, or larger than any that float32 holds."""
    changed = [dict(one) for one in ROWS]
    changed[row][name] = value
    with pytest.raises(RunDirError, match=rf"line {row + 1}: its {name} is .*no training gives"):
        check(tmp_path, changed)


def test_steps_follow_one_another(tmp_path: Path) -> None:
    """A row that is missing, or there twice, would weigh in the summary: it is named."""
    with pytest.raises(RunDirError, match=r"line 3: it is of step 3, and follows step 1"):
        check(tmp_path, [ROWS[0], ROWS[2], ROWS[3]])
    with pytest.raises(RunDirError, match=r"line 3: it is of step 2, and follows step 2"):
        check(tmp_path, [ROWS[0], ROWS[1], ROWS[1], *ROWS[2:]])


def test_samples_are_asked_too(tmp_path: Path) -> None:
    """A sample of no step could not be cut."""
    samples = JsonLines(tmp_path / "samples.jsonl")
    samples.append({"step": "x", "text": "a"})
    with pytest.raises(RunDirError, match=r"samples.jsonl is damaged: line 1: its step is 'x'"):
        require_sound(JsonLines(tmp_path / "metrics.jsonl"), samples, 3)
