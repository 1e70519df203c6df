"""What `pvml train --seeds` does: one run for each seed, and how far their grades lie apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from sys import float_info

from rich.console import Console
from rich.table import Table

from pvml.cli.material import prepare
from pvml.cli.train import TrainFlags, train_one
from pvml.cli.training_run import (
    fitted,
    require_agreement,
    require_same,
    require_same_texts,
    run_path,
)
from pvml.errors import PvmlError, RunDirError
from pvml.runs.format import RunDir
from pvml.runs.layout import SUMMARY
from pvml.runs.place import require_free
from pvml.training.interrupt import TrainingStopped
from pvml.training.processes import Processes

_GRADES = {
    "held-out loss": "final_held_out_loss",
    "bits per byte": "bits_per_byte",
    "accuracy": "final_accuracy",
}

_MOST_DIGITS = 18


def parse_seeds(text: str) -> list[int]:
    """The seeds in a text such as 0,1,2.

    Raises: PvmlError for what is no whole number of at least 0, or stands there twice.
    """
    words = [word.strip() for word in text.split(",")]
    # the length: Python refuses to read numbers of thousands of digits
    if not all(word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS for word in words):
        raise PvmlError(
            f"--seeds takes whole numbers with commas between, as 0,1,2, got {text[:80]!r}"
        )
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        raise PvmlError(f"--seeds {text} names a seed twice: each makes one run")
    return seeds


def train_seeds(flags: TrainFlags, seeds: Sequence[int], processes: Processes) -> None:
    """Train a run NAME-seedN for every seed N on the same rows, and print grades and spread.

    With --resume, finished runs are left as they are, and those that were not begun are begun.

    Raises: PvmlError, before anything is trained, if a run is in the way or had other settings.
    """
    recipes = [replace(flags.training, seed=seed) for seed in seeds]
    with processes.first_goes_ahead():
        name = run_path(flags).name
    each = [replace(flags, name=f"{name}-seed{args.seed}", training=args) for args in recipes]
    runs = [run_path(one) for one in each]
    begun = [RunDir.open(run) if flags.resume and run.exists() else None for run in runs]
    finished = [run is not None and run.finished for run in begun]
    _require_room(each, runs, begun, processes)
    _require_one_text(each, begun, processes)
    for there in begun:
        if there is not None and there.finished:
            grades(there)  # damage is told before hours of training, not after
    processes.wait()  # all have seen the folders as they are, before one of them changes
    for one, run, there, done in zip(each, runs, begun, finished, strict=True):
        if done:
            if processes.first:
                print(f"{run} is finished")
            continue
        try:
            train_one(replace(one, resume=there is not None), processes)
        except TrainingStopped as stopped:
            raise TrainingStopped(
                f"{stopped}; the same command with --resume goes on with all seeds"
            ) from None
    if processes.first:
        by_seed = {seed: grades(RunDir.open(run)) for seed, run in zip(seeds, runs, strict=True)}
        Console().print(spread_table(by_seed))


def _require_room(
    each: Sequence[TrainFlags],
    runs: Sequence[Path],
    begun: Sequence[RunDir | None],
    processes: Processes,
) -> None:
    for one, run, there in zip(each, runs, begun, strict=True):
        if there is not None:
            require_agreement(one, there)
        else:
            require_free(run, one.overwrite)
    earlier = next((run for run in begun if run is not None), None)
    if earlier is not None and None in begun:
        # a run that is begun now must be as those that were, and these flags alone make it
        with processes.first_goes_ahead():
            require_same(fitted(each[begun.index(None)]), earlier)


def _require_one_text(
    each: Sequence[TrainFlags], begun: Sequence[RunDir | None], processes: Processes
) -> None:
    """Nothing, if all seeds are trained and graded on the same documents.

    A run that goes on is compared with the corpus when it does; here, with the other runs.
    """
    there = [run for run in begun if run is not None]
    for run in there[1:]:
        for key in ("fingerprint", "held_out_fingerprint"):
            if run.data.get(key) != there[0].data.get(key):
                raise PvmlError(
                    f"{run.path} and {there[0].path} were begun on different documents, so their "
                    f"grades make no mean: give the seeds another --name"
                )
    if there and None in begun:
        with processes.first_goes_ahead():
            require_same_texts(there[0], prepare(each[begun.index(None)]))


def grades(run: RunDir) -> list[float]:
    """A finished run's last grades, in the order of the table.

    Raises: RunDirError naming the entry of its summary that is no number.
    """
    summary = run.summary()
    for name in _GRADES.values():
        value = summary.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not abs(value) <= float_info.max:  # type: ignore[arg-type]  # `good`
            raise RunDirError(
                f"{run.path / SUMMARY} is damaged: its {name} is no number. Put it back from a "
                f"copy, or move {run.path} away, and it is trained anew"
            )
    return [float(summary[name]) for name in _GRADES.values()]


def spread_table(by_seed: Mapping[int, Sequence[float]]) -> Table:
    """Grades by seed, their mean and their sample standard deviation (over n - 1).

    by_seed: as `grades` gives them. Losses are nats per token of held-out documents. One seed has
    no deviation: a dash.
    """
    table = Table(box=None, pad_edge=False)
    for title in ("seed", *_GRADES):
        table.add_column(title, justify="right")
    for seed, row in by_seed.items():
        table.add_row(str(seed), *(f"{x:.4f}" for x in row))
    columns = list(zip(*by_seed.values(), strict=True))
    spread = [f"{stdev(column):.4f}" if len(column) > 1 else "-" for column in columns]
    table.add_row("mean", *(f"{mean(column):.4f}" for column in columns))
    table.add_row("deviation", *spread)
    return table
