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
from definitions import ORIGINAL, TWIN, Experiment, load_experiments
from ending import ended
from judging import Runs
from outcomes import Outcome, collect, find_runs, read_outcome
from pvml.atomic import write_whole
from pvml.errors import PvmlError, RunDirError
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
    return ended("answers", lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    args = tyro.cli(Args, args=list(arguments), description=__doc__)
    if args.collect is not None:
        return keep(args.collect, args.results, args.stories)
    runs = by_experiment(args.folders or (args.results,))
    images = draw(runs, args.page.parent / "images" / "experiments")
    write_whole(args.page, page(runs, images))
    print(args.page)
    return 0


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
    """The finished runs in folders: by kind, by experiment, by seed. What is left out is told.

    Raises: PvmlError for a folder that is not there, a damaged run, one that has another's name, or
    two of one name.
    """
    experiments = load_experiments()
    runs: dict[str, dict[str, dict[int, Outcome]]] = {TWIN: {}, ORIGINAL: {}}
    for path in find_runs(folders):
        run = RunDir.open(path)
        if not run.finished:
            print(f"left out: {path} is not finished", file=sys.stderr)
            continue
        one = read_outcome(path)
        if one.experiment not in experiments:
            print(
                f"left out: {path}: there is no experiment {one.experiment}, but "
                f"{', '.join(experiments)}",
                file=sys.stderr,
            )
            continue
        require_shape(run, experiments[one.experiment])
        by_seed = runs[one.kind].setdefault(one.experiment, {})
        if one.seed in by_seed:
            raise PvmlError(
                f"{by_seed[one.seed].path} and {path} are both seed {one.seed} of "
                f"{one.experiment}: give one of them, once"
            )
        by_seed[one.seed] = one
    return {kind: found for kind, found in runs.items()}


def require_shape(run: RunDir, experiment: Experiment) -> None:
    """Nothing, if the run's model is of the shape of this experiment's.

    Raises: RunDirError naming what differs.
    """
    ours = run.cfg.to_dict()
    theirs = experiment.model.with_vocabulary(run.cfg.d_vocab).to_dict()
    differing = [
        f"{name} {ours[name]} (not {theirs[name]})" for name in ours if ours[name] != theirs[name]
    ]
    if differing:
        raise RunDirError(
            f"{run.path} has the name of {experiment.name}, and another model: "
            f"{', '.join(differing)}. Give it back its own name"
        )


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
