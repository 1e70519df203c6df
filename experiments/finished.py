"""A run of given flags, finished: as it lies there, continued, or made from nothing."""

from contextlib import ExitStack
from pathlib import Path

from checking import COUNT, OBJECT, POSITIVE, require
from pvml.cli.material import prepare
from pvml.cli.train import TrainFlags
from pvml.cli.training_run import require_same_texts, resumed, started
from pvml.device import pick_device
from pvml.errors import PvmlError, RunDirError
from pvml.runs.format import RunDir
from pvml.runs.layout import SUMMARY
from pvml.runs.lock import lock_holder
from pvml.training.args import TrainingArgs
from pvml.training.processes import Processes

_GRADES = {
    "steps": COUNT,
    "tokens": COUNT,
    "seconds": POSITIVE,
    "bits_per_byte": POSITIVE,
    "final_held_out_loss": POSITIVE,
    "parameters": OBJECT,
}


def finished_run(flags: TrainFlags) -> RunDir:
    """The run of these flags: as it lies there, continued, or made from nothing.

    Raises: PvmlError if one lies there that was made otherwise or of other text, if another process
    trains it, or if the corpus is too small; RunDirError if its summary is damaged.
    """
    path = flags.run_dir / str(flags.name)
    require_alone(path)
    if path.exists():
        run = RunDir.open(path)
        require_agreement(run, flags)
        if run.finished:
            require_same_texts(run, prepare(flags, run.tokenizer()))
        else:
            _train(flags, resume=True)
    else:
        _train(flags, resume=False)
    run = RunDir.open(path)
    summary = run.summary()
    where = str(path / SUMMARY)
    require(summary, _GRADES, where)
    require(summary["parameters"], {"total": COUNT}, f"{where}, parameters,")
    asked = flags.training.epochs * flags.training.max_steps_per_epoch
    if summary["steps"] != asked:
        raise PvmlError(
            f"{flags.data} is used up after {summary['steps']:,} steps, and {asked:,} were asked "
            f"for: give more text, or take fewer steps (in another --run-dir)"
        )
    return run


def _train(flags: TrainFlags, *, resume: bool) -> None:
    alone = Processes(0, 1, pick_device(flags.training.device))
    try:
        with ExitStack() as held:
            (resumed if resume else started)(flags, alone, held).train()
    except RunDirError:
        require_alone(flags.run_dir / str(flags.name))  # it may have been begun meanwhile
        raise


def require_alone(run: Path) -> None:
    """Nothing, if nobody trains this run, whether it is there or not.

    Raises: RunDirError naming the process that does.
    """
    holder = lock_holder(run)
    if holder is not None:
        raise RunDirError(
            f"{run} is being trained by {holder}: wait for it to end, and give this command again, "
            f"or give another --run-dir"
        )


def require_agreement(run: RunDir, flags: TrainFlags) -> None:
    """Nothing, if the run was started with these flags.

    Raises: PvmlError naming what differs.
    """
    model = flags.model.with_vocabulary(run.cfg.d_vocab)
    corpus = {
        "source": flags.data,
        "limit": flags.limit,
        "tokenizer": flags.tokenizer,
        "held_out": flags.held_out,
    }
    wanted = {**model.to_dict(), **flags.training.to_dict(), **corpus}
    stored = {**run.cfg.to_dict(), **TrainingArgs.from_dict(run.args).to_dict(), **run.data}
    differing = [
        f"{name} {value} (the run: {stored.get(name)})"
        for name, value in wanted.items()
        if stored.get(name) != value
    ]
    if differing:
        raise PvmlError(
            f"{run.path} was trained with other settings than these: {', '.join(differing)}. "
            f"Give another --run-dir, or remove it"
        )
