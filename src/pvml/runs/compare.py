"""Runs beside one another: which figures may be compared, and which settings differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pvml.runs.facts import RunFacts
from pvml.runs.json_object import to_json
from pvml.runs.layout import read_config

_SETTINGS = ("args", "model", "tokenizer", "data", "versions")
ABSENT = "(not recorded)"


def notes(runs: Sequence[RunFacts]) -> list[str]:
    """What a reader must know before comparing these runs, as sentences."""
    told = []
    if not per_token_compares(runs):
        told.append(
            "The tokenizers differ, so loss and accuracy per token do not compare and are left "
            "out: compare bits per byte."
        )
    if len({run.n_ctx for run in runs}) > 1:
        told.append("The windows (n_ctx) differ: a longer one makes an easier task.")
    if len({run.held_out for run in runs}) > 1:
        told.append("The held-out documents differ, so all grades are of different texts.")
    if any(run.state != "finished" for run in runs):
        told.append("Not all are finished: an unfinished run's grades are its last epoch's.")
    return told


def per_token_compares(runs: Sequence[RunFacts]) -> bool:
    """Whether losses and accuracies per token mean the same for all: they share a tokenizer."""
    return len({run.vocabulary for run in runs}) == 1


def differences(a: Path, b: Path) -> list[tuple[str, str, str]]:
    """Every setting that differs between two runs: its name, and both values as JSON.

    Raises: RunDirError if one of them is no run, or is damaged.
    """
    ours, theirs = flat_settings(read_config(a)), flat_settings(read_config(b))
    return [
        (name, ours.get(name, ABSENT), theirs.get(name, ABSENT))
        for name in [*ours, *(name for name in theirs if name not in ours)]
        if ours.get(name) != theirs.get(name)
    ]


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """A config's settings by dotted names such as `args.lr`, as JSON."""
    return {
        name: value
        for part in _SETTINGS
        if part in config
        for name, value in _flat(part, config[part])
    }


def _flat(name: str, value: object) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return [(name, to_json(value))]
    return [pair for key, entry in value.items() for pair in _flat(f"{name}.{key}", entry)]
