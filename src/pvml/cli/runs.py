"""`pvml runs [RUN_DIR]`, `pvml runs compare A B ...`, `pvml runs diff A B`: runs as things.

`pvml runs command RUN` is in `train_command.py`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pvml.cli import train_command
from pvml.cli.flags import parse
from pvml.errors import PvmlError
from pvml.runs.compare import differences, notes, per_token_compares
from pvml.runs.facts import RunFacts, is_run, read_facts
from pvml.runs.json_object import to_json
from pvml.runs.naming import RUNS, known_run

_WIDTH_OF_A_FILE = 200
"""Columns, where the table goes to no terminal."""


@dataclass(frozen=True, kw_only=True)
class RunsFlags:
    """List the runs in a folder: how far they came, and how good they are.

    `pvml runs compare A B [C ...]` puts the figures of runs side by side. `pvml runs diff A B`
    prints the settings that differ. `pvml runs command A` prints the command that makes such a run.
    """

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[RUN_DIR]")] = RUNS
    """A folder of run directories, or one run directory, or the NAME of one in runs, or a bundled
    model (attn-1l, attn-2l, stories)."""
    json: bool = False
    """Print each run as a line of JSON."""


@dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """Put the figures of runs side by side.

    Losses per token are compared only where the tokenizer is the same, bits per byte always.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")]
    """Run directories, or names of runs in --run-dir, or bundled models; two or more."""
    run_dir: Path = RUNS
    """Where names are looked up."""
    json: bool = False
    """Print each run as a line of JSON, and then the notes."""


@dataclass(frozen=True, kw_only=True)
class DiffFlags:
    """Print the settings in which two runs differ: training, model, data and versions."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, Path]], tyro.conf.arg(metavar="RUN RUN")]
    """Two run directories, or names of runs in --run-dir, or bundled models."""
    run_dir: Path = RUNS
    """Where names are looked up."""
    json: bool = False
    """Print each difference as a line of JSON."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml runs` say; the exit code."""
    first, *rest = arguments or [""]
    if first == "compare":
        return compare(parse(CompareFlags, "runs compare", rest))
    if first == "diff":
        return diff(parse(DiffFlags, "runs diff", rest))
    if first == "command":
        return train_command.main(rest)
    return list_runs(parse(RunsFlags, "runs", arguments))


def list_runs(flags: RunsFlags) -> int:
    """Print every run that a folder is or holds; the exit code."""
    folder = known_run(flags.run_dir)
    if not folder.is_dir():
        raise PvmlError(
            f"there is no folder {folder}: give the folder of your runs (`pvml train` makes runs/)"
        )
    inside = sorted(path for path in folder.iterdir() if _is_shown(path))
    runs = [folder] if is_run(folder) else [path for path in inside if is_run(path)]
    facts = [read_facts(path) for path in runs]
    if flags.json:
        _print_lines(facts)
        return 0
    if not facts:
        print(f"{folder} holds no runs: `pvml train` makes them")
        return 0
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("run", "status") else "right")
    for run in facts:
        table.add_row(*(Text(show(run)) for show in COLUMNS.values()))
    _console().print(table)
    others = [path.name for path in inside if not is_run(path) and path.name != "plots"]
    if others and not is_run(folder):
        print(f"no runs, and left out: {', '.join(others)}", file=sys.stderr)
    return 0


def compare(flags: CompareFlags) -> int:
    """Print the figures of runs side by side; the exit code."""
    if len(flags.runs) < 2:
        raise PvmlError(f"compare takes two runs or more, got {len(flags.runs)}")
    facts = [read_facts(known_run(run, flags.run_dir)) for run in flags.runs]
    hidden = set() if per_token_compares(facts) else {"loss", "accuracy"}
    if flags.json:
        left_out = ("held_out_loss", "accuracy") if hidden else ()
        _print_lines(facts, left_out)
        print(to_json({"notes": notes(facts)}))
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("run")
    for run in facts:
        table.add_column(Text(run.name), justify="right")
    for figure, show in COLUMNS.items():
        if figure != "run" and figure not in hidden:
            table.add_row(figure, *(Text(show(run)) for run in facts))
    _console().print(table)
    for note in notes(facts):
        print(note)
    return 0


def diff(flags: DiffFlags) -> int:
    """Print the settings in which two runs differ; the exit code."""
    a, b = (known_run(run, flags.run_dir) for run in flags.runs)
    found = differences(a, b)
    if flags.json:
        for name, ours, theirs in found:
            print(to_json({"setting": name, str(flags.runs[0]): ours, str(flags.runs[1]): theirs}))
        return 0
    if not found:
        print("the same settings")
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("setting", str(flags.runs[0]), str(flags.runs[1])):
        table.add_column(Text(column), overflow="fold")
    for row in found:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)
    return 0


def _short(number: int | None) -> str:
    if number is None:
        return "-"
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


COLUMNS: dict[str, Callable[[RunFacts], str]] = {
    "run": lambda run: run.name,
    "status": lambda run: run.status,
    "size": lambda run: _short(run.parameters),
    "n_ctx": lambda run: "-" if run.n_ctx is None else str(run.n_ctx),
    "tokenizer": lambda run: run.tokenizer or "-",
    "steps": lambda run: "-" if run.steps is None else f"{run.steps:,}",
    "tokens": lambda run: _short(run.tokens),
    "loss": lambda run: _number(run.held_out_loss),
    "bits/byte": lambda run: _number(run.bits_per_byte),
    "accuracy": lambda run: _number(run.accuracy),
    "minutes": lambda run: _number(run.seconds and run.seconds / 60, 1),
}
"""Each figure's heading, and how a run's is written. Losses are held-out, nats per token."""


def _is_shown(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _print_lines(runs: Sequence[RunFacts], left_out: Sequence[str] = ()) -> None:
    for run in runs:
        told: dict[str, Any] = asdict(run)
        del told["held_out"], told["learnt_from"]
        print(to_json({key: told[key] for key in told if key not in left_out}))


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_OF_A_FILE)
