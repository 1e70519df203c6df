"""run_all: it trains what is missing, leaves what is finished, and outlives what fails."""

import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.train import ModelFlags
from pvml.errors import RunDirError
from pvml.runs.format import RunDir
from pvml.runs.lock import locked
from pvml.training.args import TrainingArgs
from pvml.training.trainer import Trainer

Run = Callable[..., int]
NAMES = ("short-4", "long-8")


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with two experiments of 40 and 80 steps that take a moment."""
    import run_all
    from definitions import Experiment

    model = ModelFlags(d_model=6, n_layers=1, n_heads=2, n_ctx=13)
    args = TrainingArgs(epochs=4, max_steps_per_epoch=10, n_held_out=5, sample_prompt=None)
    long = replace(args, epochs=8)
    experiments = {
        name: Experiment(name=name, question=f"What of {name}?", model=model, training=training)
        for name, training in (("short-4", args), ("long-8", long))
    }
    monkeypatch.setattr(run_all, "load_experiments", lambda: experiments)
    return run_all


@pytest.fixture
def run(run_all: Any, tmp_path: Path) -> Run:
    """Give the script arguments; its exit code. Twins take a tenth of the steps: 4 and 8."""
    from definitions import Laptop

    def give(*arguments: str) -> int:
        there = ["--data", "storybook:60", "--run-dir", str(tmp_path)]
        laptop = Laptop(tokenizer="bpe:270", evaluations=2, precision="float32", checkpoint_every=1)
        return run_all.main([*there, *arguments], laptop)

    return give


def test_all_are_trained_once(run: Run, tmp_path: Path, capsys: Any) -> None:
    """Every twin is trained for its steps; asked again, none is touched, and times are told."""
    assert run("--all", "--twins") == 0
    told = capsys.readouterr().out
    steps = {name: RunDir.open(tmp_path / f"twin-{name}").summary()["steps"] for name in NAMES}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}

    assert steps == {"short-4": 4, "long-8": 8}
    assert "next, 2 of 2: twin-long-8, to do, 8 steps\nWhat of long-8?" in told
    assert told.endswith(f"2 of 2 finished, in {tmp_path}\n")
    assert run("--all", "--twins") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    again = capsys.readouterr().out
    assert len(re.findall(r" finished in \d+\.\d min", again)) == 2 and "next" not in again


def test_chosen_ones_for_each_seed(run: Run, tmp_path: Path) -> None:
    """Names choose, with - or _; each seed is a run of its own, seed 0 without a suffix."""
    assert run("short_4", "--twins", "--seeds", "0,2") == 0
    seeds = {path.name: RunDir.open(path).args["seed"] for path in tmp_path.glob("twin-*")}

    assert seeds == {"twin-short-4": 0, "twin-short-4-seed2": 2}


def test_a_stopped_run_goes_on(
    run: Run, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the first run ends with 130; the same command goes on there and trains the rest."""
    step = Trainer.training_step

    def interrupted(trainer: Trainer, tokens: Any) -> Any:
        if trainer.step == 1:
            signal.raise_signal(signal.SIGINT)
        return step(trainer, tokens)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "training_step", interrupted)
        assert run("--all", "--twins") == 130
    assert "so does this command, if it is given again" in capsys.readouterr().err
    assert not (tmp_path / "twin-long-8").exists()

    assert run("--all", "--twins") == 0
    told = capsys.readouterr().out
    assert "next, 1 of 2: twin-short-4, stopped at step 2 of 4" in told
    assert "steps 3 to 4" in told
    assert all(RunDir.open(tmp_path / f"twin-{name}").finished for name in NAMES)


@pytest.mark.parametrize("error", [RuntimeError("no memory"), ValueError("odd")])
def test_a_failure_does_not_stop_the_others(
    run: Run,
    run_all: Any,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """The run that fails is named, the next one is trained, and the exit code is 1."""
    train = run_all.train_one

    def failing(flags: Any, processes: Any) -> None:
        if "short" in flags.name:
            raise error
        train(flags, processes)

    monkeypatch.setattr(run_all, "train_one", failing)
    assert run("--all", "--twins") == 1
    printed = capsys.readouterr()
    assert "failed: twin-short-4" in printed.err and str(error) in printed.err
    assert "1 of 2 finished" in printed.out
    assert RunDir.open(tmp_path / "twin-long-8").finished


def test_another_run_in_the_place_is_not_taken(run: Run, run_all: Any, capsys: Any) -> None:
    """A run of the name with other settings, or of another corpus, fails and is named as it is."""
    assert run("short-4", "--twins") == 0
    capsys.readouterr()
    assert run("short-4", "--twins", "--data", "storybook:61") == 1
    assert "was trained on another corpus" in capsys.readouterr().err

    experiments = run_all.load_experiments()
    args = replace(experiments["short-4"].training, lr=0.5)
    experiments["short-4"] = replace(experiments["short-4"], training=args)
    assert run("short-4", "--twins") == 1
    assert "--lr 0.5 (twin-short-4: 0.001)" in capsys.readouterr().err


def test_listing_trains_nothing(run: Run, tmp_path: Path, capsys: Any) -> None:
    """--list tells where each run stands."""
    assert run("--all", "--twins", "--list") == 0

    assert capsys.readouterr().out.count("to do") == 2
    assert not list(tmp_path.glob("twin-*"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--all"], "give --twins for small runs"),
        (["--all", "--twins", "--full"], "give --twins for small runs"),
        (["--twins"], "give --all, or the names"),
        (["--all", "short-4", "--twins"], "give --all, or the names"),
        (["nonesuch", "--twins"], "there is no experiment nonesuch: there are short-4, long-8"),
        (["--all", "--twins", "--seeds", "0,0"], "names a seed twice"),
        (["--all", "--twins", "--threads", "0"], "--threads must be 1 to 1,024, got 0"),
    ],
)
def test_bad_use_is_told(run: Run, capsys: Any, arguments: list[str], told: str) -> None:
    """Exit code 2 and what to do, before anything is trained."""
    assert run(*arguments) == 2
    assert told in capsys.readouterr().err


def test_the_order_is_the_given_one(run: Run, capsys: Any) -> None:
    """Each once, however often it is named."""
    assert run("long-8", "short-4", "long_8", "--twins", "--list") == 0

    told = capsys.readouterr().out
    assert re.findall(r"twin-(\S+)", told) == ["long-8", "short-4"]


def test_a_list_needs_no_corpus(
    run_all: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a plain clone the stories are not there: training needs them, and says what to give."""
    monkeypatch.chdir(tmp_path)

    assert run_all.main(["--all", "--twins", "--list"]) == 0
    assert capsys.readouterr().out.count("to do\n") == 2
    assert run_all.main(["--all", "--twins"]) == 2
    assert re.search(r"there is no \.\./shared/.*Give --data FILE", capsys.readouterr().err)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_run_that_another_process_trains_is_told(
    run: Run,
    run_all: Any,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: bool,
) -> None:
    """Whether it was there already or was begun after we looked, and the failure is told once."""
    path = tmp_path / "twin-short-4"
    with ExitStack() as held:

        def begin(*_: Any) -> None:
            path.mkdir()
            held.enter_context(locked(path))
            if meanwhile:
                raise RunDirError(f"{path} already holds a run: --resume continues it")

        if meanwhile:
            monkeypatch.setattr(run_all, "train_one", begin)
        else:
            begin()
        assert run("short-4", "--twins") == 1
    told = capsys.readouterr().err
    assert re.search(r"twin-short-4 is being trained by process \d+ .*: wait for it to end", told)
    assert "--resume" not in told and told.count("failed") == 1


def test_a_closed_pipe_ends_it(
    run_all: Any, run: Run, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads on: no run after it is begun, and no traceback is told."""
    begun = []

    def train(flags: Any, processes: Any) -> None:
        begun.append(flags.name)
        raise BrokenPipeError

    monkeypatch.setattr(run_all, "train_one", train)
    monkeypatch.setattr(run_all, "ended", lambda script, main: main())
    with pytest.raises(BrokenPipeError):
        run("--all", "--twins")
    assert begun == ["twin-short-4"] and not capsys.readouterr().err
