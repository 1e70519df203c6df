"""What a trainer refuses: numbers that are not finite, what does not fit, another's run."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.config import Config
from pvml.data.rows import Rows, pack
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.training.args import TrainingArgs
from pvml.training.interrupt import TrainingStopped
from pvml.training.nonfinite import NonFiniteError
from pvml.training.trainer import Trainer


def test_only_one_trainer_at_a_time(bench: Any) -> None:
    """A run that is being trained cannot be resumed beside it."""
    trainer = bench.stopped(bench.make())
    second = bench.resume()

    with trainer.run.lock(), pytest.raises(RunDirError, match="is being trained by process"):
        second.train()


def test_a_resume_beside_a_training_changes_nothing(bench: Any) -> None:
    """It is refused at the first look, and what the training has written stays."""
    trainer = bench.stopped(bench.make())
    before = (trainer.run.checkpoints(), list(trainer.run.rows()))

    with trainer.run.lock(), pytest.raises(RunDirError, match="is being trained by process"):
        bench.resume()

    assert (trainer.run.checkpoints(), list(trainer.run.rows())) == before


def test_a_trainer_that_was_overtaken_refuses_to_go_on(bench: Any) -> None:
    """Two resumed from one checkpoint, one after the other: the second must look again."""
    bench.stopped(bench.make())
    first, second = (bench.resume() for _ in range(2))
    bench.stop_after(first, 9)
    with pytest.raises(TrainingStopped):
        first.train()

    with pytest.raises(RunDirError, match="by another process meanwhile, up to step 9"):
        second.train()


def test_a_run_that_was_overwritten_is_not_trained(bench: Any) -> None:
    """Another process put another run in its place: neither mixes with the other."""
    trainer = bench.make()
    args = replace(bench.args, lr=0.5).to_dict()
    path, cfg = trainer.run.path, trainer.run.cfg
    RunDir.create(path, cfg=cfg, tokenizer=bench.tokenizer, args=args, overwrite=True)

    with pytest.raises(RunDirError, match="is another run now"):
        trainer.train()

    assert not RunDir.open(path).has_checkpoint


def test_a_model_of_another_shape_or_type_is_refused(bench: Any) -> None:
    """What is trained must be what the run directory says, in float32."""
    trainer = bench.make()
    run, cfg = trainer.run, trainer.model.cfg
    other = Transformer(replace(cfg, d_model=8, d_head=4, d_mlp=32))

    with pytest.raises(PvmlError, match="not the one that .* was made for"):
        Trainer(other, bench.tokenizer, bench.rows, bench.held_out, bench.args, run)
    with pytest.raises(PvmlError, match=r"float64 cannot be trained here"):
        Trainer(
            Transformer(cfg).double(), bench.tokenizer, bench.rows, bench.held_out, bench.args, run
        )


def test_a_loss_that_is_not_finite_stops_the_run(bench: Any, tmp_path: Path) -> None:
    """NaN in step 10 is an error that names step and lr; the checkpoint of step 7 is kept whole."""
    trainer = bench.make()
    step = trainer.training_step

    def poisoned(tokens: t.Tensor) -> Any:
        if trainer.step == 9:
            with t.no_grad():
                trainer.model.blocks[0].attn.b_V[1] = math.nan
        return step(tokens)

    trainer.training_step = poisoned
    with pytest.raises(NonFiniteError, match=r"step 10 is nan, at lr 0\.001.*step 7"):
        trainer.train()
    run = RunDir.open(tmp_path / "run")

    assert [row["step"] for row in run.rows("loss")] == [*range(1, 10)]
    assert all(p.isfinite().all() for p in run.load_model().parameters())
    assert bench.resume().train()["steps"] == 21


def test_before_the_first_step_the_rate_is_not_to_blame(bench: Any) -> None:
    """A loss that is not finite at once comes from the first weights: lr has moved nothing yet."""
    trainer = bench.make()
    with t.no_grad():
        trainer.model.blocks[0].mlp.W_in.fill_(3e38)
    with pytest.raises(NonFiniteError, match="step 1 is nan.*step 0. Try a smaller init_range"):
        trainer.train()


def test_weights_that_are_not_finite_are_never_saved(bench: Any) -> None:
    """A weight that became infinite in an epoch's last step is named, and nothing is saved."""
    trainer = bench.make()
    step = trainer.training_step

    def overflowing(tokens: t.Tensor) -> Any:
        loss = step(tokens)
        if trainer.step == 14:
            with t.no_grad():
                trainer.model.blocks[0].mlp.b_in[2] = math.inf
        return loss

    trainer.training_step = overflowing
    with pytest.raises(NonFiniteError, match=r"after step 14 blocks\.0\.mlp\.b_in.*step 7"):
        trainer.train()

    assert trainer.run.latest_step() == 7


def test_only_the_same_rows_can_be_resumed(bench: Any) -> None:
    """Other documents, or another row length, are refused before anything is changed."""
    trainer = bench.stopped(bench.make(), 3)
    for other in (
        pack(bench.tokenizer, bench.train[1:24], 13),
        Rows(bench.rows.stream, 11, bench.rows.bos_token_id),
    ):
        with pytest.raises(RunDirError, match="trained on other rows"):
            bench.resume(rows=other)

    assert [row["step"] for row in trainer.run.rows("loss")] == [1, 2, 3]


def test_a_run_is_trained_once(bench: Any) -> None:
    """A finished run is neither trained nor resumed again, and a begun one is not begun anew."""
    trainer = bench.stopped(bench.make())
    again = Trainer(
        trainer.model,
        trainer.tokenizer,
        bench.rows,
        bench.held_out,
        bench.args,
        trainer.run,
        sample=bench.sample,
    )
    with pytest.raises(RunDirError, match="--resume"):
        again.train()
    bench.resume().train()
    with pytest.raises(RunDirError, match="is finished"):
        trainer.train()
    with pytest.raises(RunDirError, match="is finished, there is nothing to resume"):
        bench.resume()


def test_what_does_not_fit_is_refused(bench: Any) -> None:
    """A vocabulary too small, and rows longer than the model reads, are errors with both sizes."""
    trainer = bench.make()
    small = Transformer(Config(d_model=4, n_heads=1, n_layers=0, n_ctx=13, d_vocab=31), seed=0)
    short = Transformer(Config(d_model=4, n_heads=1, n_layers=0, n_ctx=7, d_vocab=271), seed=0)
    for model, message in ((small, "d_vocab 31"), (short, "rows of 13 .* n_ctx of 7")):
        with pytest.raises(PvmlError, match=message):
            Trainer(model, trainer.tokenizer, bench.rows, bench.held_out, bench.args, trainer.run)


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": "x"}, {"random": 5}, {"optimizer": None}, {"optimizer": {}}, {"rows": None}],
)
def test_a_damaged_training_state_is_told(bench: Any, wrong: dict[str, Any]) -> None:
    """Whatever is wrong in the checkpoint's own state, the error names the run and the way out."""
    run = bench.make().run
    trainer = bench.stopped(bench.make("other"), 2)
    state = trainer.run.load_checkpoint().state
    run.log({"step": 2})
    run.save_checkpoint(2, trainer.model, {**state, **wrong})

    with pytest.raises(RunDirError, match="run's last checkpoint is damaged.*--overwrite"):
        bench.resume()


def test_lost_metrics_are_told(bench: Any) -> None:
    """A log that ends before the checkpoint is an error: the run's books would have a hole."""
    trainer = bench.stopped(bench.make(), 3)
    trainer.run.cut_logs(2)

    with pytest.raises(RunDirError, match="at step 3, and its metrics end at step 2"):
        bench.resume()


def test_a_held_out_loss_that_is_not_finite_stops_the_run(bench: Any) -> None:
    """Finite weights whose grades are NaN end the run with the step named; nothing is saved."""
    trainer = bench.make(args=TrainingArgs(batch_size=5, epochs=1, max_steps_per_epoch=1, lr=1e6))

    with pytest.raises(NonFiniteError, match="after step 1 the held-out loss is nan, at lr 1e"):
        trainer.train()
    assert trainer.run.latest_step() == 0
