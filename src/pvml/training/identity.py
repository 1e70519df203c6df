"""What a run is: its settings, its rows, its held-out texts.

A checkpoint keeps it, to be told from another run's, and from one whose data changed meanwhile.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pvml.data.rows import Rows
from pvml.data.sources import fingerprint_of
from pvml.errors import RunDirError
from pvml.runs.compare import ABSENT, flat_settings
from pvml.runs.format import RunDir
from pvml.training.args import TrainingArgs


def identity_of(run: RunDir, rows: Rows, held_out: Sequence[str]) -> dict[str, Any]:
    """The entries of a checkpoint's training state that say whose it is: plain values only."""
    return {
        "rows": rows.identity,
        "held_out": fingerprint_of(held_out),
        # an older config lacks what has been added since: read as the trainer reads it
        "settings": {
            "args": TrainingArgs.from_dict(run.args).to_dict(),
            "model": dict(run.config["model"]),
        },
    }


def require_own(state: Mapping[str, Any], identity: Mapping[str, Any], run: RunDir) -> None:
    """Nothing, if a checkpoint's training state is of the run that wants to go on from it.

    What a checkpoint of an older version does not say is not asked for, but for the rows.

    Raises: RunDirError naming what differs.
    """
    rows, held_out, settings = (state.get(key) for key in ("rows", "held_out", "settings"))
    if not isinstance(rows, str):
        raise damaged_state(run, "it names no rows")
    if rows != identity["rows"]:
        raise RunDirError(
            f"{run.path} was trained on other rows ({rows}) than those given "
            f"({identity['rows']}): give the same data, limit and tokenizer"
        )
    if settings is not None:
        _require_same_settings(settings, identity["settings"], run)
    if held_out is not None and held_out != identity["held_out"]:
        raise RunDirError(
            f"{run.path} was graded on other held-out documents than those given, so its grades "
            f"would not compare: give the same held-out text"
        )


def seconds_of(state: Mapping[str, Any]) -> float:
    """How long a run was trained before this checkpoint.

    Raises: KeyError, TypeError or ValueError if the state does not tell.
    """
    seconds = float(state["seconds"])
    if not 0 <= seconds < math.inf:
        raise ValueError(f"it was trained for {seconds} seconds")
    return seconds


def damaged_state(run: RunDir, what: object) -> RunDirError:
    """The error for a training state that cannot be used, for whoever raises it."""
    return RunDirError(
        f"the training state in {run.path}'s last checkpoint is damaged ({what}): "
        f"put its files back, or start anew with --overwrite"
    )


def _require_same_settings(kept: object, wanted: Mapping[str, Any], run: RunDir) -> None:
    if not isinstance(kept, Mapping):
        raise damaged_state(run, f"its settings are {kept!r}")
    ours, theirs = flat_settings(wanted), flat_settings(kept)
    differing = [
        f"{name} {theirs.get(name, ABSENT)} (the run: {ours.get(name, ABSENT)})"
        for name in [*ours, *(name for name in theirs if name not in ours)]
        if ours.get(name) != theirs.get(name)
    ]
    if differing:
        raise RunDirError(
            f"the last checkpoint in {run.path} was written by a run of other settings: "
            f"{', '.join(differing)}. Put the run's own checkpoints and config.json back, or start "
            f"anew with --overwrite"
        )
