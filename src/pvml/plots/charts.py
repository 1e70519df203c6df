"""Which charts there are: what each shows of a run, and along which axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pvml.plots.curves import RunCurves, Series

_BITS = "held-out bits per byte, by epoch"
_FLOPS = "training cost (floating-point operations)"
_SIZE = "non-embedding parameters"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A file's name, what is drawn of each run, and the axes' labels."""

    name: str
    points: Callable[[RunCurves], Series]
    x: str
    y: str
    log_x: int | None = None
    """The base of a logarithmic x axis, whose ticks are its powers."""
    dots: bool = False
    """Whether every point is marked: they are few."""
    whole_x: bool = False
    """Whether the x axis counts: no ticks between its numbers."""
    held_out: Callable[[RunCurves], Series] | None = None
    """The held-out loss on the same axes, drawn dashed."""
    guess: Callable[[RunCurves], float] | None = None
    """What a blind guess would have on the y axis, which needs not reach far beyond that."""


def _one_point(run: RunCurves, y: float) -> Series:
    # a bigram model has no parameters outside its tables, and a log axis has no 0
    return Series(np.array([float(max(run.non_embedding, 1))]), np.array([y]))


def _blind(run: RunCurves) -> float:
    """The guess's loss (nats per token)."""
    return run.guess


def _blind_bits(run: RunCurves) -> float:
    """The guess's bits per byte: nats per token are to them as they are for the run."""
    return run.guess * run.final_bits_per_byte / (run.final_held_out or np.nan)


def _training_loss(runs: Sequence[RunCurves]) -> str:
    """What the y axis of smoothed training losses says."""
    few, many = min(run.window for run in runs), max(run.window for run in runs)
    if many == 1:
        return "training loss of each step (nats per token)"
    over = f"{many}" if few == many else f"{few} to {many}, by the run's length,"
    return f"training loss (nats per token; means of {over} steps)"


FINAL_HELD_OUT = Chart(
    name="final-loss-by-parameters",
    points=lambda run: _one_point(run, run.final_held_out),
    x=_SIZE,
    y="held-out loss after the last epoch (nats per token)",
    log_x=10,
    dots=True,
    guess=_blind,
)
FINAL_TRAINING = Chart(
    name="final-loss-by-parameters",
    points=lambda run: _one_point(run, run.last_steps_loss),
    x=_SIZE,
    y="training loss, mean of the last 500 steps at most (nats per token)",
    log_x=10,
    dots=True,
    guess=_blind,
)


def charts_of(runs: Sequence[RunCurves]) -> list[Chart]:
    """The charts for runs of one corpus, n_ctx and tokenizer: only their losses are in one unit.

    The final loss is the held-out one, if a run logged it and every finished run did.
    """
    known = [bool(np.isfinite(run.final_held_out)) for run in runs]
    finished = [k for k, run in zip(known, runs, strict=True) if run.unfinished_at is None]
    loss = _training_loss(runs)
    return [
        Chart(
            name="loss-by-step",
            points=lambda run: Series(run.windows.steps, run.loss),
            x="step",
            y=loss,
            held_out=lambda run: Series(run.epochs.steps, run.held_out_loss),
            guess=_blind,
        ),
        Chart(
            name="loss-by-time",
            points=lambda run: Series(run.windows.minutes, run.loss),
            x="minutes",
            y=loss,
            guess=_blind,
        ),
        Chart(
            name="loss-by-tokens",
            points=lambda run: Series(run.windows.tokens, run.loss),
            x="tokens read",
            y=loss,
            guess=_blind,
        ),
        Chart(
            name="loss-by-flops",
            points=lambda run: Series(run.windows.flops, run.loss),
            x=_FLOPS,
            y=loss,
            log_x=10,
            guess=_blind,
        ),
        FINAL_HELD_OUT if any(known) and all(finished) else FINAL_TRAINING,
        Chart(
            name="accuracy-by-epoch",
            points=lambda run: Series(run.epoch_numbers, run.accuracy),
            x="epoch",
            y="accuracy (share of held-out next tokens)",
            dots=True,
            whole_x=True,
        ),
        Chart(
            name="held-out-loss-by-position",
            points=lambda run: Series(np.arange(1.0, len(run.by_position) + 1), run.by_position),
            x="position in the row (0 is BOS)",
            y="held-out loss after the last epoch (nats)",
            log_x=2,
            guess=_blind,
        ),
    ]


ACROSS = [
    Chart(
        name="bits-per-byte-by-time",
        points=lambda run: Series(run.epochs.minutes, run.bits_per_byte),
        x="minutes",
        y=_BITS,
        dots=True,
        guess=_blind_bits,
    ),
    Chart(
        name="bits-per-byte-by-flops",
        points=lambda run: Series(run.epochs.flops, run.bits_per_byte),
        x=_FLOPS,
        y=_BITS,
        log_x=10,
        dots=True,
        guess=_blind_bits,
    ),
    Chart(
        name="bits-per-byte-by-parameters",
        points=lambda run: _one_point(run, run.final_bits_per_byte),
        x=_SIZE,
        y="held-out bits per byte after the last epoch",
        log_x=10,
        dots=True,
        guess=_blind_bits,
    ),
]
"""The charts for all runs of one corpus: a byte is the same to every tokenizer."""
