"""How runs went: loss by step and by wall clock, final loss by size, accuracy by epoch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pvml.errors import PvmlError
from pvml.plots.canvas import figure, save
from pvml.plots.curves import RunCurves, Series, column, read_curves, window_ends, window_means


def plot_runs(
    run_dirs: Iterable[Path], out_dir: Path, say: Callable[[str], object] = print
) -> list[Path]:
    """The charts' PNG files: four for each group of runs with one n_ctx and one tokenizer.

    Only such runs are comparable: a longer window makes an easier task, another tokenizer another
    unit. say: takes a sentence for each run that is left out, and for each gap.

    Raises: RunDirError if `out_dir` cannot be written.
    """
    groups: dict[tuple[int, str], list[RunCurves]] = {}
    for path in run_dirs:
        try:
            curves = read_curves(Path(path))
        except PvmlError as problem:
            say(f"left out: {problem}")
            continue
        groups.setdefault((curves.n_ctx, curves.tokenizer), []).append(curves)
        for note in curves.notes:
            say(note)
    written = []
    for (n_ctx, tokenizer), runs in sorted(groups.items()):
        about = f"n_ctx {n_ctx}, tokenizer {tokenizer}"
        ending = f"ctx{n_ctx}-{tokenizer.replace(':', '')}.png"
        for chart, draw in CHARTS.items():
            made, (axes,) = figure(8.0, 5.0)
            axes.set_title(about)
            draw(axes, runs)
            written.append(save(made, Path(out_dir) / f"{chart}-{ending}"))
    return written


def loss_curve(rows: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """One run's loss by step, each step's faintly and the 100-step means over it; the PNG's path.

    Raises: PvmlError if no row has a loss; RunDirError if the file cannot be written.
    """
    with_loss = [row for row in rows if "loss" in row]
    if not with_loss:
        raise PvmlError("there is no loss to draw: no row has one")
    steps, losses = column(with_loss, "step"), column(with_loss, "loss")
    made, (axes,) = figure(8.0, 5.0)
    axes.set_title("loss")
    _line(axes, Series(steps, losses), "each step", alpha=0.3)
    _line(axes, Series(window_ends(steps), window_means(losses)), "mean of 100 steps")
    _label(axes, "step", "loss (nats per token)")
    return save(made, Path(path))


def _by_step(axes: Axes, runs: Sequence[RunCurves]) -> None:
    for run in runs:
        _line(axes, run.by_step, run.name)
    _label(axes, "step", "loss (nats per token, 100-step means)")


def _by_minute(axes: Axes, runs: Sequence[RunCurves]) -> None:
    for run in runs:
        _line(axes, run.by_minute, run.name)
    _label(axes, "minutes", "loss (nats per token, 100-step means)")


def _by_size(axes: Axes, runs: Sequence[RunCurves]) -> None:
    axes.set_xscale("log")
    for run in runs:
        # a bigram model has none, and a log axis has no 0
        _line(
            axes,
            Series(np.array([float(max(run.non_embedding, 1))]), np.array([run.final_loss])),
            run.name,
        )
    _label(axes, "non-embedding parameters", "final loss (nats per token, last 500 steps)")


def _by_epoch(axes: Axes, runs: Sequence[RunCurves]) -> None:
    for run in runs:
        _line(axes, run.accuracy, run.name)
    _label(axes, "epoch", "accuracy (share of held-out next tokens)")


CHARTS: dict[str, Callable[[Axes, Sequence[RunCurves]], None]] = {
    "loss-by-step": _by_step,
    "loss-by-time": _by_minute,
    "final-loss-by-parameters": _by_size,
    "accuracy-by-epoch": _by_epoch,
}


def _line(axes: Axes, series: Series, label: str, alpha: float = 1.0) -> None:
    # a point with a gap, or nothing, on both sides is invisible without a marker
    shown = np.isfinite(series.y)
    around = np.concatenate([[False], shown, [False]])
    alone = shown & ~around[:-2] & ~around[2:]
    (drawn,) = axes.plot(series.x, series.y, label=label, alpha=alpha)
    axes.plot(series.x[alone], series.y[alone], "o", color=drawn.get_color(), alpha=alpha)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend()
    axes.grid(alpha=0.2)
