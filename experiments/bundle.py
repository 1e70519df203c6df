"""Put a finished run into the package, as a model that `pvml.load(NAME)` finds.

    python experiments/bundle.py runs/stories stories --text ../tinystories/valid.jsonl.xz

It writes src/pvml/models/NAME, a finished run directory in half precision, whole or not at all:
config, tokenizer, weights, the metrics thinned, summary, curve, and a README with the command that
trains it and its grades. float16 is the default: it rounds at 11 bits where bfloat16 rounds at 8,
and both take the same room (LOG.md has the cost of each).
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch as t
import tyro
from torch import Tensor

from pvml.atomic import new_folder
from pvml.bundled import FOLDER
from pvml.cli.flags import parse
from pvml.cli.train import TrainFlags
from pvml.cli.train_command import command_line, recorded_flags, train_arguments
from pvml.data.sources import open_corpus
from pvml.device import pick_dtype
from pvml.errors import PvmlError
from pvml.loading import HUB_MODELS
from pvml.plots.curves import column, smoothing_window, window_ends, window_means
from pvml.plots.losses import loss_curve
from pvml.runs.format import RunDir
from pvml.runs.json_object import to_json
from pvml.runs.layout import CONFIG, METRICS, SUMMARY, TOKENIZER, WEIGHTS
from pvml.runs.place import out_of_the_way, require_free
from pvml.runs.weights import build_model, read_weights, save_tensors
from pvml.training.evaluation import bits_per_byte

Half = Literal["float16", "bfloat16"]
CURVE, README = "curve.png", "README.md"
_BY_POSITION = "held_out_loss_by_position"
_CPU = t.device("cpu")

RIGHTS = {
    "tinystories": """\
The training text is TinyStories: short stories that language models wrote for children, by Ronen
Eldan and Yuanzhi Li (2023), "TinyStories: How Small Can Language Models Be and Still Speak Coherent
English?", arXiv:2305.07759. The stories are under the Community Data License Agreement, Sharing,
version 1.0 (CDLA-Sharing-1.0, https://cdla.dev/sharing-1-0/). None of them is in this package. The
weights are a result of using them, on which that licence puts no condition; they come under PvML's
own licence.""",
    "storybook": """\
The training text is PvML's own storybook, which comes with the package under its licence. So do
the weights.""",
}
"""What is said of the text's rights, by a word in the corpus's path."""


@dataclass(frozen=True, kw_only=True)
class Args:
    """Put a finished run into the package as a bundled model."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A finished run directory that `pvml train` made."""
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """What the model is called."""
    text: str
    """The corpus that both grades are of: storybook:N, or a file or folder."""
    dtype: Half = "float16"
    """What the weights are rounded to."""
    to: Path = FOLDER
    """The folder of bundled models."""
    overwrite: bool = False
    """Replace a model that has this name."""
    corpus_by: str | None = None
    """The command that writes the corpus, if that is a file of our own making."""


def main(args: Args) -> Path:
    """The bundled model's folder, written whole.

    Raises: PvmlError for a run that cannot be bundled, or a name that is not free; nothing is
    written then.
    """
    target = args.to / args.name
    _require_name(args.name)
    require_free(target, args.overwrite)
    run = RunDir.open(args.run)
    if not run.finished:
        raise PvmlError(f"{run.path} is not finished: only a run that has its grades is bundled")
    flags = told_from_here(recorded_flags(run.path), args.name)
    require_parsable(flags)
    rights(flags.data)
    weights = read_weights(run.path / WEIGHTS)
    rounded = in_half(weights, args.dtype)
    grades = grade(run, weights, rounded, args)
    told = {"source": flags.data, "held_out": flags.held_out}
    config = {**run.config, "data": {**run.data, **told}}
    summary = {**run.summary(), "bundle": grades}
    args.to.mkdir(parents=True, exist_ok=True)
    with out_of_the_way(target) as clear, new_folder(target) as partial:
        (partial / CONFIG).write_text(to_json(config, indent=2) + "\n", encoding="utf-8")
        (partial / SUMMARY).write_text(to_json(summary, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(run.path / TOKENIZER, partial / TOKENIZER)
        save_tensors(rounded, partial / WEIGHTS)
        (partial / WEIGHTS).chmod(0o644)  # the library makes files that nobody else may read
        rows = list(run.rows())
        lines = "".join(to_json(row) + "\n" for row in thinned(rows))
        (partial / METRICS).write_text(lines, encoding="utf-8")
        loss_curve(rows, partial / CURVE)
        sizes = {file.name: file.stat().st_size for file in partial.iterdir()}
        page = readme(run, args, flags, summary, sizes)
        (partial / README).write_text(page, encoding="utf-8")
        clear(args.overwrite)
    return target


def _require_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name in HUB_MODELS:
        raise PvmlError(
            f"NAME {name!r} must be small letters, digits and hyphens, and none of "
            f"{', '.join(HUB_MODELS)}"
        )


def told_from_here(flags: TrainFlags, name: str) -> TrainFlags:
    """The flags as they make this model again, named so, from the current folder.

    A path in somebody's home means nothing to others: it is told relative to where we are.
    """
    return replace(
        flags,
        name=name,
        run_dir=TrainFlags().run_dir,
        data=_from_here(flags.data),
        held_out=flags.held_out and _from_here(flags.held_out),
    )


def _from_here(corpus: str) -> str:
    return os.path.relpath(corpus) if os.path.isabs(corpus) else corpus


def require_parsable(flags: TrainFlags) -> None:
    """Nothing, if the command line of these flags gives the same flags back.

    Raises: PvmlError showing the command.
    """
    if parse(TrainFlags, "train", train_arguments(flags)) != flags:
        raise PvmlError(f"this command does not give the run's settings: {command_line(flags)}")


def rights(data: str) -> str:
    """What is said of the rights in a model that was trained on this corpus.

    Raises: PvmlError for a corpus of which nothing is known here.
    """
    for word, told in RIGHTS.items():
        if word in data:
            return told
    raise PvmlError(
        f"nothing is known here of the rights in {data!r}, and a model is not given away without: "
        f"write them into RIGHTS. Known are {', '.join(RIGHTS)}"
    )


def in_half(weights: Mapping[str, Tensor], dtype: Half) -> dict[str, Tensor]:
    """The weights, each rounded to the nearest number of half precision.

    Raises: PvmlError naming every tensor with a number that is not finite, before or after.
    """
    rounded = {name: x.to(pick_dtype(dtype)).contiguous() for name, x in weights.items()}
    lost = [
        f"{name} (up to {float(weights[name].abs().max()):g})"
        for name, x in rounded.items()
        if not bool(x.isfinite().all())
    ]
    if lost:
        raise PvmlError(
            f"{dtype} cannot hold {', '.join(lost)}: its largest number is "
            f"{t.finfo(pick_dtype(dtype)).max:g}. bfloat16 reaches further"
        )
    return rounded


def grade(
    run: RunDir, weights: Mapping[str, Tensor], rounded: Mapping[str, Tensor], args: Args
) -> dict[str, Any]:
    """Bits per byte of the text, of the weights as they were trained and as they are kept."""
    corpus, tokenizer = open_corpus(args.text), run.tokenizer()
    documents = list(corpus)
    bits = {
        dtype: bits_per_byte(build_model(run.cfg, x, str(run.path), _CPU), tokenizer, documents)
        for dtype, x in (("float32", weights), (args.dtype, rounded))
    }
    return {
        "dtype": args.dtype,
        "text": _from_here(args.text),
        "fingerprint": corpus.fingerprint,
        "documents": len(documents),
        "bytes": sum(len(document.encode()) for document in documents),
        "bits_per_byte": bits,
    }


def thinned(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A log of as few rows as the charts have points, whose charts are the same.

    Of each window (100 steps, fewer in a run below 2,000) the last step's row stays, with the mean
    loss of all of them. Each epoch's row stays; the loss by position, which is long, only in the
    last one, to four decimals.
    """
    rows = list(rows)
    places = [place for place, row in enumerate(rows) if "loss" in row]
    losses, steps = (column((rows[place] for place in places), key) for key in ("loss", "step"))
    ends = window_ends(steps, smoothing_window(steps))
    means = window_means(losses, ends).tolist()
    loss_at = {places[end]: mean for end, mean in zip(ends, means, strict=True)}
    last = max((place for place, row in enumerate(rows) if _BY_POSITION in row), default=None)
    shorter = []
    for place, row in enumerate(rows):
        if place in loss_at:
            shorter.append({**row, "loss": loss_at[place]})
        elif place == last:
            shorter.append({**row, _BY_POSITION: [round(loss, 4) for loss in row[_BY_POSITION]]})
        elif "accuracy" in row:
            shorter.append({key: x for key, x in row.items() if key != _BY_POSITION})
    return shorter


def readme(
    run: RunDir, args: Args, flags: TrainFlags, summary: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """The page that stands beside the weights."""
    cfg, data, bundle, name = run.cfg, run.data, summary["bundle"], args.name
    commands = [*([args.corpus_by] if args.corpus_by else []), command_line(flags)]
    told = "\n".join(f"    {command}" for command in commands)
    window = smoothing_window(column(run.rows("loss"), "step"))
    kept, torch = bundle["dtype"], run.config["versions"]["torch"]
    only = "attention only, no MLP; " if cfg.attn_only else ""
    layers = f"{cfg.n_layers} layer{'' if cfg.n_layers == 1 else 's'}"
    shape = f"""
        A model that comes with PvML: {only}{layers} of {cfg.n_heads} heads, d_model
        {cfg.d_model}, n_ctx {cfg.n_ctx}, {cfg.d_vocab:,} token ids;
        {summary["parameters"]["total"]:,} parameters."""
    training = f"""
        The corpus: {data["documents"]:,} documents, {data["bytes"]:,} bytes, fingerprint
        {data["fingerprint"]}. {summary["steps"]:,} steps read {summary["tokens"]:,} tokens in
        {summary["seconds"] / 60:,.1f} minutes ({summary["device"]}, processes:
        {summary["processes"]}, torch {torch}). Another machine, or another number of threads,
        rounds otherwise in the last digits, and so ends, after thousands of steps, at other
        weights."""
    text = f"""
        Of {bundle["text"]}: {bundle["documents"]:,} documents, {bundle["bytes"]:,} bytes,
        fingerprint {bundle["fingerprint"]}, each alone. `pvml evaluate` counts so too, and more."""
    about = {
        CONFIG: "the model's shape, the recipe, the data's fingerprint, versions",
        TOKENIZER: f"the vocabulary, {run.tokenizer_name}, in the format of `tokenizers`",
        WEIGHTS: f"the weights, {kept}; `pvml.load` gives them as float32 unless told otherwise",
        METRICS: f"the log: of each {window} steps the last one's row, with their mean loss; each "
        f"epoch's row, the last one with the loss by position",
        SUMMARY: "the end of the run, and the grades above",
        CURVE: "the training loss of every step, and the held-out loss",
    }
    files = "\n".join(f"| {file} | {sizes[file]:,} | {about[file]} |" for file in about)
    return f"""\
# {name}

{_filled(shape)}

    pvml sample {name} "Once upon a time"
    pvml trace {name} "Once upon a time"

## How it was trained

{told}

{_filled(training)}

## Grades

{_filled(text)}

| weights | bits per byte |
|---|---|
| as they were trained, float32 | {bundle["bits_per_byte"]["float32"]:.5f} |
| as they are here, {kept} | {bundle["bits_per_byte"][kept]:.5f} |

![loss by step]({CURVE})

## Files

| file | bytes | what is in it |
|---|---|---|
{files}

## Rights

{rights(flags.data)}
"""


def _filled(text: str) -> str:
    plain = " ".join(text.split())
    return textwrap.fill(plain, 100, break_long_words=False, break_on_hyphens=False)


def tell(args: Args) -> int:
    """Bundle the model, and print where it is."""
    print(f"the model is in {main(args)}")
    return 0


if __name__ == "__main__":
    from ending import ended

    sys.exit(ended("bundle", lambda: tell(tyro.cli(Args))))
