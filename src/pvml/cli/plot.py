"""`pvml plot [RUN_DIR]`: how runs went, as PNG files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pvml.cli.flags import parse
from pvml.errors import PvmlError, RunDirError


@dataclass(frozen=True, kw_only=True)
class PlotFlags:
    """Draw runs: loss by step and by wall clock, final loss by size, accuracy by epoch.

    Runs that differ in n_ctx or tokenizer are never drawn together: their losses do not compare.
    """

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[RUN_DIR]")] = Path(
        "runs"
    )
    """A run directory, or a folder of run directories."""
    out: Path | None = None
    """Where to put the files. Unset: a folder `plots` in RUN_DIR."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml plot` say; the exit code."""
    flags = parse(PlotFlags, "plot", arguments)
    out = flags.out or flags.run_dir / "plots"
    for path in draw(flags.run_dir, out):
        print(path)
    return 0


def draw(folder: Path, out: Path) -> list[Path]:
    """The files drawn for the runs that a folder is or holds; one run also gets its own losses.

    Raises: PvmlError if there is nothing to draw; RunDirError if `out` cannot be written.
    """
    from pvml.plots.losses import loss_curve, plot_runs
    from pvml.runs.format import RunDir

    try:
        run = RunDir.open(folder)
    except RunDirError as problem:
        inside = folder.iterdir() if folder.is_dir() else ()
        written = plot_runs(sorted(p for p in inside if p.is_dir() and p != out), out)
        if not written:
            raise PvmlError(f"{problem}; and it holds no finished run either") from problem
        return written
    return [*plot_runs([folder], out), loss_curve(run.rows(), out / "loss.png")]
