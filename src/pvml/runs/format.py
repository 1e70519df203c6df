"""A run directory as an object: made, written to while a model trains, and read back.

What it holds, and under which names, is in `layout.py`.
"""

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch as t
from torch import Tensor, nn

from pvml.atomic import new_folder, place_copy, write_whole
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_device, pick_dtype
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.checkpoints import (
    checkpoint_weights,
    name_latest,
    read_newest,
    remove_later,
    remove_older,
    write_checkpoint,
)
from pvml.runs.json_object import read_json, to_json
from pvml.runs.jsonlines import JsonLines, Row
from pvml.runs.layout import (
    CHECKPOINTS,
    CONFIG,
    FORMAT,
    METRICS,
    SAMPLES,
    SEEDS_WEIGHTS,
    SUMMARY,
    TOKENIZER,
    VERSION,
    WEIGHTS,
    checkpoint_steps,
    read_config,
    step_folder,
)
from pvml.runs.lock import locked
from pvml.runs.place import out_of_the_way, put_back, require_free
from pvml.runs.soundness import require_sound
from pvml.runs.weights import build_model, read_processing, read_state_dict


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood: everything that training needs to go on from there."""

    step: int
    """Steps taken."""
    model: Transformer
    """The weights after that step."""
    state: dict[str, Any]
    """What the trainer gave `save_checkpoint`: tensors and plain values."""
    note: str = ""
    """A sentence for the reader, if later checkpoints are damaged and this one is used instead."""


class RunDir:
    """One run's folder. `create` makes a new one, `open` takes one that exists."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self._metrics = JsonLines(path / METRICS)
        self._samples = JsonLines(path / SAMPLES)
        self._locked = False

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
        config = new_config(cfg=cfg, tokenizer=tokenizer, args=args, data=data or {})
        with out_of_the_way(path) as clear, new_folder(path) as partial:
            (partial / CONFIG).write_text(to_json(config, indent=2) + "\n", encoding="utf-8")
            tokenizer.save(partial / TOKENIZER)
            (partial / CHECKPOINTS).mkdir()
            clear(overwrite)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunDir":
        """The run in a folder, ours or in the seeds' older form.

        One that a killed `--overwrite` left hidden is put back first.

        Raises: RunDirError if it is missing, is no run directory, is damaged, or is of a version
        that this program does not know.
        """
        path = Path(path)
        put_back(path)
        return cls(path, read_config(path))

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
            raise RunDirError(f"{self.path / CONFIG}, model: {error}") from error

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
        """The run's tokenizer; GPT-2's for the seeds' form, which stored none, unless one is there.

        Raises: RunDirError naming the file if it is missing or damaged.
        """
        if self.is_seeds_form and not (self.path / TOKENIZER).exists():
            return Tokenizer.gpt2()
        try:
            return Tokenizer.load(self.path / TOKENIZER)
        except PvmlError as error:
            raise RunDirError(str(error)) from error

    def load_model(
        self,
        device: str | t.device | None = None,
        dtype: str | t.dtype = "float32",
        *,
        step: int | None = None,
    ) -> Transformer:
        """The model with the weights of the last checkpoint, in evaluation mode.

        step: that step's checkpoint instead; `checkpoints` says which there are.

        Raises: RunDirError if there are none yet, or they are damaged, or not this model's.
        """
        weights, path = self.weights(step)
        model = build_model(self.cfg, weights, str(path), pick_device(device), pick_dtype(dtype))
        if not self.is_seeds_form:
            model.processing = read_processing(path)
        return model

    def weights(self, step: int | None = None) -> tuple[dict[str, Tensor], Path]:
        """The weights of the last checkpoint, or of that step's, as their file has them; the file.

        They are mapped, not read, until they are used.

        Raises: RunDirError if there are none yet, or they are damaged.
        """
        if step is not None:
            weights = checkpoint_weights(self.path, step)
            return weights, step_folder(self.path, step) / WEIGHTS
        path = self.path / (SEEDS_WEIGHTS if self.is_seeds_form else WEIGHTS)
        if not path.exists():
            raise RunDirError(f"{self.path} holds no weights yet: there is no {path.name}")
        return read_state_dict(path), path

    def log(self, row: Mapping[str, Any]) -> None:
        """Add a row to the metrics; NaN and infinity become null.

        Raises: RunDirError if the disk refuses; the last checkpoint stays.
        """
        with self._telling_what_stays():
            self._metrics.append(row)

    def rows(self, having: str | None = None) -> Iterator[Row]:
        """The metrics in order: all rows, or those with this key. A torn last line is left out."""
        return (row for row in self._metrics if having is None or having in row)

    def log_sample(self, row: Mapping[str, Any]) -> None:
        """Add a row to the samples.

        Raises: RunDirError if the disk refuses; the last checkpoint stays.
        """
        with self._telling_what_stays():
            self._samples.append(row)

    def samples(self) -> Iterator[Row]:
        """The samples in order. A torn last line is left out."""
        return iter(self._samples)

    def cut_logs(self, step: int) -> None:
        """Cut both logs before the first row of a step after this one, and any torn line."""
        for log in (self._metrics, self._samples):
            log.keep_while(lambda row: row.get("step", 0) <= step)

    def checkpoints(self) -> list[int]:
        """The steps whose checkpoints are there, in order: the last two, and those that are kept.

        Whether they are whole is seen when one is loaded.
        """
        return checkpoint_steps(self.path)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is anything to resume from; a run killed at its start has nothing yet."""
        return bool(self.checkpoints())

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint; None if there is none yet."""
        return max(self.checkpoints(), default=None)

    def save_checkpoint(
        self, step: int, model: nn.Module, state: Mapping[str, Any], *, keep: bool = False
    ) -> None:
        """Make this the run's last checkpoint; the one before stays, those before it are removed.

        state: what training needs besides the weights, tensors and plain values only. keep: never
        remove it.

        Raises: RunDirError if there is a checkpoint of this step or a later one, or if the disk
        refuses; the checkpoint before is then still the last.
        """
        before = self.latest_step()
        if before is not None and step <= before:
            raise RunDirError(
                f"{self.path} has a checkpoint at step {before}, so step {step} cannot follow it: "
                f"--resume continues the run from there"
            )
        with self._telling_what_stays():
            for log in (self._metrics, self._samples):
                log.sync()
            write_checkpoint(self.path, step, model, state, keep=keep)
            self._point_to(step)
        remove_older(self.path)

    def load_checkpoint(self, device: str | t.device | None = None) -> Checkpoint:
        """The newest checkpoint that is whole; its note tells if later ones are damaged.

        Raises: RunDirError if there is none, naming what is missing or damaged in each.
        """
        saved = read_newest(self.path)
        where = str(step_folder(self.path, saved.step) / WEIGHTS)
        model = build_model(self.cfg, saved.weights, where, pick_device(device))
        return Checkpoint(saved.step, model, saved.state, saved.note)

    def rewind(self, step: int) -> None:
        """Make the run what it was when this step's checkpoint had been written.

        Later checkpoints, which are damaged, and later rows of the logs are removed; the weights at
        the top are those of the step. It may be stopped anywhere, and then be done again.

        Raises: RunDirError, before anything is changed, if another process trains the run or a row
        of its logs is damaged; or if the disk refuses, and the checkpoint stays.
        """
        with self.lock(), self._telling_what_stays():
            require_sound(self._metrics, self._samples, step)
            if step in self.checkpoints():
                self._point_to(step)
            remove_later(self.path, step)
            self.cut_logs(step)

    def _point_to(self, step: int) -> None:
        place_copy(step_folder(self.path, step) / WEIGHTS, self.path / WEIGHTS)
        name_latest(self.path, step)

    @contextmanager
    def _telling_what_stays(self) -> Iterator[None]:
        """Within it, the message of an error ends with what there is to go on from."""
        try:
            yield
        except RunDirError as error:
            step = self.latest_step()
            stays = (
                "There is no checkpoint yet"
                if step is None
                else f"The checkpoint of step {step:,} stays, and --resume goes on from it"
            )
            raise RunDirError(f"{error}. {stays}") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Within it no other process, and no other RunDir, can lock this run. It may be nested.

        A process that dies leaves no lock behind. See `pvml.runs.lock` for where there are none.

        Raises: RunDirError naming the process that trains the run, if another run was put in its
        place meanwhile, or if the disk refuses.
        """
        if self._locked:
            yield
            return
        with locked(self.path):
            if read_config(self.path) != self.config:
                raise RunDirError(
                    f"{self.path} is another run now than the one that was opened: another "
                    f"process has overwritten it. Give the new run another --name"
                )
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary: the run is finished from here on.

        Raises: RunDirError if the disk refuses; the last checkpoint stays.
        """
        with self._telling_what_stays():
            write_whole(self.path / SUMMARY, to_json(summary, indent=2) + "\n")

    @property
    def finished(self) -> bool:
        return (self.path / SUMMARY).exists()

    def summary(self) -> dict[str, Any]:
        """What `finish` wrote.

        Raises: RunDirError if the run is not finished, or the file is damaged.
        """
        if not self.finished:
            raise RunDirError(f"{self.path} is not finished: it holds no {SUMMARY}")
        return read_json(self.path / SUMMARY)


def new_config(
    *, cfg: Config, tokenizer: Tokenizer, args: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
    """What the config.json of a run that is made now says."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "args": dict(args),
        "model": cfg.to_dict(),
        "tokenizer": tokenizer.name,
        "data": dict(data),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    try:
        pvml = version("pvml")
    except PackageNotFoundError:  # run from its source, not installed
        pvml = "unknown"
    return {"pvml": pvml, "torch": t.__version__, "python": platform.python_version()}
