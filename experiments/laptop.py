"""How good is a model after 17 minutes on two cores? `pvml train --preset laptop`, three seeds.

    python experiments/laptop.py

Bits per byte of the held-out stories, beside the seconds and tokens that they took. What is
finished is kept in `results/laptop.jsonl` and not trained again.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from precision import finished_run
from pvml.cli.flags import parse
from pvml.cli.presets import expanded
from pvml.cli.train import TrainFlags
from pvml.cli.train_command import command_line
from pvml.errors import PvmlError
from recipes import STORIES, Recipe, figures, keep, read, use_threads

RESULTS = Path(__file__).parent / "results" / "laptop.jsonl"


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train the laptop preset with every seed that is not in the results yet."""

    data: str = str(STORIES / "train.jsonl.xz")
    """The corpus, all of it trained on."""
    held_out: str = str(STORIES / "valid.jsonl.xz")
    """What is graded."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each is a run."""
    run_dir: Path = Path("runs/laptop")
    """Where the runs are kept."""
    results: Path = RESULTS
    """Where their figures are kept, a line each."""
    threads: int | None = None
    """Threads to compute with. Unset: torch's own number."""
    flags: str = ""
    """Further flags of `pvml train`, which win over the preset's."""


def flags_of(args: Args, seed: int) -> TrainFlags:
    """What `pvml train` would be told."""
    words = ["--preset", "laptop", *args.flags.split(), "--seed", str(seed)]
    flags = parse(TrainFlags, "train", expanded(words))
    name = f"laptop-seed{seed}"
    return replace(flags, data=args.data, held_out=args.held_out, run_dir=args.run_dir, name=name)


def main(args: Args) -> int:
    """Train what is missing, and print the table."""
    use_threads(args.threads)
    commands = []
    for seed in args.seeds:
        flags = flags_of(args, seed)
        # wherever it lay: the folder is no part of the recipe
        command = command_line(replace(flags, run_dir=Args.run_dir))
        commands.append(command)
        if command in {row["command"] for row in read(args.results)}:
            continue
        row = figures(Recipe("laptop", "laptop", args.flags), seed, finished_run(flags))
        keep(args.results, {**row, "command": command})
    print(*table([row for row in read(args.results) if row["command"] in commands]), sep="\n")
    return 0


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines for people, and their mean."""
    mean = sum(row["bits_per_byte"] for row in rows) / len(rows)
    return [
        f"{'seed':>4}{'bits/byte':>11}{'nats/token':>12}{'seconds':>9}{'tokens':>12}",
        *(
            f"{row['seed']:>4}{row['bits_per_byte']:11.4f}{row['held_out_loss']:12.3f}"
            f"{row['seconds']:9,.0f}{row['tokens']:12,}"
            for row in rows
        ),
        f"mean{mean:11.4f}",
    ]


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args)))
    except PvmlError as problem:
        sys.exit(f"error: {problem}")
    except KeyboardInterrupt as stop:
        sys.exit(f"{stop or 'stopped'}. So does this command, if it is given again")
