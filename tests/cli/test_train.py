"""`pvml train`, from flags to a finished run, stopped and resumed, and everything it refuses."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.cli.train import ModelFlags, default_name
from pvml.config import Config
from pvml.runs.format import RunDir
from pvml.training.interrupt import TrainingStopped
from pvml.training.sinks import Sinks
from pvml.training.trainer import Trainer

SMALL = ["--d-model", "12", "--n-heads", "3", "--n-layers", "1", "--n-ctx", "11"]
SHORT = ["--epochs", "2", "--max-steps-per-epoch", "3", "--batch-size", "2"]
WORDS = ["cat", "dog", "bird", "fish", "cow", "hen", "fox", "bee", "ant", "owl", "pig"]

Train = Callable[..., int]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """`pvml train` on 44 short stories, a small model and six steps, in an empty folder."""
    stories = [f"The {one} saw the {two}. The {two} ran." for one in WORDS for two in WORDS[:4]]
    corpus = tmp_path / "tiny tales.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": story}) for story in stories))
    monkeypatch.chdir(tmp_path)

    def run(*flags: str) -> int:
        basics = ["--data", corpus.name, "--tokenizer", "bpe:300", "--sample-prompt", "None"]
        return main(["train", *basics, *SMALL, *SHORT, "--device", "cpu", *flags])

    return run


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the next training stop as Ctrl-C would, once so many steps are taken and saved."""
    whole_step = Trainer.training_step

    def stop(step: int) -> None:
        def stopping(trainer: Trainer, tokens: Any) -> float:
            if trainer.step == step:
                trainer.save()
                raise TrainingStopped(f"stopped after step {step}")
            return whole_step(trainer, tokens)

        monkeypatch.setattr(Trainer, "training_step", stopping)

    return stop


def test_the_default_name() -> None:
    """The seeds' names: corpus, sizes, steps; thousands of steps are written with a k."""
    cfg = Config(d_model=128, n_layers=6, n_heads=4, n_ctx=128)

    assert default_name("tinystories", cfg, 5000) == "tinystories-d128-l6-h4-ctx128-5k"
    assert default_name("tinystories", cfg, 20_000) == "tinystories-d128-l6-h4-ctx128-20k"
    assert default_name("my tales/2", cfg, 1234) == "my-tales-2-d128-l6-h4-ctx128-1234"
    assert default_name("..", cfg, 0) == "data-d128-l6-h4-ctx128-0"


def test_flags_make_the_seeds_shape() -> None:
    """--d-model 128 --n-heads 4 and a tokenizer make the Config of the same sizes."""
    flags = ModelFlags(d_model=128, n_heads=4, n_layers=6, n_ctx=128)

    assert flags.with_vocabulary(50257) == Config(d_model=128, n_heads=4, n_layers=6, n_ctx=128)


def test_the_models_flags_are_configs_fields() -> None:
    """Without flags the model has a laptop's sizes, and is Config's in everything else."""
    expected = Config(d_model=128, n_heads=4, n_layers=6, n_ctx=128)

    assert ModelFlags().with_vocabulary(50257) == expected


def test_a_run_is_made(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """The run is finished, has the settings of the flags, and its path and grades are told."""
    assert train() == 0

    run = RunDir.open("runs/tiny-tales-d12-l1-h3-ctx11-6")
    assert run.finished
    assert [row["step"] for row in run.rows("loss")] == [1, 2, 3, 4, 5, 6]
    assert (run.cfg.d_model, run.cfg.d_head, run.cfg.d_vocab) == (12, 4, run.tokenizer().d_vocab)
    assert (run.args["epochs"], run.args["device"]) == (2, "cpu")
    out = capsys.readouterr().out
    assert "tiny tales: 44 documents, 4 of them held out" in out
    assert f"{run.summary()['bits_per_byte']:.3f} bits/byte" in out
    assert "pvml sample runs/tiny-tales-d12-l1-h3-ctx11-6" in out


def test_the_facts_of_the_data_are_kept(train: Train) -> None:
    """config.json says where the corpus lay, which one it was and how it was split."""
    train("--limit", "30", "--name", "kept")

    data = RunDir.open("runs/kept").data
    assert (data["source"], data["limit"], data["tokenizer"]) == ("tiny tales.jsonl", 30, "bpe:300")
    assert (data["documents"], data["held_out_documents"]) == (30, 3)
    assert len(data["fingerprint"]) == 64


def test_one_seed_one_model(train: Train) -> None:
    """Same flags, same weights, whatever torch's global state is; another seed, others."""
    train("--name", "one")
    t.manual_seed(99)
    train("--name", "same")
    train("--name", "other", "--seed", "5")

    one, same, other = (
        RunDir.open(f"runs/{n}").load_model("cpu") for n in ("one", "same", "other")
    )
    assert t.equal(one.embed.W_E, same.embed.W_E)
    assert not t.equal(one.embed.W_E, other.embed.W_E)


def test_a_run_is_not_trained_over(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command twice is an error that names the ways out; --overwrite is one of them."""
    train("--name", "twice")
    capsys.readouterr()

    assert train("--name", "twice") == 2
    assert "--resume continues it, --overwrite removes it" in capsys.readouterr().err
    assert train("--name", "twice", "--overwrite", "--lr", "0.01") == 0
    assert RunDir.open("runs/twice").args["lr"] == 0.01


@pytest.mark.parametrize("again", [["--name", "cut"], []], ids=["by name", "same command"])
def test_a_stopped_run_goes_on(
    train: Train,
    stop_after: Callable[[int], None],
    again: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stopped after two steps and resumed, a run ends with the weights of one that never was."""
    train("--name", "straight")
    stop_after(2)
    assert train(*again) == 130
    path = "runs/cut" if again else "runs/tiny-tales-d12-l1-h3-ctx11-6"
    assert not RunDir.open(path).finished
    stop_after(-1)

    assert train(*again, "--resume") == 0

    straight, cut = RunDir.open("runs/straight"), RunDir.open(path)
    assert [row["loss"] for row in cut.rows("loss")] == [r["loss"] for r in straight.rows("loss")]
    for name, x in straight.load_model("cpu").state_dict().items():
        assert t.equal(x, cut.load_model("cpu").state_dict()[name])
    assert "steps 3 to 6" in capsys.readouterr().out


def test_a_name_is_enough_to_go_on(train: Train, stop_after: Callable[[int], None]) -> None:
    """--resume --name alone takes corpus, limit, sizes and recipe from the run."""
    stop_after(2)
    train("--name", "cut", "--limit", "33", "--n-held-out", "5")
    stop_after(-1)

    assert main(["train", "--resume", "--name", "cut", "--device", "cpu"]) == 0
    assert RunDir.open("runs/cut").summary()["steps"] == 6


def test_a_moved_corpus_can_be_pointed_to(
    train: Train, stop_after: Callable[[int], None], tmp_path: Path
) -> None:
    """--data says where the corpus lies now; another corpus is refused by its rows."""
    stop_after(2)
    train("--name", "cut")
    stop_after(-1)
    (tmp_path / "tiny tales.jsonl").rename("moved.jsonl")
    Path("other.txt").write_text("The hen and the fox and the bee. " * 50)
    go_on = ["train", "--resume", "--name", "cut", "--device", "cpu"]

    assert main([*go_on, "--data", "other.txt"]) == 2
    assert main([*go_on, "--data", "moved.jsonl"]) == 0


def test_a_resumed_run_keeps_its_settings(
    train: Train, stop_after: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag that contradicts the run is an error that names both values."""
    stop_after(2)
    train("--name", "cut")
    capsys.readouterr()
    resume = ["train", "--resume", "--name", "cut"]

    assert main([*resume, "--lr", "0.5", "--d-model", "36", "--tokenizer", "gpt2"]) == 2

    err = capsys.readouterr().err
    assert "--lr 0.5 (the run: 0.001)" in err
    assert "--d-model 36 (the run: 12)" in err
    assert "--tokenizer gpt2 (the run: bpe:300)" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--resume", "--overwrite"], "give one of them"),
        (["--resume", "--name", "nobody"], "runs/nobody does not exist"),
        (["--data", "nowhere.txt"], "there is no corpus 'nowhere.txt'"),
        (["--tokenizer", "words"], "tokenizer 'words' is not known"),
        (["--tokenizer", "bpe:9"], "at least 257"),
        (["--n-ctx", "1"], "n_ctx must be at least 2"),
        (["--n-ctx", "500"], "do not fill one row"),
        (["--device", "warp"], "device 'warp' is not a device"),
        (["--d-model", "13"], "not a multiple of n_heads 3"),
        (["--lr", "0"], "lr must be a finite number above 0"),
        (["--epochs", "0"], "epochs must be a whole number of at least 1"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--n-held-out", "44"], "cannot hold out 44 of 44"),
        (["--seeds", "0,1", "--seed", "0"], "--seeds makes a run for each seed and --seed one run"),
        (["--seeds", "0,1,0"], "--seeds 0,1,0 names a seed twice"),
        (["--seeds", "0,one"], "whole numbers with commas between, as 0,1,2, got '0,one'"),
        (["--seeds", "-1"], "got '-1'"),
        (["--epochs", "9" * 400], "epochs must be at most 1000000000, got a number of more than"),
        (["--seeds", "4294967296"], "seed must be at most 4294967295"),
    ],
)
def test_bad_use_leaves_nothing_behind(
    train: Train, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    """What cannot be trained is told in words, with 2, before anything is on disk."""
    assert train(*flags) == 2

    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in err
    assert not Path("runs").exists()


def test_a_folder_that_cannot_be_written_is_named(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where the runs' folder should be: an error with the path, no traceback."""
    Path("runs").write_text("in the way")

    assert train() == 2
    assert "runs" in capsys.readouterr().err


def test_a_model_beyond_the_memory_replaces_no_run(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that cannot be made is told in one message, and the run it would replace stays."""
    assert train("--name", "kept") == 0
    before = Path("runs/kept/metrics.jsonl").read_bytes()
    capsys.readouterr()
    # more than a process can address, so that no machine tries
    monkeypatch.setattr("pvml.cli.training_run.first_model", lambda cfg, args: t.empty(1 << 50))

    assert train("--name", "kept", "--overwrite") == 2
    assert "does not fit into the memory" in capsys.readouterr().err
    assert Path("runs/kept/metrics.jsonl").read_bytes() == before


def test_a_run_that_does_not_say_its_data_is_not_resumed(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged record of the corpus is an error that shows it."""
    assert train("--name", "odd") == 0
    config = Path("runs/odd/config.json")
    for data, complaint in (([1], "data is no JSON object"), ({"source": 5}, "source 5")):
        config.write_text(json.dumps({**json.loads(config.read_text()), "data": data}))

        assert main(["train", "--resume", "--name", "odd"]) == 2
        assert complaint in capsys.readouterr().err


def test_a_run_stopped_before_its_first_checkpoint_begins_again(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing was saved, --resume starts from the run's seed: the uninterrupted run."""
    with monkeypatch.context() as stopped:
        stopped.setattr(Trainer, "save", lambda trainer: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train("--name", "bare")

    assert train("--name", "bare", "--resume") == 0
    assert train("--name", "straight") == 0
    bare, straight = (RunDir.open(tmp_path / "runs" / name) for name in ("bare", "straight"))
    assert [row["loss"] for row in bare.rows("loss")] == [
        row["loss"] for row in straight.rows("loss")
    ]


def test_a_run_for_each_seed(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs NAME-seedN of one split and tokenizer; their grades, mean and deviation in a table."""
    assert train("--seeds", "0, 3") == 0

    name = "tiny-tales-d12-l1-h3-ctx11-6"
    zero, three = RunDir.open(f"runs/{name}-seed0"), RunDir.open(f"runs/{name}-seed3")
    assert (zero.args["seed"], three.args["seed"]) == (0, 3)
    assert zero.data == three.data
    assert zero.tokenizer().d_vocab == three.tokenizer().d_vocab
    assert not t.equal(zero.load_model("cpu").embed.W_E, three.load_model("cpu").embed.W_E)
    a, b = (run.summary()["final_held_out_loss"] for run in (zero, three))
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["seed"] == ["seed", "held-out", "loss", "bits", "per", "byte", "accuracy"]
    assert lines["0"][1] == f"{a:.4f}"
    assert lines["mean"][1] == f"{(a + b) / 2:.4f}"
    assert lines["deviation"][1] == f"{abs(a - b) / 2**0.5:.4f}"
    assert train("--name", f"{name}-seed3b", "--seed", "3") == 0
    alone = RunDir.open(f"runs/{name}-seed3b")
    assert alone.summary()["final_held_out_loss"] == b


def test_seeds_go_on_where_they_stopped(
    train: Train, stop_after: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """--resume leaves a finished run alone, ends the stopped one and begins the missing one."""
    train("--name", "s-seed0", "--seed", "0")
    stop_after(2)
    assert train("--name", "s", "--seeds", "1,2") == 130
    assert "the same command with --resume goes on with all seeds" in capsys.readouterr().err
    stop_after(-1)
    untouched = Path("runs/s-seed0/metrics.jsonl").read_bytes()

    assert train("--name", "s", "--seeds", "0,1,2", "--resume") == 0

    out = capsys.readouterr().out
    assert "runs/s-seed0 is finished" in out
    assert "steps 3 to 6" in out
    assert "steps 1 to 6" in out
    assert Path("runs/s-seed0/metrics.jsonl").read_bytes() == untouched
    assert all(RunDir.open(f"runs/s-seed{n}").finished for n in (0, 1, 2))


def test_seeds_are_of_one_recipe(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is trained if a seed's run is in the way, or the finished ones had other settings."""
    train("--name", "s-seed1", "--seed", "1", "--epochs", "1")
    capsys.readouterr()

    assert train("--name", "s", "--seeds", "0,1") == 2
    assert "runs/s-seed1 already holds a run" in capsys.readouterr().err
    assert train("--name", "s", "--seeds", "0,1", "--resume") == 2
    assert "--epochs 2 (the run: 1)" in capsys.readouterr().err
    assert main(["train", "--name", "s", "--seeds", "0,1", "--resume", "--epochs", "1"]) == 2
    err = capsys.readouterr().err
    assert "--n-ctx 128 (s-seed1: 11)" in err
    assert "--data storybook (s-seed1: tiny tales.jsonl)" in err
    assert not Path("runs/s-seed0").exists()


def test_one_seed_has_no_deviation(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """A spread needs two runs: of one it is a dash."""
    assert train("--seeds", "7") == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last == ["deviation", "-", "-", "-"]


def test_rows_go_to_a_sink_too(train: Train) -> None:
    """--log tensorboard writes the losses of metrics.jsonl under the run's folder."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert train("--name", "shown", "--log", "tensorboard") == 0

    seen = events.EventAccumulator("runs/shown/tensorboard")
    seen.Reload()
    losses = [row["loss"] for row in RunDir.open("runs/shown").rows("loss")]
    assert [e.value for e in seen.Scalars("loss")] == pytest.approx(losses)
    assert [e.step for e in seen.Scalars("bits_per_byte")] == [3, 6]


def test_a_sink_without_its_package_is_told_at_once(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--log trackio where it is not installed is an error that says what to install."""
    monkeypatch.setitem(sys.modules, "trackio", None)

    assert train("--log", "trackio") == 2
    assert 'pip install "pvml[trackio]"' in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_sink_is_closed_when_training_stops(
    train: Train, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the sinks too, so that what they hold is written."""
    closed = []
    whole = Sinks.close
    monkeypatch.setattr(Sinks, "close", lambda sinks: (closed.append(True), whole(sinks)))
    stop_after(2)

    assert train("--name", "cut", "--log", "tensorboard") == 130
    assert closed == [True]
