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

from ending import ended
from finished import finished_run
from kept import is_kept, keep, read, texts_of
from options import TRAIN, VALID, further, require_seeds, require_stories, use_threads
from pvml.cli.flags import parse
from pvml.cli.presets import expanded
from pvml.cli.train import TrainFlags
from pvml.cli.train_command import command_line
from recipes import KEPT, WITHOUT_STORIES, Recipe, figures

RESULTS = Path(__file__).parent / "results" / "laptop.jsonl"
OWN = (
    *("preset", "data", "held_out", "run_dir", "name", "seed", "seeds", "resume", "overwrite"),
    *("log", "n_held_out"),
)
"""Flags of `pvml train` that --flags cannot hold."""


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train the laptop preset with every seed that is not in the results yet."""

    data: str = TRAIN
    """The corpus, all of it trained on."""
    held_out: str = VALID
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
    """Further flags of `pvml train`, which win over the preset's, in one word: with an equals
    sign, as --flags="--n-ctx 512 --batch-size 4"."""


def flags_of(args: Args, seed: int) -> TrainFlags:
    """What `pvml train` would be told."""
    words = ["--preset", "laptop", *further(args.flags, OWN), "--seed", str(seed)]
    flags = parse(TrainFlags, "train", expanded(words))
    name = f"laptop-seed{seed}"
    return replace(flags, data=args.data, held_out=args.held_out, run_dir=args.run_dir, name=name)


def main(args: Args) -> int:
    """Train what is missing, and print the table."""
    use_threads(args.threads)
    require_seeds(args.seeds)
    commands = []
    for seed in args.seeds:
        flags = flags_of(args, seed)
        # wherever it lay: the folder is no part of the recipe
        command = command_line(replace(flags, run_dir=Args.run_dir))
        commands.append(command)
        if is_kept(read(args.results, KEPT), command, flags):
            continue
        require_stories((args.data, args.held_out), WITHOUT_STORIES)
        row = figures(Recipe("laptop", "laptop", args.flags), seed, finished_run(flags))
        keep(args.results, {**row, "texts": texts_of(flags), "command": command})
    rows = read(args.results, KEPT)
    print(*table([rows[command] for command in commands]), sep="\n")
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
    sys.exit(ended("laptop", lambda: main(tyro.cli(Args))))
