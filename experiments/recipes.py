"""Which recipe makes the most of a laptop? Each differs from one in one axis.

    python experiments/recipes.py --threads 1
    python experiments/recipes.py --only base vocabulary-2048 --seeds 0 1 2

`--preset laptop` is what came of it: the base, and what was better.

Every recipe reads the same number of tokens and is graded on the same stories, in bits per byte.
What is finished is kept in `results/recipes.jsonl` and not trained again.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from checking import COUNT, NUMBER, POSITIVE, TEXT, WHOLE, require
from ending import ended
from finished import finished_run
from kept import is_kept, keep, read, texts_of
from options import TRAIN, VALID, require_seeds, require_stories, use_threads
from pvml.cli.flags import parse
from pvml.cli.train import TrainFlags
from pvml.cli.train_command import command_line
from pvml.errors import PvmlError
from pvml.runs.format import RunDir

RESULTS = Path(__file__).parent / "results" / "recipes.jsonl"

BASE = """
    --tokenizer bpe:4096 --d-model 192 --n-layers 3 --n-heads 3 --n-ctx 256 --packing document
    --position-waves 0.05 --optimizer muon --lr 0.005 --schedule linear --batch-size 8
    --precision bfloat16
"""
"""What every recipe changes."""
EPOCHS = 4
"""In a run: one ends with the corpus, however many steps it may have."""
WARMUP = 0.012
"""Share of the steps in which the learning rate rises."""
RECIPES: Mapping[str, Mapping[str, str]] = {
    "base": {"": ""},
    "vocabulary": {
        "2048": "--tokenizer bpe:2048",
        "4096": "--tokenizer bpe:4096",
        "8192": "--tokenizer bpe:8192",
    },
    "shape": {
        "d128-l6": "--d-model 128 --n-layers 6 --n-heads 4",
        "d192-l2": "--n-layers 2",
        "d192-l4": "--n-layers 4",
        "d256-l3": "--d-model 256 --n-heads 4",
        "d384-l2": "--d-model 384 --n-layers 2 --n-heads 6",
    },
    "batch": {"1024": "--batch-size 4", "4096": "--batch-size 16"},
    "optimizer": {"adamw": "--optimizer adamw --lr 0.003"},
    "rate": {"half": "--lr 0.0025", "double": "--lr 0.01"},
    "schedule": {"cosine": "--schedule cosine", "wsd": "--schedule wsd --decay-share 0.6"},
    "initialisation": {
        "noise": "--position-waves None",
        "wide": "--init-range 0.06",
        "tied": "--tie-embeddings",
    },
    "context": {"128": "--n-ctx 128 --batch-size 16", "512": "--n-ctx 512 --batch-size 4"},
    "weight-decay": {"0.1": "--weight-decay 0.1"},
    "heads": {"6": "--n-heads 6"},
    "packing": {"stream": "--packing stream"},
    "arithmetic": {"float32": "--precision float32"},
    "seeds": {
        "": "--d-model 128 --n-layers 6 --n-heads 4 --n-ctx 128 --packing stream "
        "--position-waves None --optimizer adamw --lr 0.001 --schedule constant --batch-size 32 "
        "--precision float32",
    },
}
"""By axis: the flags that a recipe adds to the base's."""
KEPT = {
    "recipe": TEXT,
    "change": TEXT,
    "seed": WHOLE,
    "tokens": COUNT,
    "seconds": POSITIVE,
    "bits_per_byte": POSITIVE,
    "held_out_loss": POSITIVE,
}
"""What a row of the results has beside its command, and is told."""
WITHOUT_STORIES = (
    "Give --data FILE and --held-out FILE, any text or .jsonl of stories; or tinystories and "
    "tinystories:validation, from the hub"
)


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train every recipe that is not in the results yet, and print them beside one another."""

    data: str = TRAIN
    """The corpus, all of it trained on."""
    held_out: str = VALID
    """What is graded."""
    tokens: int = 1_600_000
    """Read by each recipe; a step more or less is not told apart."""
    only: tuple[str, ...] = ()
    """Recipes, as shape-d128-l6, in this order. Unset: all."""
    seeds: tuple[int, ...] = (0,)
    """Each is a run."""
    run_dir: Path = Path("runs/recipes")
    """Where the runs are kept."""
    results: Path = RESULTS
    """Where their figures are kept, a line each."""
    threads: int | None = None
    """Threads to compute with. Unset: torch's own number."""
    list: bool = False
    """Only print what is there."""


@dataclass(frozen=True)
class Recipe:
    """One way to train."""

    name: str
    axis: str
    change: str
    """Flags beside the base's."""


def recipes(only: Sequence[str] = ()) -> list[Recipe]:
    """All, or the named ones in their order.

    Raises: PvmlError for a name that is none.
    """
    found = {}
    for axis, changes in RECIPES.items():
        for word, change in changes.items():
            name = f"{axis}-{word}" if word else axis
            found[name] = Recipe(name, axis, change)
    unknown = sorted(set(only) - set(found))
    if unknown:
        raise PvmlError(f"no recipe is called {', '.join(unknown)}: there are {', '.join(found)}")
    return [found[name] for name in dict.fromkeys(only or found)]


def flags_of(recipe: Recipe, args: Args, seed: int) -> TrainFlags:
    """What `pvml train` would be told."""
    words = [*BASE.split(), *recipe.change.split(), "--seed", str(seed)]
    flags = parse(TrainFlags, "train", words)
    training, per_step = flags.training, flags.training.batch_size * flags.model.n_ctx
    rises = 0.0 if training.schedule == "constant" else WARMUP
    in_epoch = max(1, round(args.tokens / per_step / EPOCHS))
    return replace(
        flags,
        data=args.data,
        held_out=args.held_out,
        run_dir=args.run_dir,
        name=f"{recipe.name}-{args.tokens}-seed{seed}",
        training=replace(
            training,
            epochs=EPOCHS,
            max_steps_per_epoch=in_epoch,
            warmup_steps=round(rises * EPOCHS * in_epoch),
            sample_prompt=None,
        ),
    )


def figures(recipe: Recipe, seed: int, run: RunDir) -> dict[str, Any]:
    """What is kept of a run: its recipe, its grades, and its losses in 20 stretches."""
    summary, losses = run.summary(), []
    for row in run.rows("loss"):
        require(row, {"loss": NUMBER}, f"{run.path}: a row of its log")
        losses.append(row["loss"])
    stretch = max(1, len(losses) // 20)
    return {
        "recipe": recipe.name,
        "axis": recipe.axis,
        "change": recipe.change,
        "seed": seed,
        "tokens": summary["tokens"],
        "steps": summary["steps"],
        "seconds": round(summary["seconds"], 3),
        "parameters": summary["parameters"]["total"],
        "bits_per_byte": round(summary["bits_per_byte"], 5),
        "held_out_loss": round(summary["final_held_out_loss"], 5),
        "losses": [
            round(sum(part) / len(part), 3)
            for part in (losses[i : i + stretch] for i in range(0, len(losses), stretch))
        ],
    }


def main(args: Args) -> int:
    """Train what is missing, and print the table."""
    use_threads(args.threads)
    require_seeds(args.seeds)
    if args.tokens < 1:
        raise PvmlError(f"--tokens must be at least 1, got {args.tokens}")
    commands = []
    for seed in args.seeds:
        for recipe in recipes(args.only):
            flags = flags_of(recipe, args, seed)
            command = command_line(flags)
            commands.append(command)
            if args.list or is_kept(read(args.results, KEPT), command, flags):
                continue
            require_stories((args.data, args.held_out), WITHOUT_STORIES)
            row = figures(recipe, seed, finished_run(flags))
            keep(args.results, {**row, "texts": texts_of(flags), "command": command})
    # by the whole command: figures of a base that has changed since are not mixed in
    rows = read(args.results, KEPT)
    print(*table([rows[command] for command in commands if command in rows]), sep="\n")
    return 0


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines for people, best first."""
    ordered = sorted(rows, key=lambda row: row["bits_per_byte"])
    return [
        f"{'recipe':<24}{'seed':>5}{'bits/byte':>11}{'tokens/s':>10}{'tokens':>11}  change",
        *(
            f"{row['recipe']:<24}{row['seed']:>5}{row['bits_per_byte']:11.4f}"
            f"{row['tokens'] / row['seconds']:10,.0f}{row['tokens']:11,}  {row['change'] or '-'}"
            for row in ordered
        ),
    ]


if __name__ == "__main__":
    sys.exit(ended("recipes", lambda: main(tyro.cli(Args))))
