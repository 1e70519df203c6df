"""`pvml train`: what does not fit the corpus leaves no folder; a preset's warm-up fits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.cli.material import prepare
from pvml.cli.train import TrainFlags
from pvml.cli.training_run import _require_trainable
from pvml.errors import PvmlError
from pvml.runs.format import RunDir
from pvml.training.args import TrainingArgs
from pvml.training.processes import Processes

WORDS = ["cat", "dog", "bird", "fish", "cow", "hen", "fox", "bee", "ant", "owl", "pig"]
STORIES = [f"The {a} saw the {b}. The {b} ran." for a in WORDS for b in WORDS[:4]]
SIZES = ["--d-model", "12", "--n-heads", "3", "--n-layers", "1", "--n-ctx", "11"]
STEPS = ["--epochs", "2", "--max-steps-per-epoch", "10", "--batch-size", "2", "--device", "cpu"]
LAPTOP = ["--preset", "laptop", "--precision", "float32"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tales.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in STORIES))


def train(*flags: str) -> int:
    corpus = ["--data", "tales.jsonl", "--tokenizer", "bpe:300", "--sample-prompt", "None"]
    return main(["train", *corpus, *SIZES, *STEPS, "--name", "r", *flags])


def warmup(name: str) -> Any:
    return RunDir.open(f"runs/{name}").args["warmup_steps"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--warmup-steps 60 is longer than the run, which has 20 steps: give at most 20"),
        (["--seeds", "0,1"], "--warmup-steps 60 is longer than the run"),
        (LAPTOP, "--warmup-steps 60 is longer than the run"),
    ],
)
def test_a_warm_up_that_does_not_fit_leaves_the_name_free(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused by its flag's name before there is a run, so the mended command goes through.

    One that the user gives is the user's, also beside a preset.
    """
    assert train(*flags, "--warmup-steps", "60") == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(Path("runs").glob("[!.]*"))
    assert train(*flags, "--warmup-steps", "6") == 0


def test_a_refused_overwrite_leaves_the_run() -> None:
    """A run that was to be replaced is still there when the new one is refused."""
    assert train() == 0
    before = Path("runs/r/summary.json").read_bytes()
    assert train("--overwrite", "--warmup-steps", "60") == 2

    assert Path("runs/r/summary.json").read_bytes() == before


def test_a_preset_fits_a_small_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    """Its warm-up of 60 is a tenth of 20 steps here, and the run goes on by the same command."""
    assert train(*LAPTOP) == 0
    assert warmup("r") == 2
    for flags in ([], ["--name", "r"]):
        assert train(*LAPTOP, *flags, "--resume") == 2
        assert "is finished, there is nothing to resume" in capsys.readouterr().err
    assert train(*LAPTOP, "--resume", "--warmup-steps", "60") == 2
    assert "--warmup-steps 60 (the run: 2)" in capsys.readouterr().err


def test_seeds_of_a_preset_share_the_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    """A seed that is added later has the same; none is added to runs that had another."""
    assert train(*LAPTOP, "--seeds", "0") == 0
    assert train(*LAPTOP, "--seeds", "0,1", "--resume") == 0
    assert (warmup("r-seed0"), warmup("r-seed1")) == (2, 2)

    assert train(*LAPTOP, "--seeds", "0", "--name", "other", "--warmup-steps", "5") == 0
    assert train(*LAPTOP, "--seeds", "0,1", "--name", "other", "--resume") == 2
    assert "--warmup-steps 2 (other-seed0: 5)" in capsys.readouterr().err
    assert not Path("runs/other-seed1").exists()


def test_a_schedule_beside_a_presets_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Where even the shortened warm-up leaves no room, the message says whose it is."""
    assert train(*LAPTOP, "--schedule", "wsd", "--decay-share", "1") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "(--decay-share 1.0), overlap" in told
    assert "(the warm-up is --preset laptop's)" in told


def test_a_batch_too_small_to_be_shared_is_refused_before_the_run() -> None:
    """Of 2 rows, 3 processes get none: that is known without a trainer."""
    flags = TrainFlags(data="tales.jsonl", tokenizer="bpe:300", training=TrainingArgs(batch_size=2))
    material = prepare(replace(flags, model=replace(flags.model, n_ctx=11)))
    with pytest.raises(PvmlError, match="cannot be shared by 3 processes"):
        _require_trainable(flags, material, Processes(0, 3, t.device("cpu")))
