"""The training loop: batch, loss, gradients, step; at each epoch's end a grade and a checkpoint.

What is kept on disk is in `pvml.runs.format`; the rows and their order are in `pvml.data.rows`.
"""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch as t
from jaxtyping import Int
from rich.console import Console
from torch import Tensor

from pvml.data.rows import Batches, Rows, pack
from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_device
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.runs.weights import parameter_totals
from pvml.training.args import TrainingArgs
from pvml.training.evaluation import bits_per_byte, grade_held_out
from pvml.training.interrupt import TrainingStopped, interruptible
from pvml.training.losses import get_log_probs
from pvml.training.optimizer import make_optimizer
from pvml.training.progress import TrainingProgress

Sample = Callable[[Transformer, str], str]
"""From a model and a prompt to the prompt and its continuation."""
_LAST_STEPS = 500


class NonFiniteError(PvmlError):
    """A loss or a weight became NaN or infinite."""


class Trainer:
    """Trains one model on one set of rows and records it in one run directory."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        train_rows: Rows,
        held_out: Sequence[str],
        args: TrainingArgs,
        run: RunDir,
        *,
        sample: Sample | None = None,
        console: Console | None = None,
    ):
        """A run at its beginning. The model is moved to the device that `args` asks for.

        held_out: documents to grade on, none of which is in the rows. sample: how each epoch's
        sample is made; unset: by `pvml.sampling.Sampler`, always with the same seed.

        Raises: PvmlError if model, tokenizer and rows do not fit each other, or the held-out text
        does not fill one row.
        """
        _require_fitting(model, tokenizer, train_rows)
        self.model = model.to(pick_device(args.device))
        self.tokenizer = tokenizer
        self.train_rows = train_rows
        self.held_out = held_out
        self.held_out_rows = pack(tokenizer, held_out, train_rows.n_ctx)
        self.args = args
        self.run = run
        self.sample = sample or self._sample_with_default_settings
        self.console = console
        self.batches = Batches(len(train_rows), args.batch_size, args.seed)
        self.optimizer = make_optimizer(self.model, args)
        self.steps_per_epoch = min(args.max_steps_per_epoch, len(self.batches))
        self.n_steps = args.epochs * self.steps_per_epoch
        self.step = 0
        self._rows_identity = _identity(train_rows)
        self._saved_step: int | None = None
        self._seconds_before = 0.0
        self._started = time.perf_counter()

    @classmethod
    def resume(
        cls,
        run: RunDir,
        train_rows: Rows,
        held_out: Sequence[str],
        *,
        device: str | None = None,
        sample: Sample | None = None,
        console: Console | None = None,
    ) -> "Trainer":
        """The run as its last checkpoint left it: it goes on as if it had never stopped.

        On a CPU with the same number of threads, losses, batches and weights are the same bits.
        Log rows later than the checkpoint are cut; their steps will be taken again.
        device: where to go on, if not where the run's own args say.

        Raises: RunDirError if the run is finished, has no checkpoint, or had other rows.
        """
        if run.finished:
            raise RunDirError(
                f"{run.path} is finished, there is nothing to resume: --name gives a new run a "
                f"name of its own, --overwrite starts this one anew"
            )
        args = TrainingArgs.from_dict(run.args)
        args = replace(args, device=device or args.device)
        point = run.load_checkpoint(args.device)
        tokenizer = run.tokenizer()
        trainer = cls(
            point.model, tokenizer, train_rows, held_out, args, run, sample=sample, console=console
        )
        trainer._go_on_from(point.step, point.state)
        return trainer

    def _go_on_from(self, step: int, state: dict[str, Any]) -> None:
        rows = state.get("rows")
        if not isinstance(rows, str):
            raise RunDirError(self._damaged("it names no rows"))
        if rows != self._rows_identity:
            raise RunDirError(
                f"{self.run.path} was trained on other rows ({rows}) than those given "
                f"({self._rows_identity}): give the same data, limit and tokenizer"
            )
        try:
            self._seconds_before = float(state["seconds"])
            self.optimizer.load_state_dict(state["optimizer"])
            t.set_rng_state(state["rng"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise RunDirError(self._damaged(error)) from error
        self.step = self._saved_step = step
        self.run.cut_logs(step)
        logged = max((row.get("step", 0) for row in self.run.rows()), default=0)
        if logged != step:
            raise RunDirError(
                f"{self.run.path} has a checkpoint at step {step:,}, and its metrics end at step "
                f"{logged:,}: put the rest back, or start anew with --overwrite"
            )

    def _damaged(self, what: object) -> str:
        return (
            f"the training state in {self.run.path}'s last checkpoint is damaged ({what}): "
            f"put its files back, or start anew with --overwrite"
        )

    def train(self) -> dict[str, Any]:
        """Take every step that is left; the run's summary, which is also written down.

        Raises: NonFiniteError naming step and learning rate; TrainingStopped after Ctrl-C, saved;
        RunDirError if the disk refuses. The last good checkpoint stays in every case.
        """
        if self.run.finished:
            raise RunDirError(f"{self.run.path} is finished: --name gives a new run its own name")
        self._started = time.perf_counter()
        if self._saved_step is None:
            self.save()
        self.model.train()
        with (
            TrainingProgress(self.n_steps, self.step, self.console) as progress,
            interruptible(progress.say) as interrupted,
        ):
            while self.step < self.n_steps:
                tokens = self.train_rows.batch(self.batches(self.step))
                loss = self.training_step(tokens.to(self.model.device))
                self.run.log({**self._now(), "loss": loss})
                progress.update(self.step, loss, tokens.numel())
                if self.step % self.steps_per_epoch == 0:
                    progress.say(self.end_epoch())
                if interrupted() and self.step < self.n_steps:
                    self.save()
                    raise TrainingStopped(
                        f"stopped after step {self.step:,} of {self.n_steps:,}, which is saved in "
                        f"{self.run.path}: `pvml train --resume --run-dir {self.run.path.parent} "
                        f"--name {self.run.name}` goes on from there"
                    )
        return self.finish()

    def training_step(self, tokens: Int[Tensor, "batch posn"]) -> float:
        """The loss (nats per token) of one batch, whose gradients have then moved the weights.

        Raises: NonFiniteError for a loss that is NaN or infinite; the weights are unmoved.
        """
        loss = -get_log_probs(self.model(tokens), tokens).mean()
        if not loss.isfinite():
            self.optimizer.zero_grad()
            raise self._gone_wrong(f"the loss of step {self.step + 1:,} is {loss.item()}")
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.item()

    def evaluate(self) -> dict[str, Any]:
        """Grades on the held-out documents: accuracy, loss (nats per token), bits per byte.

        `held_out_loss_by_position` is a list: the loss at positions 1 to n_ctx - 1.
        """
        size = self.args.batch_size
        held_out = grade_held_out(self.model, self.held_out_rows, size)
        return {
            "accuracy": held_out.accuracy,
            "held_out_loss": held_out.loss,
            "bits_per_byte": bits_per_byte(self.model, self.tokenizer, self.held_out, size),
            "held_out_loss_by_position": held_out.loss_by_position,
        }

    def end_epoch(self) -> str:
        """Grade, sample, save; a line that tells the grades."""
        self._require_finite_weights()
        grades = self.evaluate()
        if not math.isfinite(grades["held_out_loss"]):
            loss = grades["held_out_loss"]
            raise self._gone_wrong(f"after step {self.step:,} the held-out loss is {loss}")
        now = self._now()
        self.run.log({**now, **grades})
        prompt = self.args.sample_prompt
        if prompt is not None:
            text = self.sample(self.model, prompt)
            where = {"step": self.step, "epoch": now["epoch"]}
            self.run.log_sample({**where, "prompt": prompt, "text": text})
        self.save()
        return (
            f"epoch {now['epoch']}: held-out loss {grades['held_out_loss']:.3f} nats/token, "
            f"{grades['bits_per_byte']:.3f} bits/byte, accuracy {grades['accuracy']:.3f}"
        )

    def save(self) -> None:
        """Make this moment the run's last checkpoint.

        Raises: NonFiniteError naming the first weight that is not finite; nothing is saved then.
        """
        if self._saved_step == self.step:
            return
        self._require_finite_weights()
        state = {
            "optimizer": self.optimizer.state_dict(),
            "rng": t.get_rng_state(),
            "rows": self._rows_identity,
            "seconds": self.seconds,
        }
        self.run.save_checkpoint(self.step, self.model, state)
        self._saved_step = self.step

    def finish(self) -> dict[str, Any]:
        """The run's summary, written down: the run is finished."""
        losses = [row["loss"] for row in self.run.rows("loss")][-_LAST_STEPS:]
        *_, last = self.run.rows("accuracy")
        seconds = self.seconds
        summary = {
            "device": str(self.model.device),
            "steps": self.step,
            "tokens": self.tokens,
            "seconds": seconds,
            "steps_per_second": self.step / seconds,
            "parameters": parameter_totals(self.model),
            "final_accuracy": last["accuracy"],
            "final_held_out_loss": last["held_out_loss"],
            "bits_per_byte": last["bits_per_byte"],
            "loss_last_500": sum(losses) / len(losses),
        }
        self.run.finish(summary)
        return summary

    @property
    def tokens(self) -> int:
        """Tokens read so far, each row's BOS included."""
        return self.step * self.args.batch_size * self.train_rows.n_ctx

    @property
    def seconds(self) -> float:
        """Seconds spent so far, grading and saving included; over all resumes."""
        return self._seconds_before + time.perf_counter() - self._started

    def _now(self) -> dict[str, Any]:
        """Where the run stands after its last step. Steps count from 1, epochs from 0."""
        return {
            "step": self.step,
            "epoch": (self.step - 1) // self.steps_per_epoch,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
        }

    def _require_finite_weights(self) -> None:
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise self._gone_wrong(f"after step {self.step:,} {name} is not finite")

    def _gone_wrong(self, what: str) -> NonFiniteError:
        kept = "holds no checkpoint"
        if self._saved_step is not None:
            kept = f"keeps the checkpoint of step {self._saved_step:,}"
        return NonFiniteError(
            f"{what}, at lr {self.args.lr:g}. {self.run.path} {kept}. Try a lower lr"
        )

    def _sample_with_default_settings(self, model: Transformer, prompt: str) -> str:
        from pvml.sampling.args import SamplingArgs
        from pvml.sampling.sampler import Sampler

        settings = SamplingArgs(temperature=0.7, seed=self.args.seed)
        return Sampler(model, self.tokenizer).sample(prompt, settings)


def _identity(rows: Rows) -> str:
    """What tells one set of rows from another: their number, length and a hash of their tokens."""
    digest = hashlib.blake2b(np.ascontiguousarray(rows.stream).data, digest_size=16).hexdigest()
    return f"{len(rows):,} rows of {rows.n_ctx}, tokens {digest}"


def _require_fitting(model: Transformer, tokenizer: Tokenizer, rows: Rows) -> None:
    cfg = model.cfg
    if cfg.d_vocab < tokenizer.d_vocab:
        raise PvmlError(
            f"the model has d_vocab {cfg.d_vocab}, and tokenizer {tokenizer.name} gives ids up to "
            f"{tokenizer.d_vocab - 1}: set d_vocab to {tokenizer.d_vocab}"
        )
    if rows.n_ctx > cfg.n_ctx:
        raise PvmlError(
            f"rows of {rows.n_ctx} tokens do not fit the model's n_ctx of {cfg.n_ctx}: cut the "
            f"rows for n_ctx {cfg.n_ctx}"
        )
