"""`pvml plot [RUN_DIR ...]`: how runs went, as PNG and SVG files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pvml.bundled import is_bundled
from pvml.cli.flags import parse
from pvml.errors import PvmlError, RunDirError
from pvml.runs.naming import RUNS, known_run

_PLOTS = "plots"


@dataclass(frozen=True, kw_only=True)
class PlotFlags:
    """Draw runs: loss by step, time, tokens and FLOPs, by size and position; accuracy by epoch.

    Runs that differ in corpus, n_ctx or tokenizer get charts of their own, since their losses do
    not compare. Those that share a corpus also meet in bits per byte. Unfinished runs are marked.
    """

    run_dirs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN_DIR...]")
    ] = (RUNS,)
    """Run directories, or folders of them, or NAMEs of runs in runs, or bundled models (attn-1l,
    attn-2l, stories)."""
    out: Path | None = None
    """Where the files go. Unset: a folder `plots` in RUN_DIR, or beside the first of several; for
    a bundled model `plots` here."""
    format: str = "png,svg"
    """Which files to make: png, svg, or both with a comma between."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml plot` say; the exit code."""
    flags = parse(PlotFlags, "plot", arguments)
    formats = [word.strip() for word in flags.format.split(",")]
    if not set(formats) <= {"png", "svg"}:
        raise PvmlError(f"--format must be png, svg or png,svg, got {flags.format!r}")
    given = [known_run(word) for word in flags.run_dirs or PlotFlags().run_dirs]
    out = flags.out or _beside(given)
    for path in draw(given, out, list(dict.fromkeys(formats))):
        print(path)
    return 0


def _beside(given: Sequence[Path]) -> Path:
    """A folder for the plots of these runs: none in the package, where bundled models lie."""
    if is_bundled(given[0]):
        return Path(_PLOTS)
    return (given[0] if len(given) == 1 else given[0].parent) / _PLOTS


def draw(given: Sequence[Path], out: Path, formats: Sequence[str]) -> list[Path]:
    """The files drawn for the runs that these folders are or hold; one run also gets every step.

    Raises: PvmlError if there is nothing to draw; RunDirError if `out` cannot be written.
    """
    from pvml.plots.losses import loss_curve, plot_runs
    from pvml.runs.format import RunDir

    runs = [run for folder in given for run in _runs(folder, out)]
    written = plot_runs(runs, out, formats)
    if not written:
        raise PvmlError(
            f"{', '.join(map(str, given))}: nothing here can be drawn. Give a run directory, such "
            f"as runs/NAME, or a folder of them"
        )
    if len(runs) == 1:
        run = RunDir.open(runs[0])
        rows, guess = list(run.rows()), math.log(run.cfg.d_vocab)
        written += [loss_curve(rows, out / f"loss.{kind}", guess=guess) for kind in formats]
    return written


def _runs(folder: Path, out: Path) -> list[Path]:
    """The folder, if it is a run or holds none; else the folders in it."""
    if _is_run(folder) or not folder.is_dir():
        return [folder]
    inside = sorted(p for p in folder.iterdir() if p.is_dir() and p.name != _PLOTS and p != out)
    # a hidden one is being made or removed
    inside = [run for run in inside if not run.name.startswith(".")]
    return inside if any(map(_is_run, inside)) else [folder]


def _is_run(folder: Path) -> bool:
    from pvml.runs.format import RunDir

    try:
        RunDir.open(folder)
    except RunDirError:
        return False
    return True
