"""Putting a run into the package: what is kept, what is rounded, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch as t

from pvml.cli.train import TrainFlags
from pvml.errors import PvmlError, RunDirError
from pvml.plots.curves import read_curves
from pvml.runs.format import RunDir


def test_rounding_is_to_the_nearest(bundle: ModuleType) -> None:
    """1 + 2**-11 is a tie and goes to the even 1 in float16; bfloat16 keeps 8 bits."""
    weights = {"a": t.tensor([1 + 2**-11, 1 + 2**-10, -65504.0])}

    assert bundle.in_half(weights, "float16")["a"].tolist() == [1.0, 1 + 2**-10, -65504.0]
    assert bundle.in_half(weights, "bfloat16")["a"].tolist() == [1.0, 1.0, -65536.0]


@pytest.mark.parametrize("wrong", [65520.0, math.inf, math.nan])
def test_what_float16_cannot_hold_is_refused(bundle: ModuleType, wrong: float) -> None:
    """65,520 is the first number that rounds to infinity: the tensor is named, the others not."""
    weights = {"good": t.tensor([65519.0]), "blocks.0.bad": t.tensor([1.0, wrong])}

    with pytest.raises(PvmlError, match=r"float16 cannot hold blocks\.0\.bad \(.*65504"):
        bundle.in_half(weights, "float16")


def test_thinning_keeps_the_charts(bundle: ModuleType) -> None:
    """Of steps 1 to 2050 every 100th stays, and the last, with the mean of 100 and of 50 losses."""
    rows: list[dict[str, Any]] = []
    for step in range(1, 2051):
        rows.append({"step": step, "tokens": 7 * step, "loss": float(step)})
        if step % 1025 == 0:
            grades = {"accuracy": step / 10000, "held_out_loss_by_position": [1 / 3, 2 / 3]}
            rows.append({"step": step, "epoch": step // 1025 - 1, **grades})

    hundreds = [
        {"step": step, "tokens": 7 * step, "loss": step - 49.5} for step in range(100, 2001, 100)
    ]
    assert bundle.thinned(rows) == [
        *hundreds[:10],
        {"step": 1025, "epoch": 0, "accuracy": 0.1025},
        *hundreds[10:],
        {"step": 2050, "tokens": 14350, "loss": 2025.5},
        {
            "step": 2050,
            "epoch": 1,
            "accuracy": 0.205,
            "held_out_loss_by_position": [0.3333, 0.6667],
        },
    ]


@pytest.mark.parametrize("steps", [8, 230, 2050])
def test_a_thinned_log_is_drawn_as_the_whole(
    bundle: ModuleType, make_finished: Any, steps: int
) -> None:
    """Of a run of any length: the same points at the same places."""
    path = make_finished("twin-a", [5 / step for step in range(1, steps + 1)])
    before = read_curves(path)
    rows = bundle.thinned(RunDir.open(path).rows())
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    after = read_curves(path)

    assert len(after.loss) == len(before.loss) >= min(steps, 20)
    assert len([row for row in rows if "loss" in row]) == len(before.loss)
    np.testing.assert_array_equal(after.loss, before.loss)
    for axis in ("steps", "minutes", "tokens", "flops"):
        np.testing.assert_array_equal(getattr(after.windows, axis), getattr(before.windows, axis))


def test_the_bundle_is_drawn_as_the_run_was(finished_run: Path, tiny_models: Path) -> None:
    """Every series of the charts is the same, but for the rounded loss by position."""
    before, after = read_curves(finished_run), read_curves(tiny_models / "tiny")

    for series in ("loss", "accuracy", "held_out_loss", "bits_per_byte"):
        np.testing.assert_array_equal(getattr(after, series), getattr(before, series))
    for axis in ("steps", "minutes", "tokens", "flops"):
        np.testing.assert_array_equal(getattr(after.windows, axis), getattr(before.windows, axis))
    np.testing.assert_allclose(after.by_position, before.by_position, atol=5e-5)


def test_what_the_folder_holds(finished_run: Path, tiny_models: Path) -> None:
    """Seven files, readable by all; the tokenizer's bytes are the run's."""
    files = {file.name: file for file in (tiny_models / "tiny").iterdir()}

    assert sorted(files) == [
        "README.md",
        "config.json",
        "curve.png",
        "metrics.jsonl",
        "model.safetensors",
        "summary.json",
        "tokenizer.json",
    ]
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in files.values())
    ours = (finished_run / "tokenizer.json").read_bytes()
    assert files["tokenizer.json"].read_bytes() == ours
    # 2 bytes a weight, and a header
    weights = (finished_run / "model.safetensors").stat().st_size
    assert files["model.safetensors"].stat().st_size < 0.75 * weights


def test_absolute_paths_are_told_from_here(
    bundle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data's path and the held-out one become relative; words and the rest stay."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    flags = TrainFlags(
        data=str(tmp_path / "data" / "a.txt"), run_dir=tmp_path, name="b", held_out="storybook:5"
    )

    told = bundle.told_from_here(flags, "c")

    assert told == replace(flags, data="../data/a.txt", run_dir=Path("runs"), name="c")


def test_how_the_corpus_was_written_is_told(
    bundle: ModuleType, finished_run: Path, tmp_path: Path
) -> None:
    """The command that writes the text stands before the one that trains on it."""
    args = bundle.Args(
        run=finished_run, name="told", text="storybook:5", to=tmp_path, corpus_by="python make.py"
    )
    page = (bundle.main(args) / "README.md").read_text()

    assert "    python make.py\n    pvml train --data" in page


def test_nothing_is_given_away_without_a_word_on_rights(bundle: ModuleType) -> None:
    """TinyStories' licence and authors are told; a corpus that nobody wrote about is refused."""
    told = bundle.rights("../shared/data/tinystories/train.jsonl.xz")
    assert "CDLA-Sharing-1.0" in told
    assert "arXiv:2305.07759" in told

    with pytest.raises(PvmlError, match=r"rights in 'a\.txt'"):
        bundle.rights("a.txt")


def args_for(bundle: ModuleType, run: Path, to: Path, **changes: Any) -> Any:
    return bundle.Args(**{"run": run, "name": "x", "text": "storybook:3", "to": to, **changes})


def test_an_unfinished_run_is_refused(
    bundle: ModuleType, finished_run: Path, tmp_path: Path
) -> None:
    """Without a summary there are no grades: nothing is written."""
    run = tmp_path / "unfinished"
    run.mkdir()
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        (run / file).write_bytes((finished_run / file).read_bytes())

    with pytest.raises(PvmlError, match="is not finished"):
        bundle.main(args_for(bundle, run, tmp_path / "models"))
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["gpt2", "A", "a/b", "", "..", "1a"])
def test_a_name_that_means_something_else_is_refused(
    bundle: ModuleType, finished_run: Path, tmp_path: Path, name: str
) -> None:
    """Names of the hub's models, and names that are no plain words, are refused."""
    with pytest.raises(PvmlError, match="must be small letters"):
        bundle.main(args_for(bundle, finished_run, tmp_path, name=name))


def test_a_model_is_replaced_only_when_asked(
    bundle: ModuleType, finished_run: Path, tmp_path: Path
) -> None:
    """A name that is taken is refused; --overwrite puts the new one there, whole."""
    args = args_for(bundle, finished_run, tmp_path)
    bundle.main(args)
    with pytest.raises(RunDirError, match="already holds a run"):
        bundle.main(args)

    bundle.main(replace(args, dtype="bfloat16", overwrite=True))

    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["bundle"]["dtype"] == "bfloat16"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failure_leaves_what_was_there(
    bundle: ModuleType, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full while the curve is drawn, the old model stays and no rest is left."""
    args = args_for(bundle, finished_run, tmp_path, overwrite=True)
    bundle.main(args)
    before = (tmp_path / "x" / "summary.json").stat().st_ino

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "loss_curve", full)
    with pytest.raises(RunDirError, match="No space left"):
        bundle.main(args)

    assert (tmp_path / "x" / "summary.json").stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert RunDir.open(tmp_path / "x").finished
