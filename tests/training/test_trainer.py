"""The training loop: it learns, it keeps its books, and a resumed run is the uninterrupted one."""

import _thread
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as t

from pvml.runs.format import RunDir
from pvml.runs.jsonlines import Row
from pvml.training.args import TrainingArgs
from pvml.training.interrupt import TrainingStopped
from pvml.training.trainer import Trainer


def without_times(rows: Any) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


# Laws


def test_it_learns(bench: Any) -> None:
    """Losses fall from ln(d_vocab), and the held-out grades rise with them."""
    trainer = bench.make(args=TrainingArgs(batch_size=5, epochs=2, max_steps_per_epoch=20, lr=0.02))
    summary = trainer.train()
    losses = [row["loss"] for row in trainer.run.rows("loss")]

    assert losses[0] == pytest.approx(math.log(trainer.model.cfg.d_vocab), abs=0.05)
    assert sum(losses[-5:]) / 5 < losses[0] - 2
    assert summary["final_held_out_loss"] < losses[0] - 2
    assert summary["final_accuracy"] > 0.2


EVERYTHING: dict[str, Any] = {
    "optimizer": "muon",
    "schedule": "wsd",
    "warmup_steps": 5,
    "decay_share": 0.5,
    "grad_clip": 0.3,
    "accumulate": 2,
    "precision": "bfloat16",
    "checkpoint_every": 3,
    "keep_every": 8,
}


@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["seeds", "everything"])
def test_a_resumed_run_is_the_uninterrupted_one(
    bench: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Stopped after 4 and after 13 of 21 steps: the same losses, rates, norms, and weights."""
    assert len(bench.rows) < 13 * bench.args.batch_size and len(bench.rows) % bench.args.batch_size
    args = replace(bench.args, **changes)
    straight = bench.make("straight", args)
    straight.train()

    trainer = bench.make("broken", args)
    for stop in (4, 13):
        bench.stop_after(trainer, stop)
        with pytest.raises(TrainingStopped, match=f"after step {stop} of 21.*--resume"):
            trainer.train()
        trainer = bench.resume("broken")
        assert trainer.step == stop
    trainer.train()

    assert without_times(trainer.run.rows()) == without_times(straight.run.rows())
    assert list(trainer.run.samples()) == list(straight.run.samples())
    ours, theirs = trainer.run.load_model().state_dict(), straight.run.load_model().state_dict()
    assert all(t.equal(ours[name], theirs[name]) for name in theirs)


def test_checkpoints_are_made_and_kept_as_asked(bench: Any, tmp_path: Path) -> None:
    """Every 3 steps and at each epoch's end one is made; multiples of 8, and the start, stay."""
    trainer = bench.make(args=replace(bench.args, **EVERYTHING))
    made: list[int] = []
    save = trainer.run.save_checkpoint

    def noted(step: int, *rest: Any, **more: Any) -> None:
        made.append(step)
        save(step, *rest, **more)

    trainer.run.save_checkpoint = noted
    trainer.train()

    assert made == [0, 3, 6, 7, 8, 9, 12, 14, 15, 16, 18, 21]
    assert trainer.run.checkpoints() == [0, 8, 16, 18, 21]
    at_8 = trainer.run.load_model(step=8).state_dict()
    assert not t.equal(at_8["unembed.W_U"], trainer.model.unembed.W_U)


def test_the_log_tells_rate_and_norm_of_each_step(bench: Any) -> None:
    """lr rises in the warm-up and falls in the decay; norms stand where gradients are clipped."""
    trainer = bench.make(args=replace(bench.args, **EVERYTHING))
    trainer.train()
    rates = [row["lr"] for row in trainer.run.rows("lr")]

    assert rates[:5] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])
    assert rates[5:11] == [1e-3] * 6
    assert rates[-1] == pytest.approx(1e-3 * 1 / round(0.5 * 21))
    assert all(row["grad_norm"] > 0 for row in trainer.run.rows("loss"))


def test_a_killed_run_is_resumed_from_its_last_checkpoint(bench: Any, tmp_path: Path) -> None:
    """Killed in the second epoch: later log rows, and a torn one, are cut; the rest is the same."""
    straight = bench.make("straight")
    straight.train()
    killed = bench.make("killed")
    grade = killed.evaluate

    def die_at_the_second_epoch() -> Any:
        if killed.step == 14:
            raise MemoryError
        return grade()

    killed.evaluate = die_at_the_second_epoch
    with pytest.raises(MemoryError):
        killed.train()
    assert len(list(killed.run.rows("loss"))) == 14
    with (tmp_path / "killed" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 15, "lo')
    resumed = bench.resume("killed")
    assert [row["step"] for row in resumed.run.rows("loss")] == [*range(1, 8)]
    resumed.train()

    assert [row["step"] for row in resumed.run.rows("loss")] == [*range(1, 22)]
    assert without_times(resumed.run.rows()) == without_times(straight.run.rows())
    ours, theirs = resumed.model.state_dict(), straight.model.state_dict()
    assert all(t.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_killed_after_its_last_step_only_wants_its_summary(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last checkpoint and the summary, a run is finished by resuming."""
    trainer = bench.make()
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "finish", lambda *_: _thread.exit())
        with pytest.raises(SystemExit):
            trainer.train()
    assert not RunDir.open(tmp_path / "run").finished
    summary = bench.resume().train()

    assert summary["steps"] == 21 and RunDir.open(tmp_path / "run").finished


def test_an_epoch_that_is_capped_goes_on_through_the_same_rows(bench: Any) -> None:
    """The steps visit every row once before any row twice, across epochs' ends."""
    trainer = bench.make()
    seen: list[tuple[int, ...]] = []
    step = trainer.training_step

    def watched(tokens: t.Tensor) -> Any:
        seen.extend(tuple(row) for row in tokens.tolist())
        return step(tokens)

    trainer.training_step = watched
    trainer.train()
    every = [tuple(bench.rows[i]["tokens"].tolist()) for i in range(len(bench.rows))]

    assert len(bench.rows) > 7 * bench.args.batch_size
    assert sorted(seen[: len(bench.rows)]) == sorted(every)


def test_training_leaves_the_parts_of_the_books_in_step(bench: Any) -> None:
    """A row for each step (from 1), a grade and a sample for each epoch (from 0), a summary."""
    trainer = bench.make()
    before = t.get_rng_state()
    summary = trainer.train()
    steps, epochs = list(trainer.run.rows("loss")), list(trainer.run.rows("accuracy"))
    parameters = sum(p.numel() for p in trainer.model.parameters())
    tables = (2 * 16 + 1) * trainer.model.cfg.d_vocab + 13 * 16

    assert [(r["step"], r["epoch"], r["tokens"]) for r in steps] == [
        (s, (s - 1) // 7, s * 5 * 13) for s in range(1, 22)
    ]
    assert [(r["step"], r["epoch"]) for r in epochs] == [(7, 0), (14, 1), (21, 2)]
    assert [(r["step"], r["epoch"], r["prompt"]) for r in trainer.run.samples()] == [
        (s, e, "Once upon a time") for s, e in ((7, 0), (14, 1), (21, 2))
    ]
    assert summary == trainer.run.summary()
    assert summary["parameters"] == {"total": parameters, "non_embedding": parameters - tables}
    assert (summary["device"], summary["steps"], summary["tokens"]) == ("cpu", 21, 21 * 5 * 13)
    assert summary["steps_per_second"] == pytest.approx(21 / summary["seconds"])
    assert summary["loss_last_500"] == pytest.approx(np.mean([r["loss"] for r in steps]))
    for key, last in (
        ("final_accuracy", "accuracy"),
        ("final_held_out_loss", "held_out_loss"),
        ("bits_per_byte", "bits_per_byte"),
    ):
        assert summary[key] == epochs[-1][last]
    assert t.equal(t.get_rng_state(), before)


def test_the_default_sample_comes_from_the_sampler(bench: Any) -> None:
    """Without a sampler given, samples begin with the prompt, and no random state is touched."""
    first = bench.make(args=TrainingArgs(batch_size=5, epochs=1, max_steps_per_epoch=1))
    trainer = Trainer(
        first.model, bench.tokenizer, bench.rows, bench.held_out, first.args, first.run
    )
    before = t.get_rng_state()
    trainer.train()
    (sample,) = trainer.run.samples()

    assert sample["text"].startswith("Once upon a time")
    assert t.equal(t.get_rng_state(), before)


# Contracts


def test_a_second_ctrl_c_stops_at_once(bench: Any) -> None:
    """The second Ctrl-C interrupts without saving, and Python's own handler is put back."""
    trainer = bench.make()
    before = signal.getsignal(signal.SIGINT)

    def twice(tokens: t.Tensor) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    trainer.training_step = twice
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.train()

    assert not isinstance(caught.value, TrainingStopped)
    assert trainer.run.latest_step() == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_without_a_terminal_is_lines(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a file go the first step, each epoch's grades, and no control characters."""
    bench.make().train()
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].startswith("step 1/21  loss 5.")
    assert "tokens/s" in lines[0]
    assert [line.split(":")[0] for line in lines if "held-out" in line] == [
        "epoch 0",
        "epoch 1",
        "epoch 2",
    ]
    assert "\x1b" not in "".join(lines)
