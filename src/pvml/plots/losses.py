"""How runs went, drawn: the charts of `charts.py` for each kind of run, as PNG and SVG files.

A point with nothing on either side gets a marker, so that a run of one step is seen. A chart in
which no run has a point is left out, with a sentence.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

from pvml.errors import PvmlError
from pvml.plots.canvas import COLOURS, FORMATS, STROKES, figure, legend, line_label, save, save_as
from pvml.plots.charts import Chart
from pvml.plots.curves import (
    RunCurves,
    Series,
    column,
    is_thinned,
    lacking,
    read_curves,
    smoothed,
)
from pvml.plots.pages import Page, pages_of

_PAST_THE_GUESS = 1.5
"""So far, in losses of a blind guess, an axis reaches up at most: beyond it nothing was learnt."""
_MOST_NAMED = 3
_HELD_OUT = (0, (4, 2))
"""The line style of held-out losses."""


def plot_runs(
    run_dirs: Iterable[Path],
    out_dir: Path,
    formats: Sequence[str] = FORMATS,
    say: Callable[[str], object] = print,
    only: Collection[str] | None = None,
) -> list[Path]:
    """The charts' files: a set for each group of runs with one corpus, n_ctx and tokenizer.

    A longer window makes an easier task, and another tokenizer another unit: where a corpus has
    runs of several kinds, they also meet in bits per byte. An unfinished run ends in a cross. A
    loss far above a blind guess's is left beyond the axis, where others are below, and told.
    formats: png, svg or both. say: takes a sentence for each run that is left out, and each gap.
    only: the names of the charts to make, as loss-by-step; unset: all.

    Raises: PvmlError for another format; RunDirError if `out_dir` cannot be written.
    """
    runs = _readable(run_dirs, say)
    pages = [
        replace(page, charts=[c for c in page.charts if only is None or c.name in only])
        for page in pages_of(runs)
    ]
    return [file for page in pages for file in _draw(page, Path(out_dir), formats, say)]


def loss_curve(
    rows: Iterable[Mapping[str, Any]], path: Path, *, guess: float | None = None
) -> Path:
    """One run's loss by step: each step's faintly, their means over it, the held-out loss; a file.

    Of a log that holds nothing but means, these; steps that it lacks are counted in the legend.

    guess: the loss of a blind guess, ln(d_vocab) nats; where it is given, the axis ends half as
    far again above it, unless all lies there.

    Raises: PvmlError if no row has a loss, or the path ends in neither .png nor .svg; RunDirError
    if the file cannot be written.
    """
    rows = list(rows)
    with_loss = [row for row in rows if "loss" in row]
    if not with_loss:
        raise PvmlError("there is no loss to draw: no row has one")
    steps, losses = column(with_loss, "step"), column(with_loss, "loss")
    graded = [row for row in rows if "held_out_loss" in row]
    held_out = Series(column(graded, "step"), column(graded, "held_out_loss"))
    means, window = smoothed(steps, losses)
    made, (axes,) = figure(8.0, 5.0)
    axes.set_title("loss over training")
    colour = COLOURS[0]
    if not is_thinned(steps):
        each = _marked("training, each step", lacking(steps))
        _line(axes, Series(steps, losses), each, colour, alpha=1.0 if window == 1 else 0.3)
    if window > 1:
        _line(axes, means, f"training, mean of {window} steps", colour)
    if _has_points(held_out):
        _line(axes, held_out, "held out", COLOURS[1], stroke=_HELD_OUT, dots=True)
    if guess is not None:
        _cut(axes, {"the loss": [Series(steps, losses), held_out]}, guess)
    _finish(axes, "step", "loss (nats per token)")
    return save(made, Path(path))


def _readable(run_dirs: Iterable[Path], say: Callable[[str], object]) -> list[RunCurves]:
    runs: dict[Path, RunCurves] = {}
    for path in dict.fromkeys(Path(path).resolve() for path in run_dirs):
        try:
            runs[path] = read_curves(path)
        except PvmlError as problem:
            say(f"left out: {problem}")
            continue
        for note in runs[path].notes:
            say(note)
    names = Counter(run.name for run in runs.values())
    return [
        run if names[run.name] == 1 else replace(run, name=f"{path.parent.name}/{run.name}")
        for path, run in runs.items()
    ]


def _draw(
    page: Page, out_dir: Path, formats: Sequence[str], say: Callable[[str], object]
) -> list[Path]:
    written: list[Path] = []
    lacking: dict[str, list[str]] = {}
    cut: dict[str, list[str]] = {}
    for chart in page.charts:
        missing = [run for run in page.runs if not _has_points(chart.points(run))]
        if len(missing) == len(page.runs):
            say(f"left out: {chart.name}-{page.ending}: no run logged what it shows")
            continue
        for run in missing:
            lacking.setdefault(run.name, []).append(chart.name)
        made, beyond = _chart(chart, page)
        if beyond:
            cut.setdefault(beyond, []).append(chart.name)
        written += save_as(made, out_dir / f"{chart.name}-{page.ending}", formats)
    for beyond, charts in cut.items():
        say(f"{', '.join(charts)}: {beyond}")
    for name, charts in lacking.items():
        say(f"{name}: not in {', '.join(charts)}, for which it logged no numbers")
    return written


def _has_points(series: Series) -> bool:
    return bool((np.isfinite(series.x) & np.isfinite(series.y)).any())


def _chart(chart: Chart, page: Page) -> tuple[Figure, str]:
    """The chart, and a sentence on what lies beyond its axis."""
    made, (axes,) = figure(8.0, 5.0)
    axes.set_title(page.title, parse_math=False)
    _set_x(axes, chart)
    drawn: dict[str, list[Series]] = {}
    for place, run in enumerate(page.runs):
        series = chart.points(run)
        if not _has_points(series):
            continue
        colour = COLOURS[place % len(COLOURS)]
        stroke = STROKES[place // len(COLOURS) % len(STROKES)]
        ends = run.unfinished_at is not None
        label = _label(run, page.mixed)
        _line(axes, series, label, colour, stroke=stroke, dots=chart.dots, cross=ends)
        drawn[run.name] = [series]
        held_out = Series(np.array([]), np.array([]))
        if chart.held_out is not None:
            held_out = chart.held_out(run)
        if _has_points(held_out):
            _line(axes, held_out, "_held out", colour, stroke=_HELD_OUT, dots=True)
            drawn[run.name].append(held_out)
    if any(len(lines) > 1 for lines in drawn.values()):
        axes.plot([], [], color="grey", linestyle=_HELD_OUT, marker="o", label="held out")
    beyond = ""
    if chart.guess is not None:
        guesses = [guess for guess in map(chart.guess, page.runs) if np.isfinite(guess)]
        beyond = _cut(axes, drawn, max(guesses, default=np.inf))
    _finish(axes, chart.x, chart.y)
    return made, beyond


def _cut(axes: Axes, drawn: Mapping[str, Sequence[Series]], guess: float) -> str:
    """End the y axis a little above a blind guess's loss, if some points lie there and others far.

    The sentence on what is beyond is part of the title, and is empty if there is nothing.
    """
    most = _PAST_THE_GUESS * guess
    points = {name: np.concatenate([line.y for line in lines]) for name, lines in drawn.items()}
    every = np.concatenate(list(points.values()))
    shown = every[every <= most]
    highest = {name: y[y > most].max() for name, y in points.items() if (y > most).any()}
    if not highest or not len(shown):
        return ""
    room = 0.05 * (max(shown.max(), guess) - shown.min())
    axes.set_ylim(shown.min() - room, max(shown.max(), guess) + room)
    named = sorted(highest, key=lambda name: -highest[name])[:_MOST_NAMED]
    told = ", ".join(f"{line_label(name)} (up to {_told(highest[name])})" for name in named)
    others = f" and {len(highest) - len(named)} more" if len(highest) > len(named) else ""
    beyond = f"beyond the axis: {told}{others}"
    axes.set_title(f"{axes.get_title()}\n{beyond}", parse_math=False)
    return beyond


def _told(loss: float) -> str:
    return f"{loss:,.1f}" if loss < 1e6 else f"{loss:.3g}"


def _set_x(axes: Axes, chart: Chart) -> None:
    if chart.log_x is not None:
        axes.set_xscale("log", base=chart.log_x)
    if chart.log_x == 2:
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    elif chart.whole_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif chart.log_x is None:
        axes.xaxis.set_major_formatter(_short)


def _short(x: float, _place: object) -> str:
    """A number as a tick: 0.03, 500, 20k, 655M."""
    return f"{x:g}" if abs(x) < 1000 else EngFormatter(sep="")(x)


def _label(run: RunCurves, mixed: bool) -> str:
    kind = f", n_ctx {run.n_ctx}, {run.tokenizer}" if mixed else ""
    ending = "" if run.unfinished_at is None else f"unfinished, step {run.unfinished_at:,}"
    return _marked(line_label(run.name) + kind, ending, run.lacking)


def _marked(label: str, *marks: str) -> str:
    told = "; ".join(mark for mark in marks if mark)
    return f"{label} ({told})" if told else label


def _line(
    axes: Axes,
    series: Series,
    label: str,
    colour: str,
    *,
    stroke: Any = "-",
    alpha: float = 1.0,
    dots: bool = False,
    cross: bool = False,
) -> None:
    shown = np.isfinite(series.x) & np.isfinite(series.y)
    # a point with a gap, or nothing, on both sides is invisible without a marker
    around = np.concatenate([[False], shown, [False]])
    marked = np.flatnonzero(shown & (dots | (~around[:-2] & ~around[2:]))).tolist()
    (line,) = axes.plot(
        series.x, series.y, color=colour, linestyle=stroke, alpha=alpha, label=label
    )
    if cross:
        # on the labelled line, so that the legend shows it
        *_, last = np.flatnonzero(shown).tolist()
        line.set(marker="x", markersize=9, markeredgewidth=2, markevery=[last])
        marked = [place for place in marked if place != last]
        axes.plot(series.x[marked], series.y[marked], "o", color=colour, markersize=4)
    elif marked:
        line.set(marker="o", markersize=4, markevery=marked)


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    legend(axes)
    axes.grid(alpha=0.2)
