"""What `pvml train` does with its flags: the material, and a trainer at its start or part-way."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pvml.cli.material import Material, prepare
from pvml.cli.train import TrainFlags, default_name
from pvml.errors import PvmlError, RunDirError
from pvml.runs.format import RunDir
from pvml.runs.place import require_free
from pvml.runs.weights import parameter_totals
from pvml.training.args import TrainingArgs
from pvml.training.first_weights import first_model
from pvml.training.processes import Processes
from pvml.training.schedules import require_schedule_fits
from pvml.training.trainer import Trainer

_WARMUP_OF_A_PRESET = 10
"""It is one of so many parts of a run's steps at most."""


def started(flags: TrainFlags, processes: Processes, held: ExitStack) -> Trainer:
    """A trainer of a fresh model, its run directory made. Nothing is made if anything is wrong.

    Of several processes the first reads the corpus and makes the run; the others open both. held:
    takes the run's lock, so that no other process trains or overwrites it until it is closed.

    Raises: PvmlError for flags, a corpus or a place on disk that cannot be used.
    """
    with processes.first_goes_ahead():
        # before the corpus is read, which may take minutes
        if flags.name is not None and processes.first:
            require_free(flags.run_dir / flags.name, flags.overwrite)
        material = prepare(flags)
    flags = fitted(flags, material)
    args = flags.training
    _require_trainable(flags, material, processes)
    tokenizer = material.corpus.tokenizer
    cfg = flags.model.with_vocabulary(tokenizer.d_vocab)
    # before the run directory: a model too large for the memory must not replace another run
    model = first_model(cfg, args).to(processes.device)
    path = run_path(flags, material)
    with processes.first_goes_ahead():
        if processes.first:
            RunDir.create(
                path,
                cfg=cfg,
                tokenizer=tokenizer,
                args=args.to_dict(),
                data={
                    "source": flags.data,
                    "limit": flags.limit,
                    "held_out": flags.held_out,
                    "tokenizer": flags.tokenizer,
                    **material.facts(),
                },
                overwrite=flags.overwrite,
            )
        run = RunDir.open(path)
        if processes.first:
            held.enter_context(run.lock())
    trainer = Trainer(
        model,
        tokenizer,
        material.rows,
        material.corpus.held_out,
        args,
        run,
        processes=processes,
    )
    _introduce(trainer, material)
    return trainer


def fitted(flags: TrainFlags, material: Material | None = None) -> TrainFlags:
    """The flags, a preset's warm-up in them being a tenth of the run's steps at most.

    The corpus is needed for that, and is prepared unless it is given.
    """
    if not flags.warmup_gives_way:
        return flags
    args = flags.training
    most = (material or prepare(flags)).steps(args) // _WARMUP_OF_A_PRESET
    return replace(flags, training=replace(args, warmup_steps=min(args.warmup_steps, most)))


def _require_trainable(flags: TrainFlags, material: Material, processes: Processes) -> None:
    """Refuse what the trainer would, before there is a folder that bars the name.

    Raises: PvmlError for a run without end, a schedule that does not fit into its steps, or batches
    that are too small to be shared.
    """
    args = flags.training
    processes.share(range(args.batch_size), args.accumulate or 1)
    n_steps = material.steps(args)
    try:
        require_schedule_fits(args, n_steps)
    except PvmlError as error:
        told = str(error)
        for name in ("warmup_steps", "decay_share"):
            told = told.replace(name, f"--{name.replace('_', '-')}")
        whose = f" (the warm-up is --preset {flags.preset}'s)" if flags.warmup_gives_way else ""
        raise PvmlError(told + whose) from error


def resumed(flags: TrainFlags, processes: Processes, held: ExitStack) -> Trainer:
    """A trainer that goes on where a run stopped, with the settings that the run was started with.

    With --name only, everything is read from the run; without, the flags make the name as before.
    held: as for `started`.

    Raises: PvmlError for a run that cannot go on, or a flag that contradicts it.
    """
    if flags.name is None:
        with processes.first_goes_ahead():
            material = prepare(flags)
        path = run_path(flags, material)
        if not path.exists():
            raise PvmlError(
                f"there is no {path} to resume, which is what these flags would have made: give "
                f"--name, the folder of the run in {flags.run_dir}"
            )
        run = RunDir.open(path)
        require_agreement(flags, run)
    else:
        run = RunDir.open(flags.run_dir / flags.name)
        require_agreement(flags, run)
        with processes.first_goes_ahead():
            material = prepare(_as_started(flags, run), run.tokenizer())
    require_same_texts(run, material)
    with processes.first_goes_ahead():
        if processes.first:
            held.enter_context(run.lock())
    trainer = Trainer.resume(
        run,
        material.rows,
        material.corpus.held_out,
        device=flags.training.device,
        processes=processes,
    )
    if trainer.note and processes.first:
        print(f"pvml: {trainer.note}", file=sys.stderr)
    _introduce(trainer, material)
    return trainer


def run_path(flags: TrainFlags, material: Material | None = None) -> Path:
    """Where the run of these flags lies. Without --name the corpus is needed, for the steps."""
    if flags.name is not None:
        return flags.run_dir / flags.name
    material = material or prepare(flags)
    name = default_name(material.corpus.name, flags.model, material.steps(flags.training))
    return flags.run_dir / name


def _as_started(flags: TrainFlags, run: RunDir) -> TrainFlags:
    """The flags with everything that decides the rows as the run has it."""
    source, limit = run.data.get("source", flags.data), run.data.get("limit", flags.limit)
    held_out = run.data.get("held_out")
    if (
        not isinstance(source, str)
        or not isinstance(limit, int | None)
        or not isinstance(held_out, str | None)
    ):
        raise RunDirError(
            f"{run.path} does not say what it was trained on: source {source!r}, limit {limit!r}, "
            f"held_out {held_out!r}"
        )
    return replace(
        flags,
        # --data may say where the same corpus lies now: the trainer compares the rows
        data=flags.data if _is_told("data", flags.data, flags) else source,
        held_out=flags.held_out or held_out,  # and so may --held-out
        tokenizer=str(run.data.get("tokenizer", flags.tokenizer)),
        limit=limit,
        model=replace(flags.model, n_ctx=run.cfg.n_ctx),
        training=TrainingArgs.from_dict(run.args),
    )


def require_same_texts(run: RunDir, material: Material) -> None:
    """Nothing, if these are the texts that the run is trained and graded on.

    Raises: RunDirError if the corpus changed, or if other texts are held out now.
    """
    corpus, source = material.corpus, run.data.get("held_out")
    if corpus.held_out_fingerprint != run.data.get("held_out_fingerprint"):
        before = "documents of its --data" if source is None else f"{source} as it was then"
        after = corpus.held_out_name
        now = "documents of --data" if after is None else f"{after}, which holds other text"
        raise RunDirError(
            f"{run.path} is graded on {before}, and these flags hold out {now}: its grades would "
            f"not compare. Give the same --held-out text, or give a new run another --name"
        )
    # rows alone do not tell: of a corpus that is split, some documents are in none
    if corpus.fingerprint != run.data.get("fingerprint", corpus.fingerprint):
        raise RunDirError(
            f"{run.path} was begun on other documents than {corpus.name} holds now "
            f"({run.data.get('documents')} then, {corpus.documents} now, or in another order): "
            f"its rows or its grades would not compare. Put the corpus back as it was, or give a "
            f"new run another --name"
        )


def require_agreement(flags: TrainFlags, run: RunDir) -> None:
    """Nothing, if every flag that was given says what the run says already.

    A flag that differs from its default counts as given, for those who make flags without a parser.

    Raises: PvmlError naming each other flag, and both values.
    """
    contradictions = [
        f"--{name.replace('_', '-')} {value} (the run: {stored})"
        for name, value, stored in _differing(flags, run)
        if _is_told(name, value, flags)
        # where a held-out text lies now may be told; whether it is the same, its fingerprint tells
        and not (name == "held_out" and None not in (value, stored))
        # the run has it as its steps allowed
        and not (name == "warmup_steps" and flags.warmup_gives_way)
    ]
    if contradictions:
        raise PvmlError(
            f"{run.path} goes on with the settings it was started with, and these differ: "
            f"{', '.join(contradictions)}. Leave them out, or give a new run another --name"
        )


def _is_told(name: str, value: object, flags: TrainFlags) -> bool:
    standard = {"data": TrainFlags.data, **_settings(TrainFlags())}
    return name in flags.given or value != standard[name]


def require_same(flags: TrainFlags, run: RunDir) -> None:
    """Nothing, if these flags make a run of the same settings as this one's, but for the seed.

    Raises: PvmlError naming each other flag, and both values.
    """
    differing = _differing(flags, run)
    if flags.data != run.data.get("source"):
        differing.append(("data", flags.data, run.data.get("source")))
    contradictions = [
        f"--{name.replace('_', '-')} {value} ({run.name}: {stored})"
        for name, value, stored in differing
        if name != "seed"
    ]
    if contradictions:
        raise PvmlError(
            f"these flags make another model than {run.path}: {', '.join(contradictions)}. Give "
            f"the same flags as when it was started"
        )


def _differing(flags: TrainFlags, run: RunDir) -> list[tuple[str, Any, Any]]:
    """Every setting that the run keeps and the flags say otherwise: name, theirs, the run's."""
    stored = {"held_out": None, **run.cfg.to_dict(), **run.args, **run.data}
    return [
        (name, value, stored[name])
        for name, value in _settings(flags).items()
        if name in stored and value != stored[name]
    ]


def _settings(flags: TrainFlags) -> dict[str, Any]:
    """What makes the run what it is; where it computes does not."""
    settings = {**flags.model.to_dict(), **flags.training.to_dict()}
    settings |= {"limit": flags.limit, "tokenizer": flags.tokenizer, "held_out": flags.held_out}
    for other in ("d_vocab", "device"):
        del settings[other]
    return settings


def _introduce(trainer: Trainer, material: Material) -> None:
    """Print what is about to be trained, on what, once."""
    if not trainer.processes.first:
        return
    totals = parameter_totals(trainer.model)
    print("\n".join(material.lines()))
    read = trainer.steps_per_epoch * trainer.args.batch_size * material.rows.n_ctx
    if material.corpus.held_out_name is not None and material.held_out_tokens > read:
        print(
            f"           Each epoch reads {read:,} tokens, and is graded on "
            f"{material.held_out_tokens:,}, which may take longer: a smaller --held-out is faster."
        )
    print(
        f"model      {totals['total']:,} parameters, {totals['non_embedding']:,} outside the tables"
    )
    if trainer.processes.count > 1:
        print(f"processes  {trainer.processes.count}, {trainer.args.parallel}")
    print(f"run        {trainer.run.path}: steps {trainer.step + 1:,} to {trainer.n_steps:,}")
