"""What a listing tells of a run, read from a few small files without torch; never fatal."""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from pvml.errors import RunDirError
from pvml.runs.checksums import last_fault
from pvml.runs.json_object import read_json
from pvml.runs.jsonlines import JsonLines, Row
from pvml.runs.layout import (
    CONFIG,
    METRICS,
    SEEDS_WEIGHTS,
    SUMMARY,
    WEIGHTS,
    checkpoint_steps,
    read_config,
)
from pvml.runs.lock import lock_holder

State = Literal["finished", "running", "stopped", "no checkpoint", "damaged"]

_TAILS = (1 << 16, 1 << 20, 1 << 23)
"""Bytes at the metrics' end in which the last epoch's row is looked for, one after the other."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run at a glance. None stands for what its files do not say."""

    name: str
    path: str
    state: State
    status: str
    """The state in plain words: how far it came, or what is damaged."""
    parameters: int | None = None
    """All of the model's."""
    n_ctx: int | None = None
    tokenizer: str | None = None
    data: str | None = None
    """The corpus."""
    steps: int | None = None
    """Steps taken."""
    planned_steps: int | None = None
    tokens: int | None = None
    """Tokens read."""
    held_out_loss: float | None = None
    """Nats per token, at the last epoch's end."""
    bits_per_byte: float | None = None
    accuracy: float | None = None
    """Share of held-out next tokens that were right."""
    seconds: float | None = None
    held_out: str = ""
    """What was held out, told apart; runs that agree in it were graded on the same text."""
    learnt_from: str = ""
    """What was trained on, told apart: a vocabulary bpe:N was learnt from it."""

    @property
    def vocabulary(self) -> str | None:
        """The tokenizer, told apart: bpe:N is another one where it was learnt from other text."""
        if self.tokenizer == "gpt2":
            return self.tokenizer
        return f"{self.tokenizer} {self.learnt_from}"


def is_run(path: Path) -> bool:
    """Whether a folder is a run, damaged or not: it has a config.json, and no other program's.

    A folder that cannot be looked into counts as one: it is told, and hides no other.
    """
    try:
        return "model_type" not in read_json(path / CONFIG)
    except RunDirError:
        try:
            return (path / CONFIG).exists()
        except OSError:  # a folder that this user may not look into
            return True


def read_facts(path: Path) -> RunFacts:
    """The facts of the run in a folder; what is damaged is told in them."""
    name, where = path.resolve().name, str(path)
    try:
        config = read_config(path)
    except (RunDirError, OSError) as damage:
        return RunFacts(name=name, path=where, state="damaged", status=_told(damage, path))
    known: dict[str, Any] = {"name": name, "path": where, **_settings(config)}
    try:
        if (path / SUMMARY).exists():
            known |= _ended(read_json(path / SUMMARY))
        else:
            known |= _so_far(JsonLines(path / METRICS))
            known["parameters"] = _count_parameters(path / WEIGHTS)
        state, status = _state(path, config, known)
    except (RunDirError, OSError) as damage:
        state, status = "damaged", _told(damage, path)
    return RunFacts(**known, state=state, status=status)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    data, args, model = config.get("data", {}), config["args"], config["model"]
    corpus, graded_on = data.get("fingerprint"), data.get("held_out_fingerprint")
    split = [data.get("held_out_documents"), args.get("split_seed", args.get("seed"))]
    sides = repr([corpus, *split])
    return {
        "n_ctx": _whole(model.get("n_ctx")),
        "tokenizer": str(config.get("tokenizer", "gpt2")),
        "data": str(data["source"]) if "source" in data else None,
        "planned_steps": planned_steps(args, data),
        "held_out": sides if graded_on is None else repr(graded_on),
        "learnt_from": sides if graded_on is None else repr(corpus),
    }


def planned_steps(args: Mapping[str, Any], data: Mapping[str, Any]) -> int | None:
    """How many steps a run of these settings takes, if they say it."""
    sizes = [args.get("epochs"), args.get("max_steps_per_epoch"), args.get("batch_size")]
    epochs, most, batch, rows = (_whole(size) for size in (*sizes, data.get("rows")))
    if epochs is None or not batch or rows is None or most is None:
        return None
    return epochs * min(most, -(-rows // batch))


def _ended(summary: Mapping[str, Any]) -> dict[str, Any]:
    parameters = summary.get("parameters")
    return {
        "parameters": _whole(parameters.get("total")) if isinstance(parameters, dict) else None,
        "steps": _whole(summary.get("steps")),
        "tokens": _whole(summary.get("tokens")),
        "held_out_loss": _number(summary.get("final_held_out_loss")),
        "bits_per_byte": _number(summary.get("bits_per_byte")),
        "accuracy": _number(summary.get("final_accuracy")),
        "seconds": _number(summary.get("seconds")),
    }


def _so_far(metrics: JsonLines) -> dict[str, Any]:
    rows: list[Row] = []
    for n_bytes in _TAILS:
        rows = metrics.tail(n_bytes)
        if any("accuracy" in row for row in rows) or n_bytes >= metrics.size():
            break
    last = rows[-1] if rows else {}
    graded = next((row for row in reversed(rows) if "accuracy" in row), {})
    return {
        "steps": _whole(last.get("step")) or 0,
        "tokens": _whole(last.get("tokens")) or 0,
        "seconds": _number(last.get("seconds")),
        **{key: _number(graded.get(key)) for key in ("held_out_loss", "bits_per_byte", "accuracy")},
    }


def _state(path: Path, config: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[State, str]:
    planned, steps = known["planned_steps"], known["steps"]
    at = f"step {steps or 0:,}" + (f" of {planned:,}" if planned is not None else "")
    holder = lock_holder(path)
    if holder is not None:
        return "running", f"running, at {at}, {holder}"
    finished = (path / SUMMARY).exists()
    if "format" not in config and (path / SEEDS_WEIGHTS).exists():
        return "finished", "finished" if finished else "the seeds' older form: only weights"
    checkpoints = checkpoint_steps(path)
    if not checkpoints and not finished:
        return "no checkpoint", "no checkpoint"
    fault = last_fault(path)
    if fault is not None:
        return "damaged", f"damaged: in the checkpoint of step {checkpoints[-1]:,} {fault}"
    if not (path / WEIGHTS).exists():
        return "damaged", f"damaged: {WEIGHTS} is missing"
    if finished:
        return "finished", "finished"
    saved = "" if checkpoints[-1] == steps else f", checkpoint at {checkpoints[-1]:,}"
    return "stopped", f"stopped at {at}{saved}"


def _told(damage: Exception, path: Path) -> str:
    return f"damaged: {damage}".replace(f"{path}{os.sep}", "")


def _count_parameters(path: Path) -> int | None:
    """The numbers in a file of weights, by its header."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            shapes: list[list[int]] = [
                file.get_slice(name).get_shape()
                for name in file.keys()  # noqa: SIM118  # it is no mapping
            ]
    except SafetensorError as error:
        raise RunDirError(f"{path.name} is damaged or cut short: {error}") from error
    return sum(math.prod(shape) for shape in shapes)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # a whole number may be too large for a float
    return float(value) if abs(value) <= sys.float_info.max else None
