"""The experiments on TinyStories: which there are, what they are called, and their laptop twins.

Each is a file in `tinystories/` that opens with its question. An original reads the hub's whole
TinyStories with GPT-2's tokenizer, in float32. Its twin answers the same question on a laptop.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pvml.cli.train import ModelFlags, TrainFlags
from pvml.training.args import Precision, TrainingArgs

FOLDER = Path(__file__).resolve().parent / "tinystories"
ORDER = (
    "d32_l4_h16_ctx128_5k",
    "d128_l6_h4_ctx128_5k",
    "d256_l8_h8_ctx128_5k",
    "d32_l4_h16_ctx128_20k",
    "d128_l6_h4_ctx128_20k",
    "d128_l6_h4_ctx512_40k",
    "d256_l8_h8_ctx128_5k_cosine",
    "d256_l8_h8_ctx128_20k",
    "d32_l4_h4_ctx128_20k",
)
"""The six of d0mzw's notes in their order, then the three that the notes ask for."""
ORIGINAL, TWIN = "tinystories", "twin"
"""What the names of runs begin with."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One question, and the run that answers it."""

    name: str
    """As d128-l6-h4-ctx128-5k: what the original and the twin have in common."""
    question: str
    model: ModelFlags
    training: TrainingArgs
    published: Mapping[str, float] = field(default_factory=dict)
    """Loss (nats per token), accuracy, minutes and slope that the notes report, if they ran it."""

    @property
    def steps(self) -> int:
        """How many steps the original takes."""
        return self.training.epochs * self.training.max_steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class Laptop:
    """How an original becomes a twin. Shape, batch, optimizer, rates and schedule stay."""

    tokenizer: str = "bpe:4096"
    """A small vocabulary of its own: GPT-2's tables would take most of the time."""
    shrink: int = 10
    """The original takes so many times the steps: so 5,000 to 20,000 stay 1 to 4."""
    passes: int = 3
    """Most often that the text may be read."""
    evaluations: int = 10
    precision: Precision = "bfloat16"
    """It costs no quality that could be measured (LOG.md)."""
    checkpoint_every: int = 100


@cache
def load_experiments() -> Mapping[str, Experiment]:
    """Every experiment by its name, in the order in which they are told."""
    found = [read_experiment(FOLDER / f"{stem}.py") for stem in ORDER]
    return MappingProxyType({experiment.name: experiment for experiment in found})


def read_experiment(path: Path) -> Experiment:
    """The experiment that a file defines: its first line asks, MODEL and ARGS say how."""
    spec = importlib.util.spec_from_file_location(f"tinystories.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Experiment(
        name=path.stem.replace("_", "-"),
        question=module.__doc__.splitlines()[0],
        model=module.MODEL,
        training=module.ARGS,
        published=getattr(module, "PUBLISHED", {}),
    )


def run_name(experiment: Experiment, kind: str, seed: int) -> str:
    """A run's folder: KIND-NAME, and -seedN for every seed but 0."""
    return f"{kind}-{experiment.name}" + (f"-seed{seed}" if seed else "")


def original(experiment: Experiment, seed: int, data: str, run_dir: Path) -> TrainFlags:
    """What `pvml train` would be told for the original."""
    return TrainFlags(
        data=data,
        tokenizer="gpt2",
        run_dir=run_dir,
        name=run_name(experiment, ORIGINAL, seed),
        model=experiment.model,
        training=replace(experiment.training, seed=seed),
    )


def twin(
    experiment: Experiment, seed: int, data: str, run_dir: Path, n_rows: int, laptop: Laptop
) -> TrainFlags:
    """What `pvml train` would be told for the twin. n_rows: of the training text, in one pass."""
    return TrainFlags(
        data=data,
        tokenizer=laptop.tokenizer,
        run_dir=run_dir,
        name=run_name(experiment, TWIN, seed),
        model=experiment.model,
        training=replace(twin_recipe(experiment, n_rows, laptop), seed=seed),
    )


def twin_recipe(experiment: Experiment, n_rows: int, laptop: Laptop) -> TrainingArgs:
    """The original's recipe with fewer steps: a tenth of them, or as many as the passes allow.

    The warm-up keeps its share of the steps, and the evaluations lie evenly: the steps are a
    multiple of their number.
    """
    args = experiment.training
    most = laptop.passes * n_rows // args.batch_size
    steps = max(1, min(experiment.steps // laptop.shrink, most))
    epochs = min(laptop.evaluations, steps)
    steps -= steps % epochs
    return replace(
        args,
        epochs=epochs,
        max_steps_per_epoch=steps // epochs,
        warmup_steps=round(args.warmup_steps * steps / experiment.steps),
        precision=laptop.precision,
        checkpoint_every=laptop.checkpoint_every,
    )
