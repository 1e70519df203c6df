"""`pvml train`: a corpus, a tokenizer and a model become a run directory."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from pvml.cli.flags import parse
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.training.args import TrainingArgs


@dataclass(frozen=True, kw_only=True)
class ModelFlags(Config):
    """The model's shape, but for what the tokenizer decides. The defaults suit a laptop."""

    d_model: int = 128
    """Width of the residual stream (numbers per position). GPT-2 small: 768."""
    n_heads: int = 4
    """Attention heads in each layer. GPT-2 small: 12."""
    n_layers: int = 6
    """Transformer blocks; 0 leaves embedding and unembedding only. GPT-2 small: 12."""
    n_ctx: int = 128
    """Longest sequence the model can read (tokens, BOS included). GPT-2 small: 1,024."""
    d_head: int | None = None  # type: ignore[assignment]  # so that the parser knows it may be unset
    d_mlp: int | None = None  # type: ignore[assignment]
    d_vocab: tyro.conf.Suppress[int] = 1
    debug: tyro.conf.Suppress[bool] = False

    def with_vocabulary(self, d_vocab: int) -> Config:
        """The whole shape, once the tokenizer is known."""
        return Config.from_dict({**self.to_dict(), "d_vocab": d_vocab})


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Train a model and record it in a run directory, RUN_DIR/NAME."""

    data: str = "storybook"
    """The corpus: storybook, storybook:N, tinystories (from the hub), or a file or folder."""
    tokenizer: str = "bpe:4096"
    """The vocabulary: gpt2, or bpe:N to train N entries on the corpus."""
    limit: int | None = None
    """Read at most so many documents; all unless given."""
    run_dir: Path = Path("runs")
    """The folder of run directories."""
    name: str | None = None
    """The run's own folder. Unset: corpus, sizes, steps, as storybook-d128-l6-h4-ctx128-5k."""
    resume: bool = False
    """Continue a run from its last checkpoint, with the settings it was started with."""
    overwrite: bool = False
    """Remove a run that has this name, and start anew."""
    model: ModelFlags = field(default_factory=ModelFlags)
    """The model's shape, but for d_vocab: the tokenizer decides it."""
    training: TrainingArgs = field(default_factory=TrainingArgs)
    """The recipe. As it stands: AdamW with a constant learning rate."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml train` say; the exit code."""
    flags = parse(TrainFlags, "train", arguments)
    if flags.resume and flags.overwrite:
        raise PvmlError("--resume continues a run and --overwrite removes it: give one of them")
    if flags.name is not None and not _is_one_folder(flags.name):
        raise PvmlError(
            f"--name {flags.name!r} is not the name of one folder: --run-dir says where runs lie"
        )

    from pvml.cli.training_run import resumed, started

    trainer = resumed(flags) if flags.resume else started(flags)
    summary = trainer.train()
    path = trainer.run.path
    print(
        f"{summary['steps']:,} step{'s' if summary['steps'] > 1 else ''} in "
        f"{summary['seconds']:,.0f} s: held-out loss "
        f"{summary['final_held_out_loss']:.3f} nats/token, {summary['bits_per_byte']:.3f} "
        f"bits/byte, accuracy {summary['final_accuracy']:.3f}"
    )
    print(f"the run is in {path}; try: pvml sample {shlex.quote(str(path))} 'Once upon a time'")
    return 0


def _is_one_folder(name: str) -> bool:
    # half surrogates, which bytes that are no UTF-8 become, are not printable: weights written
    # under such a name cannot be read back
    plain = name.isprintable() and not any(sign in name for sign in "/\\")
    return plain and name not in ("", ".", "..")


def default_name(corpus: str, cfg: Config, n_steps: int) -> str:
    """What a run is called unless it is told: tinystories-d128-l6-h4-ctx128-5k."""
    data = re.sub(r"[^\w.-]+", "-", corpus).strip("-.") or "data"
    steps = f"{n_steps // 1000}k" if n_steps and n_steps % 1000 == 0 else str(n_steps)
    return f"{data}-d{cfg.d_model}-l{cfg.n_layers}-h{cfg.n_heads}-ctx{cfg.n_ctx}-{steps}"
