"""The training loop: batch, loss, gradients, step; at each epoch's end a grade and a checkpoint.

What is kept on disk is in `pvml.runs.format`; the rows and their order are in `pvml.data.rows`; how
several processes share the work is in `processes.py`.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

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
from pvml.training.first_weights import first_model
from pvml.training.identity import damaged_state, identity_of, require_own, seconds_of
from pvml.training.interrupt import TrainingStopped, command_to_go_on, interruptible
from pvml.training.nonfinite import NonFiniteError, first_non_finite_weight
from pvml.training.processes import Processes
from pvml.training.progress import TrainingProgress
from pvml.training.random_state import random_state, set_random_state
from pvml.training.schedules import lr_at
from pvml.training.sinks import Sinks
from pvml.training.step import StepReport, TrainingStep

Sample = Callable[[Transformer, str], str]
"""From a model and a prompt to the prompt and its continuation."""
_LAST_STEPS = 500


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
        processes: Processes | None = None,
        sinks: Sinks | None = None,
        sample: Sample | None = None,
        console: Console | None = None,
    ):
        """A run at its beginning. The model is moved to the device that `args` asks for.

        held_out: documents to grade on, none of which is in the rows. processes: those that train
        together, each with a Trainer of the same arguments; unset: this one alone. sinks: what
        besides the run directory is told of every row. sample: how each epoch's sample is made;
        unset: by `pvml.sampling.Sampler`, always with the same seed.

        Raises: PvmlError if model, tokenizer and rows do not fit each other, the held-out text does
        not fill one row, the warm-up is longer than the run, or a batch is too small to be shared.
        """
        _require_fitting(model, tokenizer, train_rows, run)
        self.processes = processes or Processes(0, 1, pick_device(args.device))
        self.model = model.to(self.processes.device)
        self.tokenizer = tokenizer
        self.train_rows = train_rows
        self.held_out = held_out
        self.held_out_rows = pack(tokenizer, held_out, train_rows.n_ctx, train_rows.packing)
        self.args = args
        self.run = run
        self.sinks = sinks
        self.sample = sample or self._sample_with_default_settings
        self.console = console if self.processes.first else Console(quiet=True)
        self.batches = Batches(len(train_rows), args.batch_size, args.seed)
        self.processes.share(self.batches(0), args.accumulate or 1)
        self.steps_per_epoch = min(args.max_steps_per_epoch, len(self.batches))
        self.n_steps = args.steps(len(self.batches))
        self.update = TrainingStep(self.model, args, self.n_steps, self.processes)
        self.step = 0
        self.note = ""
        """What `resume` found damaged, as a sentence."""
        self.accuracy: float | None = None
        """Share of held-out tokens that were right, at the last epoch's end."""
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
        processes: Processes | None = None,
        sinks: Sinks | None = None,
        sample: Sample | None = None,
        console: Console | None = None,
    ) -> "Trainer":
        """The run as its last checkpoint left it: it goes on as if it had never stopped.

        On a CPU with the same number of threads, losses, batches and weights are the same bits. A
        run that was stopped before its first checkpoint begins again. Log rows later than the
        checkpoint are cut; their steps will be taken again. The number of processes may differ.
        device: where to go on, if not where the run's own args say.

        Raises: RunDirError if the run is finished, is damaged, or had other rows, held-out texts or
        settings.
        """
        args = TrainingArgs.from_dict(run.args)
        args = replace(args, device=device or args.device)
        # locked from the first look on: what is read must still be there when it is gone back to
        with run.lock() if processes is None or processes.first else nullcontext():
            if run.finished:
                raise RunDirError(
                    f"{run.path} is finished, there is nothing to resume: --name gives a new run a "
                    f"name of its own, --overwrite starts this one anew"
                )
            point = run.load_checkpoint(args.device) if run.has_checkpoint else None
            model = point.model if point else first_model(run.cfg, args)
            trainer = cls(
                model,
                run.tokenizer(),
                train_rows,
                held_out,
                args,
                run,
                processes=processes,
                sinks=sinks,
                sample=sample,
                console=console,
            )
            trainer.processes.wait()  # all have read what the first is about to change
            if point:
                trainer._go_on_from(point.step, point.state)
                trainer.note = point.note
            else:
                trainer._rewind(0)
        return trainer

    def _go_on_from(self, step: int, state: dict[str, Any]) -> None:
        require_own(state, self._identity, self.run)
        try:
            self._seconds_before = seconds_of(state)
            self.update.optimizer.load_state_dict(state["optimizer"])
            set_random_state(state["random"], self.processes.device)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, PvmlError) as error:
            raise damaged_state(self.run, error) from error
        self.step = self._saved_step = step
        self._rewind(step)

    def _rewind(self, step: int) -> None:
        with self.processes.first_goes_ahead():
            if not self.processes.first:
                return
            self.run.rewind(step)
            logged = max((row.get("step", 0) for row in self.run.rows()), default=0)
            if logged != step:
                raise RunDirError(
                    f"{self.run.path} has a checkpoint at step {step:,}, and its metrics end at "
                    f"step {logged:,}: put the rest back, or start anew with --overwrite"
                )

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return identity_of(self.run, self.train_rows, self.held_out)

    def train(self) -> dict[str, Any]:
        """Take every step that is left; the run's summary, which is also written down.

        Raises: NonFiniteError naming step, learning rate and the first tensor that went wrong;
        TrainingStopped after Ctrl-C, saved; RunDirError if the disk refuses, or if another process
        trains this run. The last good checkpoint stays in every case.
        """
        self._started = time.perf_counter()
        with (
            self.run.lock() if self.processes.first else nullcontext(),
            TrainingProgress(self.n_steps, self.step, self.console) as progress,
            interruptible(progress.say) as interrupted,
        ):
            self._require_untouched()
            if self._saved_step is None:
                self.save()
            self.model.train()
            while self.step < self.n_steps:
                rows = self.train_rows.batch(self.processes.share(self.batches(self.step))[0])
                report = self.training_step(rows.to(self.processes.device))
                self._log({**self._now(), **report.to_dict()})
                progress.update(self.step, report.loss, self.tokens, self.accuracy)
                if self.step % self.steps_per_epoch == 0:
                    progress.say(self.end_epoch())
                elif self._due(self.args.checkpoint_every) or self._due(self.args.keep_every):
                    self.save()
                if self.processes.any(interrupted()) and self.step < self.n_steps:
                    self.save()
                    raise TrainingStopped(
                        f"stopped after step {self.step:,} of {self.n_steps:,}, which is saved in "
                        f"{self.run.path}: `{command_to_go_on(self.run.path)}` goes on from there"
                    )
            return self.finish()

    def _require_untouched(self) -> None:
        """Nothing, if the run directory is as this trainer knows it."""
        if self.run.finished:
            raise RunDirError(f"{self.run.path} is finished: --name gives a new run its own name")
        if self.processes.first and self.run.latest_step() != self._saved_step:
            raise RunDirError(
                f"{self.run.path} was trained by another process meanwhile, up to step "
                f"{self.run.latest_step()}: --resume goes on from there"
            )

    def training_step(self, tokens: Int[Tensor, "batch posn"]) -> StepReport:
        """One batch's gradients have moved the weights; its loss is in the report.

        tokens: this process's rows. The report, and the move, are those of all processes' rows.

        Raises: NonFiniteError as `TrainingStep.take` does; the weights are unmoved.
        """
        with self._telling_what_stays():
            report = self.update.take(self.step, tokens)
        self.step += 1
        return report

    def evaluate(self) -> dict[str, Any]:
        """Grades on the held-out documents: accuracy, loss (nats per token), bits per byte.

        `held_out_loss_by_position` is a list: the loss at positions 1 to n_ctx - 1. With several
        processes each grades everything: they need not wait for one another.
        """
        model, size = self.processes.whole(self.model), self.args.batch_size
        held_out = grade_held_out(model, self.held_out_rows, size)
        return {
            "accuracy": held_out.accuracy,
            "held_out_loss": held_out.loss,
            "bits_per_byte": bits_per_byte(model, self.tokenizer, self.held_out, size),
            "held_out_loss_by_position": held_out.loss_by_position,
        }

    def end_epoch(self) -> str:
        """Grade, sample, save; a line that tells the grades."""
        self._require_finite_weights()
        grades = self.evaluate()
        self.accuracy = grades["accuracy"]
        if not math.isfinite(grades["held_out_loss"]):
            loss = grades["held_out_loss"]
            self._gone_wrong(f"after step {self.step:,} the held-out loss is {loss}")
        now = self._now()
        self._log({**now, **grades})
        prompt = self.args.sample_prompt
        if prompt is not None:
            text = self.sample(self.processes.whole(self.model), prompt)
            where = {"step": self.step, "epoch": now["epoch"]}
            if self.processes.first:
                self.run.log_sample({**where, "prompt": prompt, "text": text})
        self.save()
        return (
            f"epoch {now['epoch']}: held-out loss {grades['held_out_loss']:.3f} nats/token, "
            f"{grades['bits_per_byte']:.3f} bits/byte, accuracy {grades['accuracy']:.3f}"
        )

    def save(self) -> None:
        """Make this moment the run's last checkpoint; at multiples of `keep_every` one for good.

        Raises: NonFiniteError naming the first weight that is not finite; nothing is saved then.
        """
        if self._saved_step == self.step:
            return
        self._require_finite_weights()
        state = {
            "optimizer": self.update.optimizer.state_dict(),
            "random": random_state(self.processes.device),
            "seconds": self.seconds,
            **self._identity,
        }
        model = self.processes.whole(self.model)
        if self.processes.first:
            self.run.save_checkpoint(self.step, model, state, keep=self._due(self.args.keep_every))
        self._saved_step = self.step

    def _due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def finish(self) -> dict[str, Any]:
        """The run's summary, written down: the run is finished."""
        if self.processes.first:
            self.run.finish(self._summary())
        self.processes.wait()
        return self.run.summary()

    def _summary(self) -> dict[str, Any]:
        losses = [row["loss"] for row in self.run.rows("loss")][-_LAST_STEPS:]
        *_, last = self.run.rows("accuracy")
        seconds = self.seconds
        return {
            "device": str(self.processes.device),
            "processes": self.processes.count,
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

    def _log(self, row: dict[str, Any]) -> None:
        if self.processes.first:
            self.run.log(row)
            if self.sinks is not None:
                self.sinks.log(row, self.step)

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
        name = first_non_finite_weight(self.processes.whole(self.model))
        if name is not None:
            self._gone_wrong(f"after step {self.step:,} {name} is not finite")

    def _gone_wrong(self, what: str) -> NoReturn:
        with self._telling_what_stays():
            raise NonFiniteError.of(what, lr_at(self.step - 1, self.n_steps, self.args))

    @contextmanager
    def _telling_what_stays(self) -> Iterator[None]:
        try:
            yield
        except NonFiniteError as error:
            kept = "holds no checkpoint"
            if self._saved_step is not None:
                kept = f"keeps the checkpoint of step {self._saved_step:,}"
            # before the first step no rate has moved anything
            remedy = "a lower lr" if self.step else "a smaller init_range: lr has moved nothing yet"
            raise NonFiniteError(f"{error}. {self.run.path} {kept}. Try {remedy}") from error

    def _sample_with_default_settings(self, model: Transformer, prompt: str) -> str:
        from pvml.sampling.args import SamplingArgs
        from pvml.sampling.sampler import Sampler

        settings = SamplingArgs(temperature=0.7, seed=self.args.seed)
        return Sampler(model, self.tokenizer).sample(prompt, settings)


def _require_fitting(model: Transformer, tokenizer: Tokenizer, rows: Rows, run: RunDir) -> None:
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
    if cfg != run.cfg:
        raise PvmlError(
            f"the model is not the one that {run.path} was made for: {cfg} instead of {run.cfg}"
        )
    if model.dtype != t.float32:
        raise PvmlError(
            f"a model of {model.dtype} cannot be trained here, weights are float32: give "
            f"model.float(), and precision bfloat16 for faster products"
        )
