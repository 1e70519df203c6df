"""`pvml train --resume`: what must be as it was, and what is told when it is not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.data.split import split_documents
from pvml.errors import RunDirError
from pvml.training.interrupt import TrainingStopped
from pvml.training.trainer import Trainer

WORDS = ["cat", "dog", "bird", "fish", "cow", "hen", "fox", "bee", "ant", "owl", "pig"]
STORIES = [f"The {a} saw the {b}. The {b} ran." for a in WORDS for b in WORDS[:5]][:50]
SMALL = ["--d-model", "12", "--n-heads", "3", "--n-layers", "1", "--n-ctx", "11"]
SHORT = ["--epochs", "2", "--max-steps-per-epoch", "3", "--batch-size", "2", "--device", "cpu"]
RESUME = ["train", "--resume", "--device", "cpu"]

Stop = Callable[..., Path]


def write(texts: list[str]) -> None:
    Path("tales.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def train(*flags: str) -> int:
    basics = ["--data", "tales.jsonl", "--tokenizer", "bpe:300", "--sample-prompt", "None"]
    return main(["train", *basics, *SMALL, *SHORT, *flags])


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Makes a run of six steps in an empty folder and stops it after four, saved."""
    monkeypatch.chdir(tmp_path)
    write(STORIES)

    def stop(*flags: str, name: str = "cut") -> Path:
        whole_step = Trainer.training_step

        def stopping(trainer: Trainer, tokens: Any) -> Any:
            if trainer.step == 4:
                trainer.save()
                raise TrainingStopped("stopped")
            return whole_step(trainer, tokens)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "training_step", stopping)
            assert train("--name", name, *flags) == 130
        return Path("runs") / name

    return stop


def refused(capsys: pytest.CaptureFixture[str], *flags: str, name: str = "cut") -> str:
    """What `--resume` says; the run is as it was."""
    run = Path("runs") / name
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*RESUME, "--name", name, *flags]) == 2
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {**before, run / "lock": b""} == {**after, run / "lock": b""}
    return capsys.readouterr().err


def test_a_corpus_whose_held_out_side_changed_is_refused(
    stopped: Stop, capsys: pytest.CaptureFixture[str]
) -> None:
    """One held-out document less, or two of them swapped: the rows are the same, the grades not."""
    stopped()
    capsys.readouterr()
    training, (one, two, *_) = split_documents(STORIES, None, 0)
    swap = {one: two, two: one}
    # a tenth of 49 is one less than of 50, so nothing else moves
    less, swapped = [s for s in STORIES if s != one], [swap.get(s, s) for s in STORIES]
    for changed in (less, swapped):
        assert split_documents(changed, None, 0)[0] == training
        write(changed)
        err = refused(capsys)
        assert "runs/cut was begun on other documents than tales holds now" in err
    write(STORIES)
    assert main([*RESUME, "--name", "cut"]) == 0


def test_an_older_run_goes_on(stopped: Stop) -> None:
    """A config that kept no fingerprint of the corpus says nothing against going on."""
    config = stopped() / "config.json"
    stored = json.loads(config.read_text())
    del stored["data"]["fingerprint"]
    config.write_text(json.dumps(stored))
    assert main([*RESUME, "--name", "cut"]) == 0


def test_another_runs_checkpoints_are_refused(
    stopped: Stop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Same data, same shape, another seed: its checkpoints do not go on under this config."""
    stopped("--seed", "1", name="other")
    stopped()
    shutil.rmtree("runs/cut/checkpoints")
    shutil.copytree("runs/other/checkpoints", "runs/cut/checkpoints")

    assert "a run of other settings: args.seed 1 (the run: 0)" in refused(capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "0"], "--seed 0 (the run: 1)"),
        (["--lr=0.001"], "--lr 0.001 (the run: 0.01)"),
        (["--weight_decay", "0.01"], "--weight-decay 0.01 (the run: 0.0)"),
        (["--optimizer", "adamw"], "--optimizer adamw (the run: muon)"),
        (["--no-attn-only"], "--attn-only False (the run: True)"),
        (["--limit", "None"], "--limit None (the run: 49)"),
        (["--tokenizer", "bpe:4096"], "--tokenizer bpe:4096 (the run: bpe:300)"),
        (["--grad-clip", "None"], "--grad-clip None (the run: 1.0)"),
        (["--d-model", "128"], "--d-model 128 (the run: 12)"),
        (["--held-out", "None"], "--held-out None (the run: tales.jsonl)"),
        (["--data", "storybook"], "than storybook holds now"),
    ],
)
def test_a_flag_at_its_default_is_heard(
    stopped: Stop, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    """What is given on the command line and contradicts the run is refused, default or not."""
    stopped(
        *["--seed", "1", "--lr", "0.01", "--weight-decay", "0", "--optimizer", "muon"],
        *["--attn-only", "--limit", "49", "--grad-clip", "1", "--held-out", "tales.jsonl"],
    )
    assert message in refused(capsys, *flags)


def test_a_flag_that_agrees_is_heard_too(stopped: Stop) -> None:
    """The flags of the run itself, defaults among them, let it go on."""
    stopped("--seed", "1", "--attn-only")
    agreeing = ["--seed", "1", "--lr", "0.001", "--optimizer", "adamw", "--attn-only"]
    assert main([*RESUME, "--name", "cut", *agreeing, "--held-out", "None"]) == 0


def rewrite_row(path: Path, place: int, **changes: object) -> None:
    lines = path.read_text().splitlines()
    lines[place] = json.dumps({**json.loads(lines[place]), **changes})
    path.write_text("".join(line + "\n" for line in lines))


def test_a_damaged_row_is_told_before_any_step(
    stopped: Stop, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row by hand that the summary could not be made of is named; nothing is trained or cut."""
    metrics = stopped() / "metrics.jsonl"
    whole = metrics.read_bytes()
    for name, value in (("step", "x"), ("step", 2.5), ("loss", None), ("loss", 10**400)):
        rewrite_row(metrics, 1, **{name: value})
        assert f"runs/cut/metrics.jsonl is damaged: line 2: its {name} is" in refused(capsys)
        metrics.write_bytes(whole)
    assert main([*RESUME, "--name", "cut"]) == 0


def test_a_damaged_log_of_a_run_without_a_checkpoint(
    stopped: Stop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where all is begun again, a row of no step is still told, not tripped over."""
    run = stopped()
    shutil.rmtree(run / "checkpoints")
    rewrite_row(run / "metrics.jsonl", 0, step=None)
    assert "line 1: its step is None" in refused(capsys)


def test_files_nested_without_end(stopped: Stop, capsys: pytest.CaptureFixture[str]) -> None:
    """A config of a hundred thousand brackets is a damaged one, and hides no other run."""
    run, deep = stopped(), "[" * 100_000
    stopped(name="other")
    sums = run / "checkpoints" / "step-4" / "checksums.json"
    sums.write_text(deep)
    assert main([*RESUME, "--name", "cut"]) == 0
    assert "step-4 is damaged: checksums.json is damaged" in capsys.readouterr().err

    (run / "config.json").write_text(deep)
    assert "config.json is missing, damaged or cut short" in refused(capsys)
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "damaged: config.json" in out
    assert "stopped at step 4 of 6" in out


def test_a_run_without_end_is_refused_before_it_is_made(
    stopped: Stop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each number may be allowed and their product still be more steps than anyone can take."""
    stopped()
    capsys.readouterr()
    assert train("--name", "long", "--epochs", "1000000000", "--max-steps-per-epoch", "2") == 2
    err = capsys.readouterr().err
    assert "make 2,000,000,000 steps of this corpus, and a run has at most 1,000,000,000" in err
    assert not Path("runs/long").exists()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, "x", None])
def test_a_time_that_is_none_is_told_before_any_step(
    stopped: Stop, capsys: pytest.CaptureFixture[str], seconds: object
) -> None:
    """A training state by hand, without checksums, whose seconds the summary could not hold."""
    run = stopped()
    for folder in (run / "checkpoints").glob("step-*"):
        state = t.load(folder / "training.pt", weights_only=True)
        t.save({**state, "seconds": seconds}, folder / "training.pt")
        (folder / "checksums.json").unlink()
    assert "last checkpoint is damaged" in refused(capsys)


@pytest.mark.parametrize("init_range", ["1e30", "1e308"])
def test_first_weights_beyond_all_sense_are_refused(
    stopped: Stop, capsys: pytest.CaptureFixture[str], init_range: str
) -> None:
    """They would overflow in the first steps, and the error would blame the learning rate."""
    stopped()
    capsys.readouterr()
    assert train("--name", "huge", "--init-range", init_range) == 2
    assert "init_range must be at most 1e+06 for a training" in capsys.readouterr().err
    assert not Path("runs/huge").exists()


def test_a_full_disk_says_what_stays(
    stopped: Stop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not even `latest` can be written, --resume still says where it can go on from."""
    stopped()

    def full(path: Path, text: str) -> None:
        raise RunDirError(f"{path} could not be written (No space left on device)")

    monkeypatch.setattr("pvml.runs.checkpoints.write_whole", full)
    assert "The checkpoint of step 4 stays, and --resume goes on from it" in refused(capsys)
