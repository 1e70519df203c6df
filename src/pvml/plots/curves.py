"""A run's logs as series that can be drawn: smoothed, with its gaps. Drawing is in `losses.py`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from pvml.errors import PvmlError
from pvml.runs.format import RunDir
from pvml.runs.weights import empty_model, parameter_totals

WINDOW = 100
"""Steps whose losses are averaged into one point: a single batch's loss is too noisy to read."""
LAST_STEPS = 500


@dataclass(frozen=True)
class Series:
    """Points of a line. NaN in `y` is a gap."""

    x: Float[np.ndarray[Any, Any], " points"]
    y: Float[np.ndarray[Any, Any], " points"]


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """What the four charts show of one finished run."""

    name: str
    n_ctx: int
    tokenizer: str
    by_step: Series
    """Mean loss (nats per token) of each window, by step."""
    by_minute: Series
    """The same by minutes since the run began."""
    accuracy: Series
    """Share of held-out next tokens that were right, by epoch (counted from 0)."""
    final_loss: float
    """Mean of the last 500 steps; NaN if one of them was not finite."""
    non_embedding: int
    """Parameters outside the vocabulary and position tables."""
    notes: list[str] = field(default_factory=list)
    """What is missing or guessed, as sentences."""


def read_curves(path: Path) -> RunCurves:
    """A finished run's series.

    Raises: PvmlError if the run is unfinished, damaged, or logged no loss.
    """
    run = RunDir.open(path)
    summary = run.summary()
    rows = list(run.rows("loss"))
    if not rows:
        raise PvmlError(f"{run.path} logged no loss")
    steps, losses, epochs = column(rows, "step"), column(rows, "loss"), list(run.rows("accuracy"))
    notes = []
    n_gaps = int(np.isnan(losses).sum())
    if n_gaps:
        notes.append(f"{run.name}: {n_gaps:,} of {len(rows):,} losses are not finite: gaps")
    seconds = column(rows, "seconds")
    if np.isnan(seconds).any():
        seconds = steps / steps[-1] * float(summary.get("seconds") or np.nan)
        notes.append(f"{run.name}: no times were logged: its seconds are spread evenly")
    return RunCurves(
        name=run.name,
        n_ctx=run.cfg.n_ctx,
        tokenizer=run.tokenizer_name,
        by_step=Series(window_ends(steps), window_means(losses)),
        by_minute=Series(window_ends(seconds) / 60, window_means(losses)),
        accuracy=Series(column(epochs, "epoch"), column(epochs, "accuracy")),
        final_loss=float(losses[-LAST_STEPS:].mean()),
        non_embedding=parameter_totals(empty_model(run.cfg))["non_embedding"],
        notes=notes,
    )


def column(rows: Sequence[Mapping[str, Any]], key: str) -> Float[np.ndarray[Any, Any], " rows"]:
    """One entry of every row; NaN where it is missing, null or no number."""
    return np.array([_number(row.get(key)) for row in rows], dtype=np.float64)


def _number(value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if good else np.nan  # type: ignore[arg-type]  # `good` is the test
    return number if np.isfinite(number) else np.nan


def window_means(
    values: Float[np.ndarray[Any, Any], " steps"], window: int = WINDOW
) -> Float[np.ndarray[Any, Any], " points"]:
    """The mean of each run of `window` values; a shorter last one counts, a NaN makes a gap."""
    return np.array([piece.mean() for piece in _pieces(values, window)])


def window_ends(
    values: Float[np.ndarray[Any, Any], " steps"], window: int = WINDOW
) -> Float[np.ndarray[Any, Any], " points"]:
    """The last value of each run of `window`."""
    return np.array([piece[-1] for piece in _pieces(values, window)])


def _pieces(values: NDArray[np.float64], window: int) -> Iterable[NDArray[np.float64]]:
    return (values[start : start + window] for start in range(0, len(values), window))
