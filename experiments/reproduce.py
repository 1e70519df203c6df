"""Does what the paper says of its small models hold for ours? They are trained here and measured.

    python experiments/reproduce.py --threads 2
    python experiments/reproduce.py --only two-layer --corpora storybook
    python experiments/reproduce.py --table

Each file in `framework/` is one model: it opens with its question, and says what is measured. What
is finished is kept in `results/framework.jsonl`, and neither trained nor measured again. Source:
Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from jaxtyping import Int
from torch import Tensor

import word_lists
from checking import COUNT, NOT_NEGATIVE, OBJECT, POSITIVE, TEXT, Kind
from ending import ended
from finished import finished_run
from kept import is_kept, keep, read, texts_of
from options import TRAIN, VALID, further, require_stories, use_threads
from pvml.cli.flags import parse
from pvml.cli.train import TrainFlags
from pvml.cli.train_command import command_line
from pvml.data.rows import pack
from pvml.data.sources import open_corpus
from pvml.data.split import split_documents
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

RESULTS = Path(__file__).parent / "results" / "framework.jsonl"
JOBS = (
    ("zero-layer", "stories"),
    ("zero-layer", "storybook"),
    ("one-layer", "stories"),
    ("one-layer", "storybook"),
    ("two-layer", "stories"),
    ("two-layer", "storybook"),
    ("two-layer", "lists"),
)
"""Which model reads which text."""
MODELS, CORPORA = (tuple(dict.fromkeys(words)) for words in zip(*JOBS, strict=True))
LISTS = Path("runs/framework/tinystories-and-lists.jsonl")
"""Stories and lists of words, which `word_lists.py` writes."""
TEXTS: Mapping[str, str] = {
    "stories": f"--data {TRAIN} --held-out {VALID} "
    "--tokenizer bpe:4096 --epochs 4 --max-steps-per-epoch 500",
    "lists": f"--data {LISTS} --held-out {VALID} "
    "--tokenizer bpe:4096 --epochs 4 --max-steps-per-epoch 500",
    "storybook": "--data storybook --tokenizer bpe:1024 --epochs 4 --max-steps-per-epoch 250",
}
"""What is read, for how long."""
KEPT: Mapping[str, Kind] = {
    "model": (f"one of {', '.join(MODELS)}", lambda x: x in MODELS),
    "corpus": TEXT,
    "minutes": NOT_NEGATIVE,
    "tokens": COUNT,
    "parameters": COUNT,
    "bits_per_byte": POSITIVE,
    "found": OBJECT,
}
"""What a row of the results has beside its command."""
OWN = ("preset", "run_dir", "name", "seeds", "resume", "overwrite", "log")
"""Flags of `pvml train` that --flags cannot hold."""
BASE = """
    --attn-only --d-model 128 --d-head 32 --n-ctx 256 --packing document --batch-size 16
    --schedule linear --warmup-steps 60 --weight-decay 0.1 --precision bfloat16
"""
"""What the models have in common."""


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train and measure every model that is not in the results yet, and print the results."""

    only: tuple[str, ...] = MODELS
    """Which models, in this order."""
    corpora: tuple[str, ...] = CORPORA
    """Which texts: stories (TinyStories, beside the project), lists (the same, with lists of words
    between them) or storybook."""
    run_dir: Path = Path("runs/framework")
    """Where the runs are kept."""
    results: Path = RESULTS
    """Where what was measured is kept, a line for each model."""
    threads: int | None = None
    """Threads to compute with. Unset: torch's own number."""
    flags: str = ""
    """Further flags of `pvml train`, which win over all others, in one word: with an equals sign,
    as --flags="--seed 1 --epochs 2"."""
    list: bool = False
    """Only print what is there."""
    table: bool = False
    """Only print what is there, in short: a line for each model, then the command that made it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A finished model and its text."""

    run: RunDir
    model: Transformer
    tokenizer: Tokenizer
    train: Sequence[str]
    held_out: Sequence[str]

    def held_out_rows(self) -> Int[Tensor, "batch posn"]:
        """The held-out documents in rows as the model was trained on, BOS first."""
        rows = pack(
            self.tokenizer, list(self.held_out), self.model.cfg.n_ctx, self.run.args["packing"]
        )
        return rows.batch(range(len(rows)))


def flags_of(model: str, corpus: str, args: Args) -> TrainFlags:
    """What `pvml train` would be told."""
    words = f"{BASE} {definition(model).FLAGS} {TEXTS[corpus]}".split()
    flags = parse(TrainFlags, "train", [*words, *further(args.flags, OWN)])
    return replace(flags, run_dir=args.run_dir, name=f"{model}-{corpus}")


def definition(model: str) -> Any:
    """The file in `framework/` that defines a model."""
    return importlib.import_module(f"framework.{model.replace('-', '_')}")


def trained(flags: TrainFlags) -> Trained:
    """The finished run of these flags, trained if need be, with the text it was split from."""
    require_stories(
        (flags.data, flags.held_out),
        'Give --corpora storybook, or a file of stories as --flags="--data FILE --held-out FILE"',
    )
    if flags.data == str(LISTS) and not LISTS.exists():
        word_lists.main(word_lists.Args(out=LISTS))
    run = finished_run(flags)
    documents = list(open_corpus(flags.data, flags.limit))
    if flags.held_out is not None:
        train, held_out = documents, list(open_corpus(flags.held_out))
    else:
        args = flags.training
        train, held_out = split_documents(documents, args.n_held_out, args.split_seed)
    return Trained(
        run=run, model=run.load_model(), tokenizer=run.tokenizer(), train=train, held_out=held_out
    )


def main(args: Args) -> int:
    """Train and measure what is missing, and print what there is."""
    use_threads(args.threads)
    for asked, known in ((args.only, MODELS), (args.corpora, CORPORA)):
        if unknown := [word for word in asked if word not in known]:
            raise PvmlError(f"{unknown[0]!r} is none of {', '.join(known)}")
    jobs = [(m, c) for m in dict.fromkeys(args.only) for c in args.corpora if (m, c) in JOBS]
    if not jobs:
        pairs = ", ".join(f"{model} of {corpus}" for model, corpus in JOBS)
        raise PvmlError(f"no model of --only reads a text of --corpora: there are {pairs}")
    commands = []
    for model, corpus in jobs:
        flags = flags_of(model, corpus, args)
        # wherever it lay: the folder is no part of what was measured
        command = command_line(replace(flags, run_dir=Args.run_dir))
        commands.append(command)
        if args.list or args.table or is_kept(read(args.results, KEPT), command, flags):
            continue
        row = {"model": model, "corpus": corpus, "command": command, **measured(model, flags)}
        keep(args.results, {**row, "texts": texts_of(flags)})
    kept = read(args.results, KEPT)
    rows = [kept[command] for command in dict.fromkeys(commands) if command in kept]
    if args.table:
        print(*table(rows), sep="\n")
        return 0
    for row in rows:
        print(*told(row), sep="\n")
        print()
    return 0


def measured(model: str, flags: TrainFlags) -> dict[str, Any]:
    """What is kept of a model: what it took, how good it is, and what its definition finds."""
    made = trained(flags)
    summary = made.run.summary()
    return {
        "minutes": round(summary["seconds"] / 60, 1),
        "tokens": summary["tokens"],
        "parameters": summary["parameters"]["total"],
        "bits_per_byte": round(summary["bits_per_byte"], 4),
        "found": definition(model).measure(made),
    }


def told(row: Mapping[str, Any]) -> list[str]:
    """What was found of one model, as lines for people."""
    head = (
        f"{row['model']}, {row['corpus']}: {row['parameters']:,} parameters, {row['tokens']:,} "
        f"tokens in {row['minutes']} minutes, {row['bits_per_byte']:.3f} bits per byte"
    )
    return [head, *found_of(row, "told")]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each model with what it came to, then the commands under the same numbers."""
    lines = [f"   {'model':<12}{'text':<10}{'tokens':>10}{'bits/byte':>11}  result"]
    for number, row in enumerate(rows, start=1):
        lines.append(
            f"{number:<3}{row['model']:<12}{row['corpus']:<10}{row['tokens']:>10,}"
            f"{row['bits_per_byte']:>11.3f}  {found_of(row, 'in_short')}"
        )
    return [*lines, "", *(f"{n:<3}{row['command']}" for n, row in enumerate(rows, start=1))]


def found_of(row: Mapping[str, Any], way: str) -> Any:
    """What was found of one model, as its definition tells it. way: `told`, or `in_short`.

    Raises: RunDirError for a row that is damaged in it.
    """
    try:
        return getattr(definition(row["model"]), way)(row["found"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RunDirError(
            f"the results are damaged in what was found of {row['model']}, {row['corpus']} "
            f"({type(error).__name__} {error}): remove that line, and it is measured again"
        ) from error


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; the exit code."""
    return ended("reproduce", lambda: main(tyro.cli(Args, args=list(arguments))))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
