"""The training loop: it learns, it keeps its books, and a resumed run is the uninterrupted one."""

import _thread
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as t

from pvml.config import Config
from pvml.data.rows import Rows, pack
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.runs.jsonlines import Row
from pvml.training.args import TrainingArgs
from pvml.training.interrupt import TrainingStopped
from pvml.training.trainer import NonFiniteError, Trainer

STORIES = [
    f"The {animal} sat on the {thing}. The {animal} saw the {thing} and {verb}."
    for animal in ("cat", "dog", "hen", "owl", "fox")
    for thing in ("mat", "hat", "bed", "rug", "log")
    for verb in ("slept", "ran", "sang")
]
HELD_OUT, TRAIN = STORIES[::9], [s for i, s in enumerate(STORIES) if i % 9]
# 3 epochs of 7 steps of 5 rows go through the rows more than once: a border is crossed
ARGS = TrainingArgs(batch_size=5, epochs=3, max_steps_per_epoch=7, seed=3, device="cpu")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(STORIES, 271)


@pytest.fixture
def rows(tokenizer: Tokenizer) -> Rows:
    return pack(tokenizer, TRAIN[:23], 13)


@pytest.fixture
def make(tokenizer: Tokenizer, rows: Rows, tmp_path: Path) -> Callable[..., Trainer]:
    def build(name: str = "run", args: TrainingArgs = ARGS, **changes: Any) -> Trainer:
        cfg = Config(
            d_model=16, n_heads=2, n_layers=1, n_ctx=13, d_vocab=tokenizer.d_vocab, **changes
        )
        run = RunDir.create(tmp_path / name, cfg=cfg, tokenizer=tokenizer, args=args.to_dict())
        return Trainer(Transformer(cfg, seed=1), tokenizer, rows, HELD_OUT, args, run, sample=echo)

    return build


def echo(model: Transformer, prompt: str) -> str:
    """A sample that needs no sampler: the prompt and the model's first choice after BOS."""
    return f"{prompt} {int(model(t.tensor([[0]])).argmax())}"


def stop_after(trainer: Trainer, step: int) -> None:
    """Let Ctrl-C arrive during this step."""
    whole_step = trainer.training_step

    def interrupted_step(tokens: t.Tensor) -> float:
        if trainer.step == step - 1:
            signal.raise_signal(signal.SIGINT)
        return whole_step(tokens)

    trainer.training_step = interrupted_step  # type: ignore[method-assign]


def stopped_at_2(trainer: Trainer) -> Trainer:
    """The trainer after Ctrl-C in its second step, saved."""
    stop_after(trainer, 2)
    with pytest.raises(TrainingStopped):
        trainer.train()
    return trainer


def without_times(rows: Any) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


# Laws


def test_it_learns(make: Callable[..., Trainer]) -> None:
    """Losses fall from ln(d_vocab), and the held-out grades rise with them."""
    trainer = make(args=TrainingArgs(batch_size=5, epochs=2, max_steps_per_epoch=20, lr=0.02))
    summary = trainer.train()
    losses = [row["loss"] for row in trainer.run.rows("loss")]

    assert losses[0] == pytest.approx(math.log(trainer.model.cfg.d_vocab), abs=0.05)
    assert sum(losses[-5:]) / 5 < losses[0] - 2
    assert summary["final_held_out_loss"] < losses[0] - 2
    assert summary["final_accuracy"] > 0.2


EVERYTHING = replace(
    ARGS,
    optimizer="muon",
    schedule="wsd",
    warmup_steps=5,
    decay_share=0.5,
    grad_clip=0.3,
    accumulate=2,
    precision="bfloat16",
    checkpoint_every=3,
    keep_every=8,
)


@pytest.mark.parametrize("args", [ARGS, EVERYTHING], ids=["seeds", "everything"])
def test_a_resumed_run_is_the_uninterrupted_one(
    make: Callable[..., Trainer], rows: Rows, tmp_path: Path, args: TrainingArgs
) -> None:
    """Stopped after 4 and after 13 of 21 steps: the same losses, rates, norms, and weights."""
    assert len(rows) < 13 * ARGS.batch_size and len(rows) % ARGS.batch_size
    straight = make("straight", args)
    straight.train()

    trainer = make("broken", args)
    for stop in (4, 13):
        stop_after(trainer, stop)
        with pytest.raises(TrainingStopped, match=f"after step {stop} of 21.*--resume"):
            trainer.train()
        trainer = Trainer.resume(RunDir.open(tmp_path / "broken"), rows, HELD_OUT, sample=echo)
        assert trainer.step == stop
    trainer.train()

    assert without_times(trainer.run.rows()) == without_times(straight.run.rows())
    assert list(trainer.run.samples()) == list(straight.run.samples())
    ours, theirs = trainer.run.load_model().state_dict(), straight.run.load_model().state_dict()
    assert all(t.equal(ours[name], theirs[name]) for name in theirs)


def test_checkpoints_are_made_and_kept_as_asked(
    make: Callable[..., Trainer], tmp_path: Path
) -> None:
    """Every 3 steps and at each epoch's end one is made; multiples of 8, and the start, stay."""
    trainer = make(args=EVERYTHING)
    made: list[int] = []
    save = trainer.run.save_checkpoint

    def noted(step: int, *rest: Any, **more: Any) -> None:
        made.append(step)
        save(step, *rest, **more)

    trainer.run.save_checkpoint = noted  # type: ignore[method-assign]
    trainer.train()

    assert made == [0, 3, 6, 7, 8, 9, 12, 14, 15, 16, 18, 21]
    assert trainer.run.checkpoints() == [0, 8, 16, 18, 21]
    at_8 = trainer.run.load_model(step=8).state_dict()
    assert not t.equal(at_8["unembed.W_U"], trainer.model.unembed.W_U)


def test_the_log_tells_rate_and_norm_of_each_step(make: Callable[..., Trainer]) -> None:
    """lr rises in the warm-up and falls in the decay; norms stand where gradients are clipped."""
    trainer = make(args=EVERYTHING)
    trainer.train()
    rates = [row["lr"] for row in trainer.run.rows("lr")]

    assert rates[:5] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])
    assert rates[5:11] == [1e-3] * 6
    assert rates[-1] == pytest.approx(1e-3 * 1 / round(0.5 * 21))
    assert all(row["grad_norm"] > 0 for row in trainer.run.rows("loss"))


def test_only_one_trainer_at_a_time(make: Callable[..., Trainer], rows: Rows) -> None:
    """A run that is being trained cannot be resumed beside it."""
    trainer = stopped_at_2(make())
    second = Trainer.resume(RunDir.open(trainer.run.path), rows, HELD_OUT, sample=echo)

    with trainer.run.lock(), pytest.raises(RunDirError, match="is being trained by process"):
        second.train()


def test_a_resume_beside_a_training_changes_nothing(
    make: Callable[..., Trainer], rows: Rows
) -> None:
    """It is refused at the first look, and what the training has written stays."""
    trainer = stopped_at_2(make())
    before = (trainer.run.checkpoints(), list(trainer.run.rows()))

    with trainer.run.lock(), pytest.raises(RunDirError, match="is being trained by process"):
        Trainer.resume(RunDir.open(trainer.run.path), rows, HELD_OUT, sample=echo)

    assert (trainer.run.checkpoints(), list(trainer.run.rows())) == before


def test_a_trainer_that_was_overtaken_refuses_to_go_on(
    make: Callable[..., Trainer], rows: Rows
) -> None:
    """Two resumed from one checkpoint, one after the other: the second must look again."""
    trainer = stopped_at_2(make())
    first, second = (
        Trainer.resume(RunDir.open(trainer.run.path), rows, HELD_OUT, sample=echo) for _ in range(2)
    )
    stop_after(first, 9)
    with pytest.raises(TrainingStopped):
        first.train()

    with pytest.raises(RunDirError, match="by another process meanwhile, up to step 9"):
        second.train()


def test_a_run_that_was_overwritten_is_not_trained(
    make: Callable[..., Trainer], tokenizer: Tokenizer
) -> None:
    """Another process put another run in its place: neither mixes with the other."""
    trainer = make()
    args = replace(ARGS, lr=0.5).to_dict()
    path, cfg = trainer.run.path, trainer.run.cfg
    RunDir.create(path, cfg=cfg, tokenizer=tokenizer, args=args, overwrite=True)

    with pytest.raises(RunDirError, match="is another run now"):
        trainer.train()

    assert not RunDir.open(path).has_checkpoint


def test_a_model_of_another_shape_or_type_is_refused(
    make: Callable[..., Trainer], tokenizer: Tokenizer, rows: Rows
) -> None:
    """What is trained must be what the run directory says, in float32."""
    trainer = make()
    run, cfg = trainer.run, trainer.model.cfg
    other = Transformer(replace(cfg, d_model=8, d_head=4, d_mlp=32))

    with pytest.raises(PvmlError, match="not the one that .* was made for"):
        Trainer(other, tokenizer, rows, HELD_OUT, ARGS, run)
    with pytest.raises(PvmlError, match=r"float64 cannot be trained here"):
        Trainer(Transformer(cfg).double(), tokenizer, rows, HELD_OUT, ARGS, run)


def test_a_killed_run_is_resumed_from_its_last_checkpoint(
    make: Callable[..., Trainer], rows: Rows, tmp_path: Path
) -> None:
    """Killed in the second epoch: later log rows, and a torn one, are cut; the rest is the same."""
    straight = make("straight")
    straight.train()
    killed = make("killed")
    grade = killed.evaluate

    def die_at_the_second_epoch() -> dict[str, float]:
        if killed.step == 14:
            raise MemoryError
        return grade()

    killed.evaluate = die_at_the_second_epoch  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        killed.train()
    assert len(list(killed.run.rows("loss"))) == 14
    with (tmp_path / "killed" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 15, "lo')
    resumed = Trainer.resume(RunDir.open(tmp_path / "killed"), rows, HELD_OUT, sample=echo)
    assert [row["step"] for row in resumed.run.rows("loss")] == [*range(1, 8)]
    resumed.train()

    assert [row["step"] for row in resumed.run.rows("loss")] == [*range(1, 22)]
    assert without_times(resumed.run.rows()) == without_times(straight.run.rows())
    ours, theirs = resumed.model.state_dict(), straight.model.state_dict()
    assert all(t.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_killed_after_its_last_step_only_wants_its_summary(
    make: Callable[..., Trainer], rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last checkpoint and the summary, a run is finished by resuming."""
    trainer = make()
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "finish", lambda *_: _thread.exit())
        with pytest.raises(SystemExit):
            trainer.train()
    assert not RunDir.open(tmp_path / "run").finished
    summary = Trainer.resume(RunDir.open(tmp_path / "run"), rows, HELD_OUT, sample=echo).train()

    assert summary["steps"] == 21 and RunDir.open(tmp_path / "run").finished


def test_an_epoch_that_is_capped_goes_on_through_the_same_rows(
    make: Callable[..., Trainer], rows: Rows
) -> None:
    """The steps visit every row once before any row twice, across epochs' ends."""
    trainer, seen = make(), []
    step = trainer.training_step

    def watched(tokens: t.Tensor) -> float:
        seen.extend(tuple(row) for row in tokens.tolist())
        return step(tokens)

    trainer.training_step = watched  # type: ignore[method-assign]
    trainer.train()
    every = [tuple(rows[i]["tokens"].tolist()) for i in range(len(rows))]

    assert len(rows) > 7 * ARGS.batch_size
    assert sorted(seen[: len(rows)]) == sorted(every)


def test_training_leaves_the_parts_of_the_books_in_step(make: Callable[..., Trainer]) -> None:
    """A row for each step (from 1), a grade and a sample for each epoch (from 0), a summary."""
    trainer = make()
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


def test_the_default_sample_comes_from_the_sampler(
    make: Callable[..., Trainer], rows: Rows, tokenizer: Tokenizer
) -> None:
    """Without a sampler given, samples begin with the prompt, and no random state is touched."""
    first = make(args=TrainingArgs(batch_size=5, epochs=1, max_steps_per_epoch=1))
    trainer = Trainer(first.model, tokenizer, rows, HELD_OUT, first.args, first.run)
    before = t.get_rng_state()
    trainer.train()
    (sample,) = trainer.run.samples()

    assert sample["text"].startswith("Once upon a time")
    assert t.equal(t.get_rng_state(), before)


# Contracts


def test_a_loss_that_is_not_finite_stops_the_run(
    make: Callable[..., Trainer], rows: Rows, tmp_path: Path
) -> None:
    """NaN in step 10 is an error that names step and lr; the checkpoint of step 7 is kept whole."""
    trainer = make()
    step = trainer.training_step

    def poisoned(tokens: t.Tensor) -> float:
        if trainer.step == 9:
            with t.no_grad():
                trainer.model.blocks[0].attn.b_V[1] = math.nan
        return step(tokens)

    trainer.training_step = poisoned  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match=r"step 10 is nan, at lr 0\.001.*step 7"):
        trainer.train()
    run = RunDir.open(tmp_path / "run")

    assert [row["step"] for row in run.rows("loss")] == [*range(1, 10)]
    assert all(p.isfinite().all() for p in run.load_model().parameters())
    assert Trainer.resume(run, rows, HELD_OUT, sample=echo).train()["steps"] == 21


def test_before_the_first_step_the_rate_is_not_to_blame(make: Callable[..., Trainer]) -> None:
    """A loss that is not finite at once comes from the first weights: lr has moved nothing yet."""
    trainer = make()
    with t.no_grad():
        trainer.model.blocks[0].mlp.W_in.fill_(3e38)
    with pytest.raises(NonFiniteError, match="step 1 is nan.*step 0. Try a smaller init_range"):
        trainer.train()


def test_weights_that_are_not_finite_are_never_saved(make: Callable[..., Trainer]) -> None:
    """A weight that became infinite in an epoch's last step is named, and nothing is saved."""
    trainer = make()
    step = trainer.training_step

    def overflowing(tokens: t.Tensor) -> float:
        loss = step(tokens)
        if trainer.step == 14:
            with t.no_grad():
                trainer.model.blocks[0].mlp.b_in[2] = math.inf
        return loss

    trainer.training_step = overflowing  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match=r"after step 14 blocks\.0\.mlp\.b_in.*step 7"):
        trainer.train()

    assert trainer.run.latest_step() == 7


def test_a_second_ctrl_c_stops_at_once(make: Callable[..., Trainer]) -> None:
    """The second Ctrl-C interrupts without saving, and Python's own handler is put back."""
    trainer = make()
    before = signal.getsignal(signal.SIGINT)

    def twice(tokens: t.Tensor) -> float:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    trainer.training_step = twice  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.train()

    assert not isinstance(caught.value, TrainingStopped)
    assert trainer.run.latest_step() == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_only_the_same_rows_can_be_resumed(
    make: Callable[..., Trainer], tokenizer: Tokenizer, rows: Rows
) -> None:
    """Other documents, or another row length, are refused before anything is changed."""
    trainer = make()
    stop_after(trainer, 3)
    with pytest.raises(TrainingStopped):
        trainer.train()
    for other in (pack(tokenizer, TRAIN[1:24], 13), Rows(rows.stream, 11, rows.bos_token_id)):
        with pytest.raises(RunDirError, match="trained on other rows"):
            Trainer.resume(trainer.run, other, HELD_OUT)

    assert [row["step"] for row in trainer.run.rows("loss")] == [1, 2, 3]


def test_a_run_is_trained_once(make: Callable[..., Trainer], rows: Rows) -> None:
    """A finished run is neither trained nor resumed again, and a begun one is not begun anew."""
    trainer = stopped_at_2(make())
    again = Trainer(
        trainer.model, trainer.tokenizer, rows, HELD_OUT, ARGS, trainer.run, sample=echo
    )
    with pytest.raises(RunDirError, match="--resume"):
        again.train()
    Trainer.resume(trainer.run, rows, HELD_OUT, sample=echo).train()
    with pytest.raises(RunDirError, match="is finished"):
        trainer.train()
    with pytest.raises(RunDirError, match="is finished, there is nothing to resume"):
        Trainer.resume(trainer.run, rows, HELD_OUT)


def test_what_does_not_fit_is_refused(make: Callable[..., Trainer], rows: Rows) -> None:
    """A vocabulary too small, and rows longer than the model reads, are errors with both sizes."""
    trainer = make()
    small = Transformer(Config(d_model=4, n_heads=1, n_layers=0, n_ctx=13, d_vocab=31), seed=0)
    short = Transformer(Config(d_model=4, n_heads=1, n_layers=0, n_ctx=7, d_vocab=271), seed=0)
    for model, message in ((small, "d_vocab 31"), (short, "rows of 13 .* n_ctx of 7")):
        with pytest.raises(PvmlError, match=message):
            Trainer(model, trainer.tokenizer, rows, HELD_OUT, ARGS, trainer.run)


def test_progress_without_a_terminal_is_lines(
    make: Callable[..., Trainer], capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a file go the first step, each epoch's grades, and no control characters."""
    make().train()
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].startswith("step 1/21  loss 5.")
    assert "tokens/s" in lines[0]
    assert [line.split(":")[0] for line in lines if "held-out" in line] == [
        "epoch 0",
        "epoch 1",
        "epoch 2",
    ]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": "x"}, {"random": 5}, {"optimizer": None}, {"optimizer": {}}, {"rows": None}],
)
def test_a_damaged_training_state_is_told(
    make: Callable[..., Trainer], rows: Rows, wrong: dict[str, Any]
) -> None:
    """Whatever is wrong in the checkpoint's own state, the error names the run and the way out."""
    run = make().run
    trainer = make("other")
    stop_after(trainer, 2)
    with pytest.raises(TrainingStopped):
        trainer.train()
    state = trainer.run.load_checkpoint().state
    run.log({"step": 2})
    run.save_checkpoint(2, trainer.model, {**state, **wrong})

    with pytest.raises(RunDirError, match="run's last checkpoint is damaged.*--overwrite"):
        Trainer.resume(run, rows, HELD_OUT)


def test_lost_metrics_are_told(make: Callable[..., Trainer], rows: Rows) -> None:
    """A log that ends before the checkpoint is an error: the run's books would have a hole."""
    trainer = make()
    stop_after(trainer, 3)
    with pytest.raises(TrainingStopped):
        trainer.train()
    trainer.run.cut_logs(2)

    with pytest.raises(RunDirError, match="at step 3, and its metrics end at step 2"):
        Trainer.resume(trainer.run, rows, HELD_OUT)


def test_a_held_out_loss_that_is_not_finite_stops_the_run(make: Callable[..., Trainer]) -> None:
    """Finite weights whose grades are NaN end the run with the step named; nothing is saved."""
    trainer = make(args=TrainingArgs(batch_size=5, epochs=1, max_steps_per_epoch=1, lr=1e6))

    with pytest.raises(NonFiniteError, match="after step 1 the held-out loss is nan, at lr 1e"):
        trainer.train()
    assert trainer.run.latest_step() == 0
