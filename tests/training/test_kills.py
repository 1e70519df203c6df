"""A run that died, wherever it did, is resumed and ends as one that never died.

Nothing is killed here: at a call that reaches the disk the run's folder is copied as it is then,
which is what a kill would have left. `benchmarks/kills.py` kills processes.
"""

import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.config import Config
from pvml.data.rows import Rows, pack
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.training.args import TrainingArgs
from pvml.training.trainer import Trainer

ANIMALS = ("cat", "dog", "hen", "fox", "owl")
STORIES = [f"The {animal} saw the {letter}." for animal in ANIMALS for letter in "abcdef"]
HELD_OUT, TRAIN = STORIES[::9], [s for i, s in enumerate(STORIES) if i % 9]
ARGS = TrainingArgs(
    batch_size=4, epochs=2, max_steps_per_epoch=5, checkpoint_every=2, seed=3, device="cpu"
)


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(STORIES, 270)


@pytest.fixture
def rows(tokenizer: Tokenizer) -> Rows:
    return pack(tokenizer, TRAIN, 9)


@pytest.fixture
def start(tokenizer: Tokenizer, rows: Rows, tmp_path: Path) -> Callable[[str], Trainer]:
    def make(name: str) -> Trainer:
        cfg = Config(d_model=8, n_heads=2, n_layers=1, n_ctx=9, d_vocab=tokenizer.d_vocab)
        run = RunDir.create(tmp_path / name, cfg=cfg, tokenizer=tokenizer, args=ARGS.to_dict())
        model = Transformer(cfg, seed=ARGS.seed)
        return Trainer(model, tokenizer, rows, HELD_OUT, ARGS, run, sample=echo)

    return make


def echo(model: Transformer, prompt: str) -> str:
    """A sample that needs no sampler: the prompt and the model's first choice after BOS."""
    return f"{prompt} {int(model(t.tensor([[0]])).argmax())}"


@pytest.fixture
def snapshots(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of disks that copy a run at the first call of each kind in each of these steps."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))

    class Snapshots(importlib.import_module("faults").WatchedDisk):  # type: ignore[misc]
        def __init__(self, trainer: Trainer, steps: tuple[int, ...], to: Path):
            super().__init__()
            self.taken: dict[tuple[int, str], Path] = {}
            self._trainer, self._steps, self._to = trainer, steps, to
            self._copying = False

        def happens(self, call: str, half: Any = None) -> None:
            at = (self._trainer.step, call)
            if self._copying or at in self.taken or at[0] not in self._steps:
                return
            self._copying = True
            self.taken[at] = self._to / f"{at[0]}-{call}"
            shutil.copytree(self._trainer.run.path, self.taken[at])
            self._copying = False

    return Snapshots


def require_same(run: RunDir, straight: RunDir) -> None:
    """Weights, state, losses, grades and samples are the same bits; times may differ."""
    ours, theirs = run.load_checkpoint(), straight.load_checkpoint()
    for loaded in (ours.model, run.load_model()):
        state = loaded.state_dict()
        assert all(t.equal(x, state[name]) for name, x in theirs.model.state_dict().items())
    assert ours.step == theirs.step
    times = {"seconds": 0}
    assert [row | times for row in run.rows()] == [row | times for row in straight.rows()]
    assert list(run.samples()) == list(straight.samples())


def test_wherever_it_died_it_ends_the_same(
    start: Callable[[str], Trainer], rows: Rows, snapshots: Any, tmp_path: Path
) -> None:
    """Died at any kind of call, at its start, in a step, while saving: the end is the same bits."""
    trainer = start("straight")
    with snapshots(trainer, (0, 6), tmp_path / "died") as disk:
        trainer.train()
    kinds = {step: {call for at, call in disk.taken if at == step} for step in (0, 6)}
    begun = []
    for folder in disk.taken.values():
        run = RunDir.open(folder)
        resumed = Trainer.resume(run, rows, HELD_OUT, sample=echo)
        begun.append(resumed.step)
        assert resumed.note == ""
        resumed.train()
        require_same(run, trainer.run)

    assert kinds[6] == {
        *("open", "write", "save_file", "fsync", "mkdir"),
        *("link", "replace", "rename", "unlink", "rmdir"),
    }
    assert kinds[0] >= kinds[6] - {"rmdir"}
    assert set(begun) == {0, 5, 6}


def test_a_damaged_checkpoint_costs_its_steps_and_nothing_else(
    start: Callable[[str], Trainer], rows: Rows, snapshots: Any, tmp_path: Path
) -> None:
    """The last checkpoint cut short: the one before is used, with a note; the end is the same."""
    trainer = start("straight")
    with snapshots(trainer, (7,), tmp_path / "died") as disk:
        trainer.train()
    folder = next(iter(disk.taken.values()))
    os.truncate(folder / "checkpoints" / "step-6" / "training.pt", 99)
    resumed = Trainer.resume(RunDir.open(folder), rows, HELD_OUT, sample=echo)

    assert resumed.step == 5
    assert "step-6 is damaged: training.pt has 99 bytes" in resumed.note
    resumed.train()
    require_same(resumed.run, trainer.run)


def test_a_full_disk_stops_the_run_and_it_goes_on_later(
    start: Callable[[str], Trainer], rows: Rows, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space from step 6 on: the error says what stays; with space again, the end is the same."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    faults = importlib.import_module("faults")
    straight = start("straight")
    straight.train()
    trainer = start("full")
    save = trainer.run.save_checkpoint

    def save_on_a_full_disk(step: int, *args: Any, **options: Any) -> None:
        with faults.WatchedDisk(9 if step == 6 else None, faults.full, lasting=True):
            save(step, *args, **options)

    trainer.run.save_checkpoint = save_on_a_full_disk  # type: ignore[method-assign]
    with pytest.raises(RunDirError, match=r"No space left on device.* step 5 stays, and --resume"):
        trainer.train()
    resumed = Trainer.resume(RunDir.open(trainer.run.path), rows, HELD_OUT, sample=echo)
    assert resumed.step == 5
    resumed.train()

    require_same(resumed.run, straight.run)
