"""What `pvml train` does with its flags: the material, and a trainer at its start or part-way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pvml.cli.material import Material, prepare
from pvml.cli.train import TrainFlags, default_name
from pvml.device import pick_device
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.runs.place import require_free
from pvml.runs.weights import parameter_totals
from pvml.training.args import TrainingArgs
from pvml.training.trainer import Trainer


def started(flags: TrainFlags) -> Trainer:
    """A trainer of a fresh model, its run directory made. Nothing is made if anything is wrong.

    Raises: PvmlError for flags, a corpus or a place on disk that cannot be used.
    """
    args = flags.training
    # before the corpus is read, which may take minutes
    device = pick_device(args.device)
    if flags.name is not None:
        require_free(flags.run_dir / flags.name, flags.overwrite)
    material = prepare(flags)
    tokenizer = material.corpus.tokenizer
    cfg = flags.model.with_vocabulary(tokenizer.d_vocab)
    # before the run directory: a model too large for the memory must not replace another run
    model = Transformer(cfg, seed=args.seed).to(device)
    run = RunDir.create(
        _path(flags, material),
        cfg=cfg,
        tokenizer=tokenizer,
        args=args.to_dict(),
        data={
            "source": flags.data,
            "limit": flags.limit,
            "tokenizer": flags.tokenizer,
            **material.facts(),
        },
        overwrite=flags.overwrite,
    )
    trainer = Trainer(
        model,
        tokenizer,
        material.rows,
        material.corpus.held_out,
        args,
        run,
    )
    _introduce(trainer, material)
    return trainer


def resumed(flags: TrainFlags) -> Trainer:
    """A trainer that goes on where a run stopped, with the settings that the run was started with.

    With --name only, everything is read from the run; without, the flags make the name as before.

    Raises: PvmlError for a run that cannot go on, or a flag that contradicts it.
    """
    pick_device(flags.training.device)
    if flags.name is None:
        material = prepare(flags)
        path = _path(flags, material)
        if not path.exists():
            raise PvmlError(
                f"there is no {path} to resume, which is what these flags would have made: give "
                f"--name, the folder of the run in {flags.run_dir}"
            )
        run = RunDir.open(path)
        _require_agreement(flags, run)
    else:
        run = RunDir.open(flags.run_dir / flags.name)
        _require_agreement(flags, run)
        material = prepare(_as_started(flags, run), run.tokenizer())
    trainer = Trainer.resume(
        run, material.rows, material.corpus.held_out, device=flags.training.device
    )
    _introduce(trainer, material)
    return trainer


def _path(flags: TrainFlags, material: Material) -> Path:
    name = default_name(material.corpus.name, flags.model, material.steps(flags.training))
    return flags.run_dir / (flags.name or name)


def _as_started(flags: TrainFlags, run: RunDir) -> TrainFlags:
    """The flags with everything that decides the rows as the run has it."""
    source, limit = run.data.get("source", flags.data), run.data.get("limit", flags.limit)
    if not isinstance(source, str) or not isinstance(limit, int | None):
        raise RunDirError(
            f"{run.path} does not say what it was trained on: source {source!r}, limit {limit!r}"
        )
    return replace(
        flags,
        # --data may say where the same corpus lies now: the trainer compares the rows
        data=flags.data if flags.data != TrainFlags().data else source,
        tokenizer=str(run.data.get("tokenizer", flags.tokenizer)),
        limit=limit,
        model=replace(flags.model, n_ctx=run.cfg.n_ctx),
        training=TrainingArgs.from_dict(run.args),
    )


def _require_agreement(flags: TrainFlags, run: RunDir) -> None:
    """Nothing, if every flag is at its default or says what the run says already."""
    given, defaults = _settings(flags), _settings(TrainFlags())
    stored = {**run.cfg.to_dict(), **run.args, **run.data}
    contradictions = [
        f"--{name.replace('_', '-')} {value} (the run: {stored[name]})"
        for name, value in given.items()
        if name in stored and value not in (defaults[name], stored[name])
    ]
    if contradictions:
        raise PvmlError(
            f"{run.path} goes on with the settings it was started with, and these differ: "
            f"{', '.join(contradictions)}. Leave them out, or give a new run another --name"
        )


def _settings(flags: TrainFlags) -> dict[str, Any]:
    """What makes the run what it is; where it computes does not."""
    settings = {**flags.model.to_dict(), **flags.training.to_dict()}
    settings |= {"limit": flags.limit, "tokenizer": flags.tokenizer}
    for other in ("d_vocab", "device"):
        del settings[other]
    return settings


def _introduce(trainer: Trainer, material: Material) -> None:
    """Print what is about to be trained, on what."""
    totals = parameter_totals(trainer.model)
    print("\n".join(material.lines()))
    print(
        f"model      {totals['total']:,} parameters, {totals['non_embedding']:,} outside the tables"
    )
    print(f"run        {trainer.run.path}: steps {trainer.step + 1:,} to {trainer.n_steps:,}")
