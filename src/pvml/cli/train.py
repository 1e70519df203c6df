"""`pvml train`: a corpus, a tokenizer and a model become a run directory."""

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from pvml.cli.flags import given, parse
from pvml.cli.presets import expanded
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.program import pvml
from pvml.runs.naming import LONGEST_NAME, require_name
from pvml.training.args import TrainingArgs
from pvml.training.sinks import SinkName

if TYPE_CHECKING:
    from pvml.training.processes import Processes


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

    preset: Literal["laptop"] | None = None
    """Flags by one name, before which those given here go. laptop: 17 minutes on two cores."""
    data: str = "storybook"
    """The corpus: storybook, storybook:N, tinystories (from the hub), or a file or folder."""
    held_out: str | None = None
    """Grade on this other corpus (as --data takes it; tinystories:validation), and train on all of
    --data. Unset: some documents of --data are held out."""
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
    seeds: str | None = None
    """Train a run NAME-seedN for each of these seeds, as 0,1,2, and tell mean and spread."""
    log: tyro.conf.UseAppendAction[tuple[SinkName, ...]] = ()
    """Send the metrics here too; may be given more than once."""
    model: ModelFlags = field(default_factory=ModelFlags)
    """The model's shape, but for d_vocab: the tokenizer decides it."""
    training: TrainingArgs = field(default_factory=TrainingArgs)
    """The recipe. As it stands: AdamW with a constant learning rate."""
    given: tyro.conf.Suppress[frozenset[str]] = frozenset()
    """The fields that stood on the command line: a run that goes on must agree with them, even
    where they are at their default."""
    warmup_gives_way: tyro.conf.Suppress[bool] = False
    """Whether the warm-up is the preset's: it is shortened for a run that is too short for it."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml train` say; the exit code."""
    words = expanded(arguments)
    flags = parse(TrainFlags, "train", words)
    own = "warmup_steps" in given(TrainFlags, arguments)
    gives_way = flags.preset is not None and not own
    flags = replace(flags, given=given(TrainFlags, words), warmup_gives_way=gives_way)
    if flags.resume and flags.overwrite:
        raise PvmlError("--resume continues a run and --overwrite removes it: give one of them")
    if flags.held_out is not None and flags.training.n_held_out is not None:
        raise PvmlError(
            "--held-out is graded whole and --n-held-out takes documents out of --data: give one "
            "of them (to grade on fewer, give --held-out a smaller file)"
        )
    if flags.name is not None:
        require_name(flags.name)
    if flags.seeds is not None and "seed" in flags.given:
        raise PvmlError("--seeds makes a run for each seed and --seed one run: give one of them")

    from pvml.cli.training_seeds import parse_seeds, train_seeds
    from pvml.training.processes import joined
    from pvml.training.sinks import require_sinks

    seeds = None if flags.seeds is None else parse_seeds(flags.seeds)
    require_sinks(flags.log)
    with joined(flags.training.device) as processes:
        if seeds is None:
            train_one(flags, processes)
        else:
            train_seeds(flags, seeds, processes)
    return 0


def train_one(flags: TrainFlags, processes: "Processes") -> None:
    """Train one run to its end, from its start or from where it stopped, and tell its grades.

    Raises: PvmlError for what cannot be trained; TrainingStopped after Ctrl-C, saved.
    """
    from pvml.cli.training_run import resumed, started
    from pvml.training.progress import worse_than_guessing
    from pvml.training.sinks import open_sinks

    with ExitStack() as held:
        trainer = (resumed if flags.resume else started)(flags, processes, held)
        run, names = trainer.run, flags.log if processes.first else ()
        shown = {"model": run.cfg.to_dict(), "training": run.args, "data": run.data}
        sinks = open_sinks(names, run.name, shown, run.path, step=trainer.step)
        trainer.sinks = held.enter_context(closing(sinks))
        summary = trainer.train()
    if not processes.first:
        return
    print(
        f"{summary['steps']:,} step{'s' if summary['steps'] > 1 else ''} in "
        f"{summary['seconds']:,.0f} s: held-out loss "
        f"{summary['final_held_out_loss']:.3f} nats/token, {summary['bits_per_byte']:.3f} "
        f"bits/byte, accuracy {summary['final_accuracy']:.3f}"
    )
    warning = worse_than_guessing(summary["final_held_out_loss"], run.cfg.d_vocab)
    if warning:
        print(warning)
    path = str(run.path)
    told = f"./{path}" if path.startswith("-") else path  # which would be read as a flag
    print(f"the run is in {path}; try: {pvml()} sample {shlex.quote(told)} 'Once upon a time'")


def default_name(corpus: str, cfg: Config, n_steps: int) -> str:
    """What a run is called unless it is told: tinystories-d128-l6-h4-ctx128-5k."""
    steps = f"{n_steps // 1000}k" if n_steps and n_steps % 1000 == 0 else str(n_steps)
    rest = f"d{cfg.d_model}-l{cfg.n_layers}-h{cfg.n_heads}-ctx{cfg.n_ctx}-{steps}"
    room = max(1, LONGEST_NAME - len(rest) - 1)
    data = re.sub(r"[^\w.-]+", "-", corpus).encode()[:room].decode(errors="ignore").strip("-.")
    return f"{data or 'data'}-{rest}"
