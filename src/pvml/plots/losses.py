"""How runs went, drawn: the charts of `charts.py` for each kind of run, as PNG and SVG files.

A point with nothing on either side gets a marker, so that a run of one step is seen. A chart in
which no run has a point is left out, with a sentence.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

from pvml.errors import PvmlError
from pvml.plots.canvas import COLOURS, FORMATS, STROKES, figure, legend, line_label, save, save_as
from pvml.plots.charts import ACROSS, Chart, charts_of
from pvml.plots.curves import RunCurves, Series, column, read_curves, window_ends, window_means

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Charts of some runs that belong together."""

    ending: str
    """What their files' names end in."""
    title: str
    charts: Sequence[Chart]
    runs: Sequence[RunCurves]
    mixed: bool = False
    """Whether the runs differ in n_ctx or tokenizer, which the legend then tells."""


def plot_runs(
    run_dirs: Iterable[Path],
    out_dir: Path,
    formats: Sequence[str] = FORMATS,
    say: Callable[[str], object] = print,
    only: Collection[str] | None = None,
) -> list[Path]:
    """The charts' files: a set for each group of runs with one corpus, n_ctx and tokenizer.

    A longer window makes an easier task, and another tokenizer another unit: where a corpus has
    runs of several kinds, they also meet in bits per byte. An unfinished run ends in a cross.
    formats: png, svg or both. say: takes a sentence for each run that is left out, and each gap.
    only: the names of the charts to make, as loss-by-step; unset: all.

    Raises: PvmlError for another format; RunDirError if `out_dir` cannot be written.
    """
    runs = _readable(run_dirs, say)
    pages = [
        replace(page, charts=[c for c in page.charts if only is None or c.name in only])
        for page in _pages(runs)
    ]
    return [file for page in pages for file in _draw(page, Path(out_dir), formats, say)]


def loss_curve(rows: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """One run's loss by step, each step's faintly and the 100-step means over it; the file's path.

    Raises: PvmlError if no row has a loss, or the path ends in neither .png nor .svg; RunDirError
    if the file cannot be written.
    """
    with_loss = [row for row in rows if "loss" in row]
    if not with_loss:
        raise PvmlError("there is no loss to draw: no row has one")
    steps, losses = column(with_loss, "step"), column(with_loss, "loss")
    ends = window_ends(steps)
    made, (axes,) = figure(8.0, 5.0)
    axes.set_title("training loss")
    _line(axes, Series(steps, losses), "each step", COLOURS[0], alpha=0.3)
    _line(axes, Series(steps[ends], window_means(losses, ends)), "mean of 100 steps", COLOURS[0])
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


def _pages(runs: Iterable[RunCurves]) -> list[Page]:
    pages = []
    for corpus, of_corpus in _grouped(runs, lambda run: run.corpus):
        about = f"{corpus}, " if corpus else ""
        kinds = _grouped(of_corpus, lambda run: (run.n_ctx, run.tokenizer))
        for (n_ctx, tokenizer), alike in kinds:
            page = Page(
                ending=_file_name(corpus, f"ctx{n_ctx}", tokenizer),
                title=f"{about}n_ctx {n_ctx}, tokenizer {tokenizer}",
                charts=charts_of(alike),
                runs=alike,
            )
            pages.append(page)
        if len(kinds) > 1:
            page = Page(
                ending=_file_name(corpus, "all"),
                title=f"{about}each document alone, in windows of the run's n_ctx",
                charts=ACROSS,
                runs=of_corpus,
                mixed=True,
            )
            pages.append(page)
    return pages


def _grouped(
    runs: Iterable[RunCurves], key: Callable[[RunCurves], Key]
) -> list[tuple[Key, list[RunCurves]]]:
    groups: dict[Key, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return sorted(groups.items())


def _file_name(*words: str) -> str:
    plain = (re.sub(r"[^\w.-]+", "-", word.replace(":", "")).strip("-.") for word in words)
    return "-".join(filter(None, plain))


def _draw(
    page: Page, out_dir: Path, formats: Sequence[str], say: Callable[[str], object]
) -> list[Path]:
    written: list[Path] = []
    lacking: dict[str, list[str]] = {}
    for chart in page.charts:
        missing = [run for run in page.runs if not _has_points(chart.points(run))]
        if len(missing) == len(page.runs):
            say(f"left out: {chart.name}-{page.ending}: no run logged what it shows")
            continue
        for run in missing:
            lacking.setdefault(run.name, []).append(chart.name)
        made = _chart(chart, page)
        written += save_as(made, out_dir / f"{chart.name}-{page.ending}", formats)
    for name, charts in lacking.items():
        say(f"{name}: not in {', '.join(charts)}, for which it logged no numbers")
    return written


def _has_points(series: Series) -> bool:
    return bool((np.isfinite(series.x) & np.isfinite(series.y)).any())


def _chart(chart: Chart, page: Page) -> Figure:
    made, (axes,) = figure(8.0, 5.0)
    axes.set_title(page.title, parse_math=False)
    _set_x(axes, chart)
    for place, run in enumerate(page.runs):
        series = chart.points(run)
        if _has_points(series):
            colour = COLOURS[place % len(COLOURS)]
            stroke = STROKES[place // len(COLOURS) % len(STROKES)]
            label = _label(run, page.mixed)
            ends = run.unfinished_at is not None
            _line(axes, series, label, colour, stroke=stroke, dots=chart.dots, cross=ends)
    _finish(axes, chart.x, chart.y)
    return made


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
    ending = "" if run.unfinished_at is None else f" (unfinished, step {run.unfinished_at:,})"
    return line_label(run.name) + kind + ending


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
