"""What a run's own files say of a model: the facts that its card tells."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pvml.bundled import bundled_folder, bundled_models
from pvml.runs.format import RunDir
from pvml.runs.json_object import read_json
from pvml.runs.layout import CONFIG, SUMMARY, run_of_checkpoint
from pvml.runs.naming import named_run

_RECIPE = ("optimizer", "lr", "schedule", "batch_size", "weight_decay", "precision", "seed")


@dataclass(frozen=True, kw_only=True)
class About:
    """Where a model is from. Everything is empty where nothing is known."""

    run: Path | None = None
    """The run directory."""
    trained: Mapping[str, str] = field(default_factory=dict)
    """How it came about: a name and a value for each fact."""
    grades: Mapping[str, str] = field(default_factory=dict)
    """How well it predicts held-out text, with units."""
    command: str = ""
    """The command that made the run."""
    repo: str = ""
    """The repository on the hub that the export is to be uploaded to."""


def run_behind(MODEL: str | os.PathLike[str]) -> tuple[Path, int | None] | None:
    """The run directory that a MODEL word means, and which step of it; None where it means none.

    The step is None for the run's last one.
    """
    path = named_run(MODEL)
    if not path.is_dir():
        name = os.fspath(MODEL)
        return (bundled_folder(name), None) if name in bundled_models() else None
    checkpoint = run_of_checkpoint(path)
    if checkpoint is not None:
        return checkpoint
    if not (path / CONFIG).is_file() or "args" not in read_json(path / CONFIG):
        return None
    return path, None


def about_run(path: Path, step: int | None = None, command: str = "") -> About:
    """What a run's files say of its model. step: of that checkpoint; None: of the last one.

    Raises: RunDirError if they are damaged.
    """
    run = RunDir.open(path)
    summary = read_json(path / SUMMARY) if (path / SUMMARY).is_file() else {}
    graded = [row for row in run.rows(having="accuracy") if step in (None, row.get("step"))]
    last: Mapping[str, Any] = graded[-1] if graded else {}
    took = step if step is not None else summary.get("steps", last.get("step"))
    data, args = run.data, run.args
    held_out = data.get("held_out") or data.get("held_out_documents")
    facts = {
        "steps": took,
        "tokens read": last.get("tokens") if step is not None else summary.get("tokens"),
        "text": data.get("source"),
        "documents": data.get("documents"),
        "fingerprint of the text": data.get("fingerprint"),
        "held out": held_out,
        "vocabulary": run.tokenizer_name,
        **{name: args.get(name) for name in _RECIPE},
        "time": _minutes(summary.get("seconds")) if step is None else None,
        "on": summary.get("device"),
        **{f"{name} version": value for name, value in run.config.get("versions", {}).items()},
    }
    grades = {
        "loss on held-out text": _figure(last.get("held_out_loss"), " nats per token"),
        "accuracy there": _figure(last.get("accuracy"), " of next tokens"),
        "bits per byte there": _figure(last.get("bits_per_byte"), ""),
    }
    return About(run=path, trained=_known(facts), grades=_known(grades), command=command)


def _known(facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        for name, value in facts.items()
        if value is not None
    }


def _figure(value: object, unit: str) -> str | None:
    return f"{value:.4f}{unit}" if isinstance(value, float) else None


def _minutes(seconds: object) -> str | None:
    return f"{seconds / 60:.1f} minutes" if isinstance(seconds, int | float) else None
