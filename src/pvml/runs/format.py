"""The run directory, `runs/<name>/`: what is in it, under which names, and how it is read back.

The only file that knows these names. Everything but the two logs is written whole or not at all.

    config.json        format, version, args, model, tokenizer's name, data, versions
    tokenizer.json     the whole tokenizer
    model.safetensors  the weights of the last checkpoint
    checkpoints/step-N/{model.safetensors,training.pt}, and `latest`, which names the folder to use
    metrics.jsonl      a row for each step and each epoch
    samples.jsonl      a sample for each epoch
    summary.json       written last: it makes the run a finished one

The seeds' older form, `config.json` with `args` and `model` beside a `model.pt`, can be read.
"""

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch as t
from torch import nn

from pvml.atomic import new_folder, place_copy, write_whole
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_device, pick_dtype
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.json_object import read_json, to_json
from pvml.runs.jsonlines import JsonLines, Row
from pvml.runs.weights import (
    build_model,
    read_pickle,
    read_seeds_weights,
    read_weights,
    save_pickle,
    save_weights,
)

FORMAT = "pvml run"
VERSION = 1

_CONFIG = "config.json"
_TOKENIZER = "tokenizer.json"
_WEIGHTS = "model.safetensors"
_SEEDS_WEIGHTS = "model.pt"
_CHECKPOINTS = "checkpoints"
_LATEST = "latest"
_TRAINING = "training.pt"
_METRICS = "metrics.jsonl"
_SAMPLES = "samples.jsonl"
_SUMMARY = "summary.json"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood: everything that training needs to go on from there."""

    step: int
    """Steps taken."""
    model: Transformer
    """The weights after that step."""
    state: dict[str, Any]
    """What the trainer gave `save_checkpoint`: tensors and plain values."""


class RunDir:
    """One run's folder. `create` makes a new one, `open` takes one that exists."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self._metrics = JsonLines(path / _METRICS)
        self._samples = JsonLines(path / _SAMPLES)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        cfg: Config,
        tokenizer: Tokenizer,
        args: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> "RunDir":
        """A new run directory with its config and tokenizer; the folders above it are made too.

        args: how it is trained, the fields of `TrainingArgs`. data: source, fingerprint, facts of
        the split. overwrite: remove a run that is there, once the new one is ready.

        Raises: RunDirError if something is there already, or if the disk refuses.
        """
        path = Path(path)
        require_free(path, overwrite)
        config = {
            "format": FORMAT,
            "version": VERSION,
            "args": dict(args),
            "model": cfg.to_dict(),
            "tokenizer": tokenizer.name,
            "data": dict(data or {}),
            "versions": _versions(),
        }
        with _out_of_the_way(path) as clear, new_folder(path) as partial:
            (partial / _CONFIG).write_text(to_json(config, indent=2) + "\n", encoding="utf-8")
            tokenizer.save(partial / _TOKENIZER)
            (partial / _CHECKPOINTS).mkdir()
            clear(overwrite)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunDir":
        """The run in a folder, ours or in the seeds' older form.

        Raises: RunDirError if it is missing, is no run directory, is damaged, or is of a version
        that this program does not know.
        """
        path = Path(path)
        if not path.is_dir():
            there = "is not a folder" if path.exists() else "does not exist"
            raise RunDirError(f"{path} {there}: give a run directory, such as runs/NAME")
        if not (path / _CONFIG).exists():
            raise RunDirError(f"{path} is not a run directory: it holds no {_CONFIG}")
        config = read_json(path / _CONFIG)
        if not isinstance(config.get("model"), dict) or not isinstance(config.get("args"), dict):
            raise RunDirError(
                f"{path} is not a run directory: its {_CONFIG} lacks the entries args and model"
            )
        if not isinstance(config.get("data", {}), dict):
            raise RunDirError(f"{path / _CONFIG} is damaged: its entry data is no JSON object")
        if "format" in config and (config["format"], config.get("version")) != (FORMAT, VERSION):
            raise RunDirError(
                f"{path / _CONFIG} is of format {config['format']!r}, version "
                f"{config.get('version')!r}; this program reads {FORMAT!r}, version {VERSION}. "
                f"Use the program that wrote it, or a newer one"
            )
        return cls(path, config)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def is_seeds_form(self) -> bool:
        """Whether the seeds' code wrote it: weights in a pickle, nothing to resume from."""
        return "format" not in self.config

    @property
    def cfg(self) -> Config:
        """The model's shape.

        Raises: RunDirError for fields that no model of this version has.
        """
        try:
            return Config.from_dict(self.config["model"])
        except PvmlError as error:
            raise RunDirError(f"{self.path / _CONFIG}, model: {error}") from error

    @property
    def args(self) -> dict[str, Any]:
        """How the run is trained: the fields of `TrainingArgs`."""
        return dict(self.config["args"])

    @property
    def data(self) -> dict[str, Any]:
        """What the run is trained on, as it was given to `create`."""
        return dict(self.config.get("data", {}))

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name ("gpt2" or "bpe:N"), without reading it."""
        return str(self.config.get("tokenizer", "gpt2"))

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer; GPT-2's for the seeds' form, which stored none.

        Raises: RunDirError naming the file if it is missing or damaged.
        """
        if self.is_seeds_form:
            return Tokenizer.gpt2()
        try:
            return Tokenizer.load(self.path / _TOKENIZER)
        except PvmlError as error:
            raise RunDirError(str(error)) from error

    def load_model(
        self, device: str | t.device | None = None, dtype: str | t.dtype = "float32"
    ) -> Transformer:
        """The model with the weights of the last checkpoint, in evaluation mode.

        Raises: RunDirError if there are none yet, or they are damaged, or not this model's.
        """
        path = self.path / (_SEEDS_WEIGHTS if self.is_seeds_form else _WEIGHTS)
        if not path.exists():
            raise RunDirError(f"{self.path} holds no weights yet: there is no {path.name}")
        weights = read_seeds_weights(path) if self.is_seeds_form else read_weights(path)
        return build_model(self.cfg, weights, str(path), pick_device(device), pick_dtype(dtype))

    def log(self, row: Mapping[str, Any]) -> None:
        """Add a row to the metrics; NaN and infinity become null."""
        self._metrics.append(row)

    def rows(self, having: str | None = None) -> Iterator[Row]:
        """The metrics in order: all rows, or those with this key. A torn last line is left out."""
        return (row for row in self._metrics if having is None or having in row)

    def log_sample(self, row: Mapping[str, Any]) -> None:
        """Add a row to the samples."""
        self._samples.append(row)

    def samples(self) -> Iterator[Row]:
        """The samples in order. A torn last line is left out."""
        return iter(self._samples)

    def cut_logs(self, step: int) -> None:
        """Cut both logs before the first row of a step after this one, and any torn line."""
        for log in (self._metrics, self._samples):
            log.keep_while(lambda row: row.get("step", 0) <= step)

    def latest_step(self) -> int | None:
        """The step of the checkpoint that `latest` names; None if there is none yet.

        Raises: RunDirError if `latest` is damaged.
        """
        path = self.path / _CHECKPOINTS / _LATEST
        if not path.exists():
            return None
        word, _, number = path.read_text("utf-8", errors="replace").strip().partition("-")
        if word != "step" or not (number.isascii() and number.isdigit()):
            raise RunDirError(f"{path} is damaged: expected step-N, such as step-500")
        return int(number)

    def save_checkpoint(self, step: int, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Make this the run's last checkpoint; the one before is removed once it is whole.

        state: what training needs besides the weights, tensors and plain values only.

        Raises: RunDirError if there is a checkpoint of this step or a later one, or if the disk
        refuses; the checkpoint before is then still the last.
        """
        before = self.latest_step()
        if before is not None and step <= before:
            raise RunDirError(
                f"{self.path} has a checkpoint at step {before}, so step {step} cannot follow it: "
                f"--resume continues the run from there"
            )
        for log in (self._metrics, self._samples):
            log.sync()
        folder = self._folder(step)
        shutil.rmtree(folder, ignore_errors=True)  # whole, but killed before `latest` named it
        with new_folder(folder) as partial:
            save_weights(model, partial / _WEIGHTS)
            save_pickle(dict(state), partial / _TRAINING)
        place_copy(folder / _WEIGHTS, self.path / _WEIGHTS)
        write_whole(self.path / _CHECKPOINTS / _LATEST, f"step-{step}\n")
        for other in (self.path / _CHECKPOINTS).iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def load_checkpoint(self, device: str | t.device | None = None) -> Checkpoint:
        """The last checkpoint.

        Raises: RunDirError if there is none, or naming the file that is missing or damaged.
        """
        step = self.latest_step()
        if step is None:
            raise RunDirError(
                f"{self.path} holds no checkpoint to go on from: --overwrite starts it anew"
            )
        folder = self._folder(step)
        weights = read_weights(folder / _WEIGHTS)
        model = build_model(self.cfg, weights, str(folder / _WEIGHTS), pick_device(device))
        state = read_pickle(folder / _TRAINING)
        if not isinstance(state, dict):
            raise RunDirError(f"{folder / _TRAINING} is damaged: it holds no training state")
        return Checkpoint(step, model, state)

    def _folder(self, step: int) -> Path:
        return self.path / _CHECKPOINTS / f"step-{step}"

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary: the run is finished from here on."""
        write_whole(self.path / _SUMMARY, to_json(summary, indent=2) + "\n")

    @property
    def finished(self) -> bool:
        return (self.path / _SUMMARY).exists()

    def summary(self) -> dict[str, Any]:
        """What `finish` wrote.

        Raises: RunDirError if the run is not finished, or the file is damaged.
        """
        if not self.finished:
            raise RunDirError(f"{self.path} is not finished: it holds no {_SUMMARY}")
        return read_json(self.path / _SUMMARY)


def require_free(path: Path, overwrite: bool) -> None:
    """Nothing, if a run may be made here. Only our own run directories are ever overwritten.

    Raises: RunDirError that says what is there, and what to do.
    """
    if not path.exists() and not path.is_symlink():
        return
    if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
        return
    if path.is_symlink() or not _is_ours(path):
        raise RunDirError(
            f"{path} exists and is not a run directory of this program, so it is left alone: "
            f"--name gives the run another name"
        )
    if not overwrite:
        raise RunDirError(
            f"{path} already holds a run: --resume continues it, --overwrite removes it and "
            f"starts anew, --name gives the new run another name"
        )


@contextmanager
def _out_of_the_way(path: Path) -> Iterator[Callable[[bool], None]]:
    """A call that moves what is at `path` aside: removed on leaving, put back on failure."""
    aside = path.with_name(f".{path.name}.old-{os.getpid()}")

    def clear(overwrite: bool) -> None:
        require_free(path, overwrite)  # again: another process may have made a run here meanwhile
        if path.exists():
            os.rename(path, aside)

    try:
        yield clear
    except BaseException:
        if aside.exists() and not path.exists():
            os.rename(aside, path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    with suppress(RunDirError):
        return read_json(path / _CONFIG).get("format") == FORMAT
    return False


def _versions() -> dict[str, str]:
    try:
        pvml = version("pvml")
    except PackageNotFoundError:  # run from its source, not installed
        pvml = "unknown"
    return {"pvml": pvml, "torch": t.__version__, "python": platform.python_version()}
