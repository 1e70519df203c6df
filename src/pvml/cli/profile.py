"""`pvml profile [RUN_DIR]`: where a training step's time goes, and what a longer row costs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from pvml.cli.flags import parse
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.runs.naming import known_run
from pvml.training.args import OptimizerName, Precision, TrainingArgs

if TYPE_CHECKING:
    from pvml.training.profile import Profile

_SHAPE = {"d_model": 128, "n_layers": 6, "n_heads": 4, "d_vocab": 50257}
_LENGTHS = (128, 512)


@dataclass(frozen=True, kw_only=True)
class ProfileFlags:
    """Show where a training step's time goes, on random tokens, and what doubling n_ctx costs.

    The shape is that of a run, or the one given here. Figures are medians over steps.
    """

    run_dir: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[RUN_DIR]")] = None
    """A run, or its NAME in runs, or a bundled model (attn-1l, attn-2l, stories), whose model and
    recipe are profiled; its weights are not read."""
    d_model: int | None = None
    """Width of the residual stream (numbers per position). Unset: 128."""
    n_layers: int | None = None
    """Transformer blocks. Unset: 6."""
    n_heads: int | None = None
    """Attention heads in each layer. Unset: 4."""
    d_vocab: int | None = None
    """Vocabulary size (distinct token ids). Unset: 50,257."""
    n_ctx: tuple[int, ...] = ()
    """Row lengths (tokens) to profile; the last is doubled. Unset: the run's, or 128 and 512."""
    batch_size: int | None = None
    """Rows in a step. Unset: the run's, or 32."""
    precision: Precision | None = None
    """Arithmetic of the matrix products. Unset: the run's, or float32."""
    optimizer: OptimizerName | None = None
    """What moves the weights. Unset: the run's, or adamw."""
    grad_clip: float | None = None
    """Largest norm of all gradients together. Unset: the run's, or no limit."""
    device: str | None = None
    """Where to compute: cpu, cuda, ... Unset: the run's, or an accelerator where there is one."""
    steps: int = 5
    """Steps that are measured, after two that are not."""
    doubling: bool = True
    """Also measure what rows twice as long cost, at equal tokens per step."""
    json: bool = False
    """Print one JSON object instead of tables (seconds)."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml profile` say; the exit code."""
    flags = parse(ProfileFlags, "profile", arguments)
    models, args = _subjects(flags)

    import torch as t

    from pvml.device import pick_device
    from pvml.training.profile import cost_of_doubling, profile

    profiles = [profile(cfg, args, flags.steps) for cfg in models]
    doubling = cost_of_doubling(models[-1], args, flags.steps) if flags.doubling else None
    where = {"device": str(pick_device(args.device)), "threads": t.get_num_threads()}
    if flags.json:
        told = {
            # each profile has its own n_ctx
            "model": {k: v for k, v in models[0].to_dict().items() if k != "n_ctx"},
            "args": args.to_dict(),
            **where,
            "steps": flags.steps,
            "profiles": [asdict(one) for one in profiles],
            "doubling": doubling and {**asdict(doubling), "cost": doubling.cost},
        }
        print(json.dumps(told))
        return 0
    _show(models[0], args, where, flags.steps, profiles)
    if doubling is not None:
        print(
            f"\nn_ctx {2 * doubling.n_ctx:,} instead of {doubling.n_ctx:,}, at equal tokens per "
            f"step: {doubling.step:.3f} s become {doubling.doubled:.3f} s, "
            f"{doubling.cost:.2f} times as long"
        )
    return 0


def _subjects(flags: ProfileFlags) -> tuple[list[Config], TrainingArgs]:
    """The models of every n_ctx, and the recipe.

    Raises: PvmlError for flags that cannot be, or contradict the run.
    """
    given = {name: getattr(flags, name) for name in _SHAPE if getattr(flags, name) is not None}
    if flags.run_dir is None:
        cfg, args, lengths = Config(**{**_SHAPE, **given}), TrainingArgs(), list(_LENGTHS)
    else:
        from pvml.runs.format import RunDir

        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise PvmlError(f"RUN_DIR says the model's shape: leave {names} out, or leave it out")
        run = RunDir.open(known_run(flags.run_dir))
        cfg, args = run.cfg, TrainingArgs.from_dict(run.args)
        lengths = [cfg.n_ctx]
    recipe = ("batch_size", "precision", "optimizer", "grad_clip", "device")
    changed = {name: getattr(flags, name) for name in recipe if getattr(flags, name) is not None}
    args = replace(args, **changed)
    return [replace(cfg, n_ctx=n_ctx) for n_ctx in flags.n_ctx or lengths], args


def _show(
    cfg: Config,
    args: TrainingArgs,
    where: dict[str, Any],
    steps: int,
    profiles: "Sequence[Profile]",
) -> None:
    print(
        f"d_model {cfg.d_model}, n_layers {cfg.n_layers}, n_heads {cfg.n_heads}, d_vocab "
        f"{cfg.d_vocab:,}, batch_size {args.batch_size}, {args.precision}, {args.optimizer}; "
        f"on {where['device']}, threads: {where['threads']}; medians over {steps} steps"
    )
    for title, kind in (("a training step", "step"), ("a forward pass alone", "forward")):
        wholes = [getattr(one, kind) for one in profiles]
        parts = [one.parts if kind == "step" else one.forward_parts for one in profiles]
        table = Table(box=None, pad_edge=False)
        table.add_column(title)
        for one in profiles:
            table.add_column(f"n_ctx {one.n_ctx:,}", justify="right")
            table.add_column("", justify="right")
        for name in parts[0]:
            seconds = [part[name] for part in parts]
            if any(seconds):  # without a limit, nothing is clipped
                table.add_row(name, *_cells(seconds, wholes))
        table.add_section()
        table.add_row("their sum", *_cells([sum(part.values()) for part in parts], wholes))
        table.add_row("measured as a whole", *_cells(wholes, wholes))
        print()
        Console(highlight=False).print(table)


def _cells(seconds: Sequence[float], wholes: Sequence[float]) -> list[str]:
    return [
        cell
        for part, whole in zip(seconds, wholes, strict=True)
        for cell in (f"{1000 * part:,.1f} ms", f"{part / whole:.1%}")
    ]
