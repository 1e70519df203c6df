"""The run directory, `runs/<name>/`: what is in it and under which names. It needs no torch.

The only file that knows these names. Everything but the two logs is written whole or not at all.

    config.json        format, version, args, model, tokenizer's name, data, versions
    tokenizer.json     the whole tokenizer
    model.safetensors  the weights of the last checkpoint
    checkpoints/       `step-N/` for the last two and for those that are kept; `latest` names the
                       last one, for people and scripts
    metrics.jsonl      a row for each step and each epoch
    samples.jsonl      a sample for each epoch
    summary.json       written last: it makes the run a finished one
    lock               which process trains it

    checkpoints/step-N/model.safetensors  the weights after step N
    checkpoints/step-N/training.pt        what training needs besides
    checkpoints/step-N/checksums.json     size and SHA-256 of both
    checkpoints/step-N/keep               empty; while it is there, the checkpoint is never removed

The seeds' older form, `config.json` with `args` and `model` beside a `model.pt`, can be read.
"""

from pathlib import Path
from typing import Any

from pvml.errors import RunDirError
from pvml.runs.json_object import read_json

FORMAT = "pvml run"
VERSION = 1

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
SEEDS_WEIGHTS = "model.pt"
CHECKPOINTS = "checkpoints"
LATEST = "latest"
TRAINING = "training.pt"
CHECKSUMS = "checksums.json"
KEEP = "keep"
METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"
LOCK = "lock"

_STEP = "step-"


def read_config(path: Path) -> dict[str, Any]:
    """What the config.json of a run directory says, ours or in the seeds' older form.

    Raises: RunDirError if it is missing or unreadable, is no run directory, is damaged, or is of a
    version that this program does not know.
    """
    try:
        if not path.is_dir():
            there = "is not a folder" if path.exists() else "does not exist"
            raise RunDirError(f"{path} {there}: give a run directory, such as runs/NAME")
        if not (path / CONFIG).exists():
            raise RunDirError(f"{path} is not a run directory: it holds no {CONFIG}")
    except OSError as error:
        raise RunDirError(f"{path} cannot be looked into: {error.strerror or error}") from error
    config = read_json(path / CONFIG)
    if not isinstance(config.get("model"), dict) or not isinstance(config.get("args"), dict):
        raise RunDirError(
            f"{path} is not a run directory: its {CONFIG} lacks the entries args and model"
        )
    if not isinstance(config.get("data", {}), dict):
        raise RunDirError(f"{path / CONFIG} is damaged: its entry data is no JSON object")
    if "format" in config and (config["format"], config.get("version")) != (FORMAT, VERSION):
        raise RunDirError(
            f"{path / CONFIG} is of format {config['format']!r}, version "
            f"{config.get('version')!r}; this program reads {FORMAT!r}, version {VERSION}. "
            f"Use the program that wrote it, or a newer one"
        )
    return config


def step_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies in a run directory."""
    return run / CHECKPOINTS / f"{_STEP}{step}"


def step_of(folder: Path) -> int | None:
    """The step whose checkpoint a folder is by its name; None for another name."""
    number = folder.name.removeprefix(_STEP)
    plain = number.isascii() and number.isdigit() and folder.name == f"{_STEP}{int(number)}"
    return int(number) if plain else None


def checkpoint_steps(run: Path) -> list[int]:
    """The steps that have a checkpoint folder, in order. Whether one is whole is not looked at."""
    try:
        steps = [step_of(entry) for entry in (run / CHECKPOINTS).iterdir() if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(step for step in steps if step is not None)


def run_of_checkpoint(folder: Path) -> tuple[Path, int] | None:
    """The run directory and the step of a path such as runs/x/checkpoints/step-500, or None."""
    folder = folder.resolve()
    step, run = step_of(folder), folder.parent.parent
    inside = folder.parent.name == CHECKPOINTS and (run / CONFIG).is_file()
    return (run, step) if inside and step is not None else None
