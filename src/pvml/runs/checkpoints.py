"""The checkpoints of a run: written whole, checked before they are used, the last two kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pvml.atomic import HashedFile, new_folder, remove_folder, write_whole
from pvml.errors import RunDirError
from pvml.runs.checksums import find_fault, hash_file, sum_of, write_checksums
from pvml.runs.layout import (
    CHECKPOINTS,
    KEEP,
    LATEST,
    TRAINING,
    WEIGHTS,
    checkpoint_steps,
    step_folder,
)
from pvml.runs.weights import read_pickle, read_weights, save_pickle, save_weights

_LAST = 2
"""The last one may turn out damaged: the one before stays beside it."""


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]
    note: str = ""
    """Why it is not the last one, as a sentence."""


def write_checkpoint(
    run: Path, step: int, model: nn.Module, state: Mapping[str, Any], *, keep: bool
) -> None:
    """Add the checkpoint of a step: the folder is there whole or not at all.

    Raises: RunDirError if the disk refuses.
    """
    with new_folder(step_folder(run, step)) as partial:
        # that library writes by itself, so its file is hashed while the system still holds it
        save_weights(model, partial / WEIGHTS)
        sums = {WEIGHTS: hash_file(partial / WEIGHTS)}
        with HashedFile(partial / TRAINING) as file:
            save_pickle(dict(state), file)
            sums[TRAINING] = sum_of(file)
        write_checksums(partial, sums)
        if keep:
            (partial / KEEP).touch()


def name_latest(run: Path, step: int) -> None:
    """Say in `latest` which checkpoint is the last.

    Raises: RunDirError if the disk refuses.
    """
    write_whole(run / CHECKPOINTS / LATEST, f"{step_folder(run, step).name}\n")


def read_newest(run: Path) -> Saved:
    """The newest checkpoint that is whole.

    Raises: RunDirError if there is none, saying what is wrong with each.
    """
    faults: list[str] = []
    for step in reversed(checkpoint_steps(run)):
        try:
            saved = read_checkpoint(run, step)
        except RunDirError as fault:
            faults.append(str(fault))
            continue
        if not faults:
            return saved
        note = f"{'; '.join(faults)}. The checkpoint of step {step:,} is whole and is used instead"
        return Saved(step, saved.weights, saved.state, note)
    if not faults:
        raise RunDirError(f"{run} holds no checkpoint to go on from: --overwrite starts it anew")
    raise RunDirError(
        f"{run} holds no checkpoint that is whole: {'; '.join(faults)}. Put one of these folders "
        f"back from a copy, or start the run anew with --overwrite"
    )


def read_checkpoint(run: Path, step: int) -> Saved:
    """One step's checkpoint.

    Raises: RunDirError naming the folder and what is wrong with it.
    """
    folder = step_folder(run, step)
    weights = checkpoint_weights(run, step)
    _require_whole(folder, TRAINING)
    state = read_pickle(folder / TRAINING)
    if not isinstance(state, dict):
        raise RunDirError(f"{folder / TRAINING} is damaged: it holds no training state")
    return Saved(step, weights, state)


def checkpoint_weights(run: Path, step: int) -> dict[str, Tensor]:
    """The weights of one step's checkpoint, by name.

    Raises: RunDirError naming the steps there are, or what is wrong with the folder.
    """
    folder = step_folder(run, step)
    steps = checkpoint_steps(run)
    if step not in steps:
        there = ", ".join(f"{other:,}" for other in steps) or "none"
        raise RunDirError(f"{run} holds no checkpoint of step {step:,}; there are: {there}")
    _require_whole(folder, WEIGHTS)
    return read_weights(folder / WEIGHTS)


def _require_whole(folder: Path, name: str) -> None:
    fault = find_fault(folder, [name])
    if fault is not None:
        raise RunDirError(f"{folder} is damaged: {fault}")


def remove_older(run: Path) -> None:
    """Remove what came before the last two checkpoints, but not what is kept; and leftovers."""
    for step in checkpoint_steps(run)[:-_LAST]:
        folder = step_folder(run, step)
        if not (folder / KEEP).exists():
            remove_folder(folder)
    for entry in (run / CHECKPOINTS).iterdir():
        if entry.is_dir() and entry.name.startswith("."):  # a killed process wrote or removed it
            remove_folder(entry)


def remove_later(run: Path, step: int) -> None:
    """Remove the checkpoints after a step: they are damaged, and their steps are taken again."""
    for other in checkpoint_steps(run):
        if other > step:
            remove_folder(step_folder(run, other))
