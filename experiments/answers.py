"""The experiments' page, from what finished runs came to.

    python experiments/answers.py --collect runs/experiments
    python experiments/answers.py

The first keeps the figures of every finished run in `experiments/results/`; the second writes
`docs/13-experiments.md` and its charts from what is kept there, or from the folders it is given.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from answers_page import page
from definitions import ORIGINAL, TWIN
from judging import Runs
from outcomes import Outcome, collect, find_runs, read_outcome
from pvml.atomic import write_whole
from pvml.errors import PvmlError
from pvml.plots.losses import plot_runs
from pvml.runs.format import RunDir

ROOT = Path(__file__).resolve().parent.parent
CHARTS = ("loss-by-step", "loss-by-time", "final-loss-by-parameters", "accuracy-by-epoch")


@dataclass(frozen=True, kw_only=True)
class Args:
    """Keep what finished runs came to, or write the page about it."""

    folders: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[FOLDER...]")
    ] = ()
    """Runs, or folders of runs, to write the page from. Unset: what is kept in --results."""
    collect: Path | None = None
    """Keep the figures of the finished runs in this folder, and write no page."""
    results: Path = ROOT / "experiments" / "results"
    """Where figures are kept."""
    stories: int = 10
    """With --collect: stories that each run writes from each of two prompts, to be counted."""
    page: Path = ROOT / "docs" / "13-experiments.md"
    """The page to write; the charts go into images/experiments beside it."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say. 0: done; 1: a run could not be read; 2: bad use."""
    args = tyro.cli(Args, args=list(arguments), description=__doc__)
    try:
        if args.collect is not None:
            return keep(args.collect, args.results, args.stories)
        runs = by_experiment(args.folders or (args.results,))
        images = draw(runs, args.page.parent / "images" / "experiments")
        write_whole(args.page, page(runs, images))
        print(args.page)
        return 0
    except PvmlError as problem:
        print(f"answers: {problem}", file=sys.stderr)
        return 2


def keep(folder: Path, results: Path, n_stories: int) -> int:
    """Collect every finished run in a folder; 1 if one could not be."""
    failed = 0
    for path in find_runs([folder]):
        try:
            if not RunDir.open(path).finished:
                print(f"left out: {path} is not finished")
                continue
            print(collect(path, results, n_stories), flush=True)
        except PvmlError as problem:
            print(f"left out: {problem}", file=sys.stderr)
            failed = 1
    return failed


def by_experiment(folders: Sequence[Path]) -> dict[str, Runs]:
    """The finished runs in folders: by kind, by experiment, by seed.

    Raises: PvmlError for a folder that is not there, or a damaged run.
    """
    runs: dict[str, dict[str, dict[int, Outcome]]] = {TWIN: {}, ORIGINAL: {}}
    for path in find_runs(folders):
        if RunDir.open(path).finished:
            run = read_outcome(path)
            runs[run.kind].setdefault(run.experiment, {})[run.seed] = run
    return {kind: found for kind, found in runs.items()}


def draw(runs: dict[str, Runs], folder: Path) -> list[Path]:
    """The four charts of each kind and window, one run of each experiment; their files.

    Charts that are there and are no longer made are removed.
    """
    paths = [by_seed[min(by_seed)].path for each in runs.values() for by_seed in each.values()]
    # that a thinned log lacks steps need not be told
    made = plot_runs(paths, folder, ["png"], say=lambda note: None, only=CHARTS) if paths else []
    for old in set(folder.glob("*.png")) - set(made):
        old.unlink()
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
