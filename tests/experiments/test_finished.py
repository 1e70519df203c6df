"""A run that lies there is taken for what it is: its flags, its texts, its figures."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pvml.cli.train import ModelFlags, TrainFlags
from pvml.errors import PvmlError, RunDirError
from pvml.runs.format import RunDir
from pvml.runs.lock import locked
from pvml.training.args import TrainingArgs

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a corpus of ten documents that hold a word; its path."""

    def write(name: str, word: str) -> str:
        path = tmp_path / name
        texts = [f"The {word} saw {n} birds and went home. " * 3 for n in range(10)]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return str(path)

    return write


@pytest.fixture
def flags(write: Write, tmp_path: Path) -> TrainFlags:
    """Two steps of a tiny model."""
    return TrainFlags(
        data=write("train.jsonl", "cat"),
        held_out=write("a.jsonl", "dog"),
        tokenizer="bpe:270",
        run_dir=tmp_path / "runs",
        name="run",
        model=ModelFlags(d_model=6, n_layers=1, n_heads=2, n_ctx=13),
        training=TrainingArgs(
            epochs=1, max_steps_per_epoch=2, batch_size=2, sample_prompt=None, seed=3
        ),
    )


def test_a_finished_run_is_of_its_texts(flags: TrainFlags, write: Write) -> None:
    """Another held-out text is refused, and so is either file once it holds something else."""
    from finished import finished_run

    summary = finished_run(flags).summary()
    assert finished_run(flags).summary() == summary

    with pytest.raises(
        PvmlError, match=r"other settings .* held_out .*b\.jsonl \(the run: .*a\.js"
    ):
        finished_run(replace(flags, held_out=write("b.jsonl", "hen")))
    write("a.jsonl", "hen")
    with pytest.raises(PvmlError, match=r"a\.jsonl as it was then"):
        finished_run(flags)
    write("a.jsonl", "dog")
    write("train.jsonl", "cow")
    with pytest.raises(PvmlError, match="was begun on other documents than train holds now"):
        finished_run(flags)
    write("train.jsonl", "cat")
    assert finished_run(flags).summary() == summary


def test_a_damaged_summary_is_told(flags: TrainFlags) -> None:
    """By its file, with the figure that is missing or wrong."""
    from finished import finished_run

    summary = finished_run(flags).path / "summary.json"
    whole = json.loads(summary.read_text())
    for damage, told in (
        ({"steps": "2"}, "steps must be a whole number"),
        ({"bits_per_byte": None}, "bits_per_byte must be a finite number"),
        ({"parameters": {}}, "parameters, has no total"),
    ):
        summary.write_text(json.dumps({**whole, **damage}))
        with pytest.raises(RunDirError, match=f"summary.json.*{told}"):
            finished_run(flags)


def test_a_run_that_is_being_trained_is_told(flags: TrainFlags) -> None:
    """With the process that trains it, and no flag that the scripts lack."""
    from finished import finished_run

    path = finished_run(flags).path
    (path / "summary.json").unlink()
    with locked(path), pytest.raises(RunDirError, match="is being trained by process") as told:
        finished_run(flags)
    assert "--name" not in str(told.value)
    assert not RunDir.open(path).finished
