"""`pvml train --held-out`: graded on other text, resumed with the same, compared by it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.data.rows import pack
from pvml.data.sources import fingerprint_of
from pvml.runs.compare import notes
from pvml.runs.facts import read_facts
from pvml.runs.format import RunDir
from pvml.training.evaluation import bits_per_byte, grade_held_out
from pvml.training.interrupt import TrainingStopped
from pvml.training.trainer import Trainer

WORDS = ["cat", "dog", "bird", "fish", "cow", "hen", "fox", "bee", "ant", "owl", "pig"]
STORIES = [f"The {one} saw the {two}. The {two} ran." for one in WORDS for two in WORDS[:4]]
OTHERS = [f"The {one} and the {one} sat." for one in WORDS[:7]]
SMALL = ["--d-model", "12", "--n-heads", "3", "--n-layers", "1", "--n-ctx", "11"]
SHORT = ["--epochs", "2", "--max-steps-per-epoch", "3", "--batch-size", "2", "--device", "cpu"]

Train = Callable[..., int]


def write(path: str, texts: list[str]) -> None:
    Path(path).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """`pvml train` of six steps on 44 stories, graded on 7 others, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    write("tales.jsonl", STORIES)
    write("others.jsonl", OTHERS)

    def run(*flags: str, held_out: str | None = "others.jsonl") -> int:
        basics = ["--data", "tales.jsonl", "--tokenizer", "bpe:300", "--sample-prompt", "None"]
        graded = [] if held_out is None else ["--held-out", held_out]
        return main(["train", *basics, *graded, *SMALL, *SHORT, *flags])

    return run


@pytest.fixture
def stopped(train: Train, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunDir]:
    """Makes a run and stops it after two steps, saved."""

    def stop(*flags: str, **others: Any) -> RunDir:
        whole_step = Trainer.training_step

        def stopping(trainer: Trainer, tokens: Any) -> Any:
            if trainer.step == 2:
                trainer.save()
                raise TrainingStopped("stopped")
            return whole_step(trainer, tokens)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "training_step", stopping)
            assert train("--name", "cut", *flags, **others) == 130
        return RunDir.open("runs/cut")

    return stop


def grades(name: str) -> list[float]:
    return [row["held_out_loss"] for row in RunDir.open(f"runs/{name}").rows("held_out_loss")]


RESUME = ["train", "--resume", "--name", "cut", "--device", "cpu"]


def test_a_run_is_graded_on_the_other_text(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of --data is trained on, and the grades are those of every document of --held-out."""
    assert train("--name", "graded") == 0

    run = RunDir.open("runs/graded")
    model, tokenizer = run.load_model("cpu"), run.tokenizer()
    assert run.data["tokens"] == len(pack(tokenizer, STORIES, 11).stream)
    held_out = grade_held_out(model, pack(tokenizer, OTHERS, 11))
    summary = run.summary()
    assert summary["final_held_out_loss"] == pytest.approx(held_out.loss, rel=1e-6)
    assert summary["final_accuracy"] == held_out.accuracy
    bits = bits_per_byte(model, tokenizer, OTHERS)
    assert summary["bits_per_byte"] == pytest.approx(bits, rel=1e-6)
    out = capsys.readouterr().out
    assert "corpus     tales: 44 documents, all trained on\n" in out
    assert "held out   others: 7 documents\n" in out


def test_what_a_run_keeps_of_its_held_out_text(train: Train) -> None:
    """config.json says where it lay, which text it was, and how many documents; else nothing."""
    train("--name", "graded")
    train("--name", "split", held_out=None)
    graded, split = (RunDir.open(f"runs/{name}").data for name in ("graded", "split"))

    assert (graded["held_out"], graded["held_out_documents"]) == ("others.jsonl", 7)
    assert graded["held_out_fingerprint"] == fingerprint_of(OTHERS)
    assert (split["held_out"], split["held_out_documents"]) == (None, 4)
    assert "held_out_fingerprint" not in split


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--n-held-out", "3"], "--held-out is graded whole and --n-held-out takes documents out"),
        (["--held-out", "nowhere.txt"], "there is no corpus 'nowhere.txt'"),
        (["--held-out", ""], "there is no corpus ''"),
        (["--n-ctx", "200"], "the held-out documents: "),
        (["--n-ctx", "200"], "n_ctx 200 takes 199 besides BOS. Give more text, or lower n_ctx"),
        (["--n-ctx", "200"], "Give a larger --held-out"),
        (["--limit", "1", "--n-ctx", "40"], "the training documents: "),
        (["--limit", "1", "--n-ctx", "40"], "Give a larger --data"),
    ],
)
def test_bad_use_trains_nothing(
    train: Train, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    """What cannot be graded is told in words, with 2, and no run is made."""
    assert train("--tokenizer", "bpe:280", *flags) == 2
    assert message in capsys.readouterr().err
    assert [path for path in Path("runs").glob("*") if path.name != ".tokens"] == []


def test_text_that_is_trained_on_is_told(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """Grades of a text that stands in the training text flatter, so that is said at the start."""
    write("others.jsonl", [*OTHERS, STORIES[3]])
    train("--name", "graded")
    told = "The training text holds 1 of the 8 held-out documents too"
    assert told in capsys.readouterr().out


def test_more_to_grade_than_to_train_is_told(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where an epoch is shorter than its grade, both are told; else nothing is."""
    train("--name", "short")
    n_tokens = 11 * len(pack(RunDir.open("runs/short").tokenizer(), OTHERS, 11))
    assert f"reads 66 tokens, and is graded on {n_tokens}" in capsys.readouterr().out
    train("--name", "long", "--max-steps-per-epoch", "30", "--batch-size", "7")
    assert "is graded on" not in capsys.readouterr().out


@pytest.mark.parametrize("again", ["by name", "same command", "moved"])
def test_a_stopped_run_goes_on(train: Train, stopped: Callable[..., RunDir], again: str) -> None:
    """Resumed, it is graded on the text it began with, which may lie elsewhere by then."""
    train("--name", "straight")
    stopped()
    if again == "moved":
        Path("others.jsonl").rename("moved.jsonl")
        assert main([*RESUME, "--held-out", "moved.jsonl"]) == 0
    elif again == "by name":
        assert main(RESUME) == 0
    else:
        assert train("--name", "cut", "--resume") == 0

    assert grades("cut") == grades("straight")
    straight, cut = (RunDir.open(f"runs/{name}").load_model("cpu") for name in ("straight", "cut"))
    assert t.equal(straight.embed.W_E, cut.embed.W_E)


def test_a_changed_text_is_refused(
    stopped: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    """Grades of other text would not compare with the run's earlier ones."""
    stopped()
    write("others.jsonl", OTHERS[:-1])
    write("more.jsonl", [*OTHERS, "One more."])
    capsys.readouterr()

    for flags in ([], ["--held-out", "more.jsonl"], ["--held-out", "tales.jsonl"]):
        assert main([*RESUME, *flags]) == 2
        err = capsys.readouterr().err
        assert "runs/cut is graded on others.jsonl as it was then" in err
        assert "another --name" in err


def test_the_way_of_holding_out_is_kept(
    train: Train, stopped: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that split its corpus takes no --held-out, and one that did not, no --n-held-out."""
    stopped(held_out=None)
    capsys.readouterr()
    assert main([*RESUME, "--held-out", "others.jsonl"]) == 2
    assert "--held-out others.jsonl (the run: None)" in capsys.readouterr().err

    stopped("--overwrite")
    capsys.readouterr()
    assert main([*RESUME, "--n-held-out", "5"]) == 2
    assert "--n-held-out 5 (the run: None)" in capsys.readouterr().err
    plain = ["train", "--data", "tales.jsonl", "--tokenizer", "bpe:300", *SMALL, *SHORT]
    Path("runs/cut").rename("runs/tales-d12-l1-h3-ctx11-6")
    assert main([*plain, "--sample-prompt", "None", "--resume"]) == 2
    assert "these flags hold out documents of --data" in capsys.readouterr().err


def test_a_record_of_another_kind_is_told(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """A held-out entry that is no text is an error that shows it."""
    train("--name", "cut")
    config = Path("runs/cut/config.json")
    stored = json.loads(config.read_text())
    stored["data"]["held_out"] = 5
    config.write_text(json.dumps(stored))

    assert main(RESUME) == 2
    assert "held_out 5" in capsys.readouterr().err


def test_seeds_share_the_text(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """Every seed is graded on it; seeds graded on another are not put into one table."""
    assert train("--name", "s", "--seeds", "0,1") == 0
    runs = [read_facts(Path(f"runs/s-seed{seed}")) for seed in (0, 1)]
    assert notes(runs) == []
    write("more.jsonl", [*OTHERS, "One more."])
    capsys.readouterr()

    assert train("--name", "s", "--seeds", "0,1,2", "--resume", held_out="more.jsonl") == 2
    assert "--held-out more.jsonl (s-seed0: others.jsonl)" in capsys.readouterr().err
    assert train("--name", "s", "--seeds", "0,1,2", "--resume") == 0
