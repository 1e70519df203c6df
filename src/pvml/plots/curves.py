"""A run's logs as series that can be drawn: smoothed, with their gaps. Drawing is elsewhere."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from pvml.errors import PvmlError, RunDirError
from pvml.modules.flops import training_flops
from pvml.runs.format import RunDir
from pvml.runs.weights import empty_model, parameter_totals

WINDOWS = (1, 2, 5, 10, 20, 50, 100)
"""Steps whose losses are averaged into one point: a single batch's loss is too noisy to read."""
FEWEST_POINTS = 20
"""Of a curve; a run of fewer steps has a point for each."""
LAST_STEPS = 500
LARGEST_DRAWN = 1e30
"""What lies beyond it is a gap: an axis that reaches near float64's largest has no ticks."""
Values = Float[np.ndarray[Any, Any], " points"]
Windows = Float[np.ndarray[Any, Any], " windows"]
Epochs = Float[np.ndarray[Any, Any], " epochs"]


@dataclass(frozen=True)
class Series:
    """Points of a line. NaN is a gap."""

    x: Values
    y: Values


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run was at each of some points; NaN where that is not known."""

    steps: Values
    minutes: Values
    """Since the run began, over all resumes."""
    tokens: Values
    """Read by training, each row's BOS included."""
    flops: Values
    """Floating-point operations of the training steps, `training_flops` for each token."""


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """What the charts show of one run."""

    name: str
    corpus: str
    """The corpus's name; empty for a run that did not record it."""
    source: str
    """How the corpus was asked for, a path or a word; empty as above."""
    fingerprint: str
    """64 hex digits of its documents; empty as above."""
    n_ctx: int
    tokenizer: str
    non_embedding: int
    """Parameters outside the vocabulary and position tables."""
    unfinished_at: int | None
    """The last logged step of a run without a summary; None for a finished run."""
    guess: float
    """Loss of a model that gives every token of the vocabulary the same chance (nats)."""
    window: int
    """Steps in a window, `smoothing_window` of the run's; a longer run has longer ones."""
    windows: Progress
    """In the middle of each window."""
    loss: Windows
    """Mean training loss (nats per token) of each window; NaN if one of its steps has none."""
    last_steps_loss: float
    """Mean training loss of the last 500 steps, or of all if fewer; NaN if one is a gap."""
    epochs: Progress
    """At the end of each epoch."""
    epoch_numbers: Epochs
    """Counted from 0."""
    accuracy: Epochs
    """Share of held-out next tokens that were right, by epoch."""
    held_out_loss: Epochs
    """Nats per token, by epoch."""
    bits_per_byte: Epochs
    """Of the held-out documents, each alone, by epoch."""
    by_position: Float[np.ndarray[Any, Any], " positions"]
    """The last epoch's held-out loss at positions 1, 2, ... (nats); empty if none was logged."""
    lacking: str = ""
    """How many steps its log lacks, as a phrase; empty if none."""
    notes: tuple[str, ...] = ()
    """What is missing or guessed, as sentences."""

    @property
    def final_held_out(self) -> float:
        """The last held-out loss (nats per token); NaN if none was logged."""
        return _last(self.held_out_loss)

    @property
    def final_bits_per_byte(self) -> float:
        return _last(self.bits_per_byte)


def read_curves(path: Path) -> RunCurves:
    """A run's series, whether it is finished or not. A torn last line is left out.

    Raises: PvmlError if the run is damaged, or logged no loss.
    """
    run = RunDir.open(path)
    everything = list(run.rows())
    steps = [row for row in everything if "loss" in row]
    epochs = [row for row in everything if "accuracy" in row]
    if not steps:
        raise PvmlError(f"{run.path} logged no loss")
    numbers, losses = column(steps, "step"), column(steps, "loss")
    if np.isnan(numbers).any():
        raise PvmlError(f"{run.path} is damaged: a row of its metrics has a loss and no step")
    window = smoothing_window(numbers)
    notes = _notes(run.name, numbers, losses)
    ends = window_ends(numbers, window)
    last_rows = [steps[end] for end in ends]
    progress = _Measure(run, last_rows)
    return RunCurves(
        name=run.name,
        corpus=str(run.data.get("name", "")),
        source=str(run.data.get("source", "")),
        fingerprint=str(run.data.get("fingerprint", "")),
        n_ctx=run.cfg.n_ctx,
        tokenizer=run.tokenizer_name,
        non_embedding=parameter_totals(empty_model(run.cfg))["non_embedding"],
        unfinished_at=None if run.finished else int(numbers[-1]),
        guess=math.log(run.cfg.d_vocab),
        window=window,
        windows=_in_the_middle(progress.of(last_rows), window),
        loss=window_means(losses, ends),
        last_steps_loss=float(losses[-LAST_STEPS:].mean()),
        epochs=progress.of(epochs),
        epoch_numbers=column(epochs, "epoch"),
        accuracy=column(epochs, "accuracy"),
        held_out_loss=column(epochs, "held_out_loss"),
        bits_per_byte=column(epochs, "bits_per_byte"),
        by_position=_by_position(epochs),
        lacking=lacking(numbers),
        notes=(*notes, *progress.notes),
    )


class _Measure:
    """Turns rows of a run's log into progress, guessing what an older version did not log."""

    def __init__(self, run: RunDir, last_rows: Sequence[Mapping[str, Any]]):
        self.notes: list[str] = []
        self._flops = float(training_flops(run.cfg).total)
        self._tokens_a_step = self._seconds_a_step = None
        if np.isnan(column(last_rows, "tokens")).any():
            self._tokens_a_step = _number(run.args.get("batch_size")) * run.cfg.n_ctx
            self._tell(run.name, "token counts", "tokens", self._tokens_a_step)
        if np.isnan(column(last_rows, "seconds")).any():
            summary = {}
            with suppress(RunDirError):
                summary = run.summary()
            self._seconds_a_step = _number(summary.get("seconds")) / _number(last_rows[-1]["step"])
            self._tell(run.name, "times", "seconds", self._seconds_a_step)

    def _tell(self, name: str, what: str, unit: str, a_step: float) -> None:
        guess = "cannot be known" if np.isnan(a_step) else "are spread evenly over its steps"
        self.notes.append(f"{name}: not every step logged {what}: its {unit} {guess}")

    def of(self, rows: Sequence[Mapping[str, Any]]) -> Progress:
        """Where the run stood at each of these rows."""
        steps = column(rows, "step")
        tokens, seconds = column(rows, "tokens"), column(rows, "seconds")
        if self._tokens_a_step is not None:
            tokens = steps * self._tokens_a_step
        if self._seconds_a_step is not None:
            seconds = steps * self._seconds_a_step
        return Progress(
            steps=steps, minutes=seconds / 60, tokens=tokens, flops=tokens * self._flops
        )


def _notes(name: str, steps: Values, losses: Values) -> list[str]:
    notes = []
    n_gaps = int(np.isnan(losses).sum())
    if n_gaps:
        count = f"{n_gaps:,} of {len(losses):,} losses"
        notes.append(f"{name}: {count} are not finite or beyond {LARGEST_DRAWN:g}: gaps")
    if lacking(steps):
        notes.append(f"{name}: {lacking(steps)}")
    if is_thinned(steps):
        window = smoothing_window(steps)
        notes.append(f"{name}: its log has a row for each {window} steps, with their mean loss")
    return notes


def _by_position(epochs: Sequence[Mapping[str, Any]]) -> Values:
    logged = [row.get("held_out_loss_by_position") for row in epochs]
    last = next((losses for losses in reversed(logged) if isinstance(losses, list)), [])
    return np.array([_number(loss) for loss in last], dtype=np.float64)


def _last(values: Values) -> float:
    return float(values[-1]) if len(values) else np.nan


def column(rows: Iterable[Mapping[str, Any]], key: str) -> Values:
    """One entry of every row; NaN where it is missing, null, no number, or too large to draw."""
    return np.array([_number(row.get(key)) for row in rows], dtype=np.float64)


def _number(value: object) -> float:
    # True and False are of a type of their own; this runs for every step of every run
    known = type(value) in (int, float) and abs(value) <= LARGEST_DRAWN  # type: ignore[arg-type]
    return float(value) if known else math.nan  # type: ignore[arg-type]


def _in_the_middle(ends: Progress, window: int) -> Progress:
    """From where a run stood at its windows' ends, where it stood in their middles.

    It stood at nothing before its first step, and went on evenly from one end to the next. A log
    that holds nothing but its windows' last rows gives the same.
    """
    steps = window_middles(ends.steps, window)

    def at(values: Windows) -> Windows:
        between: Windows = np.interp(steps, np.append(0.0, ends.steps), np.append(0.0, values))
        return between

    return Progress(
        steps=steps, minutes=at(ends.minutes), tokens=at(ends.tokens), flops=at(ends.flops)
    )


def smoothed(steps: Values, values: Values) -> tuple[Series, int]:
    """Each window's mean at its middle, and the steps in a window: 1 for a short run."""
    window = smoothing_window(steps)
    ends = window_ends(steps, window)
    return Series(window_middles(steps[ends], window), window_means(values, ends)), window


def smoothing_window(steps: Values) -> int:
    """Steps that are averaged into one point: at most 100, and so few that 20 points are left.

    It depends on the last step only, so a log of which rows are left out has the same windows.
    """
    fitting = (window for window in WINDOWS if len(steps) and steps[-1] >= FEWEST_POINTS * window)
    return max(fitting, default=1)


def is_thinned(steps: Values) -> bool:
    """Whether a log has one row for each window, that of its last step.

    So logs are kept beside bundled models, each row with the mean loss of its window: training
    itself logs every step.
    """
    window = smoothing_window(steps)
    ends = np.append(np.arange(window, steps[-1], window), steps[-1]) if len(steps) else steps
    return window > 1 and bool(np.array_equal(steps, ends))


def lacking(steps: Values) -> str:
    """How many steps before the last are in no row of a log, nor in a mean; empty if none."""
    last = int(steps[-1]) if len(steps) and np.isfinite(steps[-1]) else 0
    missing = 0 if is_thinned(steps) else last - len(np.unique(steps))
    return f"{missing:,} of {last:,} steps are not in its log" if missing > 0 else ""


def window_middles(ends: Windows, window: int) -> Windows:
    """The middle step of each window, from its last logged step."""
    before = np.append(0.0, ends[:-1])[: len(ends)]
    middles: Windows = (np.maximum(before, (ends - 1) // window * window) + 1 + ends) / 2
    return middles


def window_ends(steps: Values, window: int) -> list[int]:
    """Where each window's last row is: windows of 100 are steps 1 to 100, 101 to 200, and so on."""
    numbers = (steps - 1) // window
    return [*np.flatnonzero(np.diff(numbers)).tolist(), len(steps) - 1] if len(steps) else []


def window_means(values: Values, ends: Sequence[int]) -> Windows:
    """The mean up to each end since the one before; a NaN makes a gap."""
    starts = [0, *(end + 1 for end in ends)][: len(ends)]
    return np.array(
        [values[start : end + 1].mean() for start, end in zip(starts, ends, strict=True)]
    )
