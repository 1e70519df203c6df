"""`pvml train` and its tokens on disk: reused, rebuilt, packed either way, also for older runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.main import main
from pvml.data.rows import pack
from pvml.data.split import split_documents
from pvml.runs.format import RunDir
from pvml.training.interrupt import TrainingStopped
from pvml.training.trainer import Trainer

WORDS = ["cat", "dog", "bird", "fish", "cow", "hen", "fox", "bee", "ant", "owl", "pig"]
STORIES = [f"The {one} saw the {two}. The {two} ran." for one in WORDS for two in WORDS[:4]]
SMALL = ["--d-model", "12", "--n-heads", "3", "--n-layers", "1", "--n-ctx", "11"]
SHORT = ["--epochs", "2", "--max-steps-per-epoch", "3", "--batch-size", "2", "--device", "cpu"]
TOKENS = Path("runs/.tokens")

Train = Callable[..., int]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """`pvml train` on 44 short stories, a small model and six steps, in an empty folder."""
    Path(tmp_path / "tales.jsonl").write_text(
        "\n".join(json.dumps({"text": story}) for story in STORIES)
    )
    monkeypatch.chdir(tmp_path)

    def run(*flags: str) -> int:
        basics = ["--data", "tales.jsonl", "--tokenizer", "bpe:300", "--sample-prompt", "None"]
        return main(["train", *basics, *SMALL, *SHORT, *flags])

    return run


@pytest.fixture
def stopped(train: Train, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunDir]:
    """Makes a run and stops it after two steps, saved."""

    def stop(*flags: str) -> RunDir:
        whole_step = Trainer.training_step

        def stopping(trainer: Trainer, tokens: Any) -> Any:
            if trainer.step == 2:
                trainer.save()
                raise TrainingStopped("stopped")
            return whole_step(trainer, tokens)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "training_step", stopping)
            assert train("--name", "cut", *flags) == 130
        return RunDir.open("runs/cut")

    return stop


def losses(name: str) -> list[float]:
    return [row["loss"] for row in RunDir.open(f"runs/{name}").rows("loss")]


RESUME = ["train", "--resume", "--name", "cut", "--device", "cpu"]


def test_what_a_run_keeps_of_its_data(train: Train) -> None:
    """config.json names the tokens' folder, counts tokens and bytes, and tells the packing."""
    train("--name", "kept", "--packing", "document")
    run = RunDir.open("runs/kept")
    rows = pack(run.tokenizer(), split_documents(STORIES, None, 0)[0], 11, "document")

    assert [path.name for path in TOKENS.iterdir() if path.is_dir()] == [run.data["tokens_key"]]
    assert run.data["packing"] == run.args["packing"] == "document"
    assert run.data["bytes"] == sum(map(len, STORIES))
    assert (run.data["tokens"], run.data["rows"]) == (len(rows.stream), len(rows))
    assert run.data["tokens_cut_off"] == rows.cut_off > 0


def test_a_second_run_reads_no_text(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other sizes, seeds and packings share the tokens of one split."""
    train("--name", "first")

    def refuse(corpus: object) -> None:
        raise AssertionError("the corpus was read again")

    monkeypatch.setattr("pvml.data.sources.Corpus.__iter__", refuse)

    assert train("--name", "second", "--seed", "5", "--n-ctx", "7", "--packing", "document") == 0
    first, second = (RunDir.open(f"runs/{name}").data for name in ("first", "second"))
    assert first["tokens_key"] == second["tokens_key"]
    assert first["fingerprint"] == second["fingerprint"]


def test_both_packings_are_told(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """The line on the rows says so where they start at documents."""
    train("--name", "one")
    assert "rows of 11 tokens\n" in capsys.readouterr().out
    train("--name", "two", "--packing", "document")
    assert "rows of 11 tokens, each from a document's start\n" in capsys.readouterr().out


def test_a_step_larger_than_the_corpus_is_told(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that takes rows more than once says how often and what to do; others say nothing."""
    once = ["--max-steps-per-epoch", "1", "--epochs", "1"]
    train("--name", "one", *once, "--batch-size", "1000")
    told = capsys.readouterr().out
    n_rows = RunDir.open("runs/one").data["rows"]
    times = f"{1000 / n_rows:.1f} times: give a smaller --batch-size, or more text.\n"
    assert f"A step of 1,000 rows takes each about {times}" in told

    train("--name", "two", *once, "--batch-size", str(n_rows))
    assert "A step of" not in capsys.readouterr().out


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_fewer_steps_than_asked_for_are_told(
    train: Train, capsys: pytest.CaptureFixture[str], packing: str
) -> None:
    """Where the rows end before an epoch's steps do, the run says how many there are, and why."""
    flags = ["--packing", packing, "--epochs", "2", "--batch-size", "8"]
    train("--name", "one", *flags, "--max-steps-per-epoch", "1000")
    told = " ".join(capsys.readouterr().out.split())
    run = RunDir.open("runs/one")
    a_pass = -(-run.data["rows"] // 8)
    assert run.summary()["steps"] == 2 * a_pass
    assert (
        f"An epoch ends with the rows, after {a_pass} steps: {2 * a_pass} in all, where 2 x "
        f"--max-steps-per-epoch 1,000 would be 2,000. More --epochs take more." in told
    )

    train("--name", "two", *flags, "--max-steps-per-epoch", str(a_pass))
    assert "An epoch ends" not in capsys.readouterr().out


def test_a_run_that_diverged_says_so(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """At the end, one line where the held-out loss is above a blind guess's, and none where not."""
    train("--name", "wild", "--lr", "100")
    assert "worse than a blind guess, ln(" in capsys.readouterr().out
    train("--name", "tame", "--lr", "0.01")
    assert "blind guess" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "side", "change"),
    [
        (["--n-held-out", "1", "--n-ctx", "99"], "held-out", "more"),
        (["--n-held-out", "43", "--n-ctx", "99"], "training", "fewer"),
    ],
)
def test_too_little_text_names_the_side(
    train: Train, capsys: pytest.CaptureFixture[str], flags: list[str], side: str, change: str
) -> None:
    """A side of the split that does not fill a row is named, with what holds out more or fewer."""
    assert train(*flags) != 0
    err = capsys.readouterr().err

    assert f"the {side} documents: " in err and "tokens do not fill one row: n_ctx 99" in err
    assert f"--n-held-out can hold out {change}" in err


def test_a_row_without_room_is_no_sides_fault(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """n_ctx 1 is wrong whatever is held out: no side is named."""
    assert train("--n-ctx", "1") != 0
    err = capsys.readouterr().err
    assert "n_ctx must be at least 2" in err and "held-out" not in err


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_deleted_tokens_are_made_again(
    train: Train, stopped: Callable[..., RunDir], packing: str
) -> None:
    """A run goes on, to the bit, after its tokens' folder was removed."""
    train("--name", "straight", "--packing", packing)
    stopped("--packing", packing)
    shutil.rmtree(TOKENS)

    assert main(RESUME) == 0
    assert losses("cut") == losses("straight")


def test_a_run_from_before_the_tokens_folder_goes_on(
    train: Train, stopped: Callable[..., RunDir]
) -> None:
    """A run whose args lack split_seed was split by its seed; its rows are found again."""
    train("--name", "straight", "--seed", "3", "--split-seed", "3")
    run = stopped("--seed", "3", "--split-seed", "3")
    config = json.loads((run.path / "config.json").read_text())
    for field in ("split_seed", "packing"):
        del config["args"][field]
    for field in ("tokens_key", "tokens", "bytes", "packing", "tokens_cut_off"):
        del config["data"][field]
    (run.path / "config.json").write_text(json.dumps(config))
    shutil.rmtree(TOKENS)

    assert main(RESUME) == 0
    assert losses("cut") == losses("straight")
