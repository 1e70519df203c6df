"""Does bfloat16 arithmetic cost quality? Held-out loss against float32, seed by seed.

For each seed one run of `pvml train` in each precision: the same first weights, split, tokenizer
and batches. And a third as the null: float32 again, each batch in two pieces, which is the same
arithmetic rounded otherwise; training makes of such a trace another run. Prints a table, then one
line of JSON; exit code 1 where bfloat16 costs 0.01 nats or more in the mean of the seeds. Runs that
are finished are not repeated, and one that was stopped goes on, so that the same command may be
given again and again.

    python experiments/precision.py --data storybook --steps 500
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import tyro

from ending import ended
from finished import finished_run
from options import require_seeds, use_threads
from pvml.cli.train import ModelFlags, TrainFlags
from pvml.errors import PvmlError
from pvml.runs.format import RunDir
from pvml.training.args import Precision, TrainingArgs

LIMIT = 0.01
PRECISIONS: Mapping[str, tuple[Precision, int | None]] = {
    "float32": ("float32", None),
    "again": ("float32", 2),
    "bfloat16": ("bfloat16", None),
}
"""What each run of a seed is called, its precision, and in how many pieces it takes a batch."""


@dataclass(frozen=True, kw_only=True)
class Args:
    """What is trained, on what, how often."""

    data: str = "storybook"
    """The corpus: storybook, storybook:N, tinystories, or a file or folder."""
    limit: int | None = None
    """Read at most so many documents; all unless given."""
    tokenizer: str = "bpe:4096"
    """The vocabulary: gpt2, or bpe:N trained on the training documents."""
    n_held_out: int = 1000
    """Documents to grade on, the same for all seeds."""
    steps: int = 500
    """Steps of each run; the corpus must have so many batches."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each chooses first weights and the order of the rows."""
    d_model: int = 128
    """Width of the residual stream (numbers per position)."""
    n_layers: int = 6
    """Transformer blocks."""
    n_heads: int = 4
    """Attention heads in each layer."""
    n_ctx: int = 128
    """Length of a row (tokens)."""
    batch_size: int = 32
    """Rows in one step."""
    warmup_steps: int = 0
    """First steps, in which lr rises. Without, a seed may be thrown off its way (LOG.md)."""
    run_dir: Path = Path("runs/precision")
    """Where the runs are kept."""
    threads: int = 1
    """Threads to compute with."""


def main(args: Args) -> int:
    """Train what is missing, print the table and the JSON line; 1 if bfloat16 costs too much."""
    use_threads(args.threads)
    require_seeds(args.seeds)
    wanted = [(seed, name) for seed in args.seeds for name in PRECISIONS]
    runs = {run: finished_run(flags_of(args, *run)) for run in wanted}
    require_same_material(list(runs.values()))
    rows = [compared(seed, {name: runs[seed, name] for name in PRECISIONS}) for seed in args.seeds]
    ok = abs(mean(row["difference"] for row in rows)) < LIMIT
    print(*table(args, rows), sep="\n")
    print(f"Within {LIMIT} nats in the mean of {len(rows)} seeds: {'yes' if ok else 'NO'}")
    settings = {**asdict(args), "run_dir": str(args.run_dir)}
    print(
        json.dumps(
            {"experiment": "precision", "allowed": LIMIT, "ok": ok, **settings, "runs": rows}
        )
    )
    return 0 if ok else 1


def flags_of(args: Args, seed: int, name: str) -> TrainFlags:
    """What `pvml train` would be told."""
    precision, pieces = PRECISIONS[name]
    return TrainFlags(
        data=args.data,
        limit=args.limit,
        tokenizer=args.tokenizer,
        run_dir=args.run_dir,
        name=f"{name}-seed{seed}",
        model=ModelFlags(
            d_model=args.d_model, n_layers=args.n_layers, n_heads=args.n_heads, n_ctx=args.n_ctx
        ),
        training=TrainingArgs(
            batch_size=args.batch_size,
            epochs=1,
            max_steps_per_epoch=args.steps,
            warmup_steps=args.warmup_steps,
            checkpoint_every=min(50, args.steps),
            precision=precision,
            accumulate=pieces,
            seed=seed,
            n_held_out=args.n_held_out,
            sample_prompt=None,
        ),
    )


def require_same_material(runs: Sequence[RunDir]) -> None:
    """Nothing, if all runs read the same documents, cut the same way.

    Raises: PvmlError naming two that did not.
    """
    first = runs[0]
    for run in runs:
        if run.data != first.data:
            raise PvmlError(
                f"{run.path} and {first.path} were trained on different text, so their losses "
                f"cannot be compared: give another --run-dir"
            )


def compared(seed: int, runs: Mapping[str, RunDir]) -> dict[str, Any]:
    """One seed's held-out losses (nats per token), what rounding and bfloat16 change, seconds."""
    told = {name: run.summary() for name, run in runs.items()}
    losses = {name: summary["final_held_out_loss"] for name, summary in told.items()}
    return {
        "seed": seed,
        **losses,
        "rounding": losses["again"] - losses["float32"],
        "difference": losses["bfloat16"] - losses["float32"],
        "seconds": {name: summary["seconds"] for name, summary in told.items()},
    }


def table(args: Args, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines for people."""
    lines = [
        f"Held-out loss after {args.steps:,} steps, nats per token: {args.data}, {args.tokenizer}, "
        f"d{args.d_model}, {args.n_layers} layers, {args.n_heads} heads, n_ctx {args.n_ctx}, "
        f"batch {args.batch_size}",
        "",
        f"{'seed':>4}{'float32':>10}{'bfloat16':>10}{'costs':>10}{'float32 rounded otherwise':>28}",
    ]
    columns = ("float32", "bfloat16", "difference", "rounding")
    told = {str(row["seed"]): [row[name] for name in columns] for row in rows}
    told["mean"] = [mean(row[name] for row in rows) for name in columns]
    lines += [
        f"{name:>4}{{:10.4f}}{{:10.4f}}{{:+10.4f}}{{:+28.4f}}".format(*figures)
        for name, figures in told.items()
    ]
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(ended("precision", lambda: main(tyro.cli(Args))))
