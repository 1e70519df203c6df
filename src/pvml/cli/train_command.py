"""From a run back to the `pvml train` command that makes it: `pvml runs command RUN`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from pvml.bundled import is_bundled
from pvml.cli.flags import parse
from pvml.cli.train import ModelFlags, TrainFlags
from pvml.config import Config
from pvml.errors import RunDirError
from pvml.runs.layout import read_config
from pvml.runs.naming import known_run
from pvml.training.args import TrainingArgs

_NESTED = ("model", "training")
_NOT_FROM_DATA = ("data", "run_dir", "name")
"""Flags that a run's record of its data has under another name, or does not have."""


@dataclass(frozen=True, kw_only=True)
class CommandFlags:
    """Print the `pvml train` command that makes a run like this one.

    Only what differs from the defaults of this version is in it, besides corpus, vocabulary, folder
    and name.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run directory that `pvml train` made, or its NAME in runs, or a bundled model (attn-1l,
    attn-2l, stories)."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml runs command` say; the exit code."""
    flags = parse(CommandFlags, "runs command", arguments)
    run = known_run(flags.run)
    recorded = recorded_flags(run)
    if is_bundled(run):
        recorded = replace(recorded, run_dir=TrainFlags.run_dir)
    print(command_line(recorded))
    return 0


def recorded_flags(run: Path) -> TrainFlags:
    """The flags that `pvml train` was given for a run, as far as they decide what it became.

    Raises: RunDirError if it is no run, is damaged, or was not made by `pvml train`; PvmlError for
    settings that this version does not know.
    """
    config = read_config(run)
    data = config.get("data", {})
    missing = [key for key in ("source", "tokenizer") if not isinstance(data.get(key), str)]
    if missing:
        raise RunDirError(
            f"{run} was not made by `pvml train`: its config says nothing of data "
            f"{' and '.join(missing)}, so there is no command for it"
        )
    path, cfg = run.resolve(), Config.from_dict(config["model"])
    known = {f.name for f in fields(TrainFlags)} - {*_NESTED, *_NOT_FROM_DATA}
    return TrainFlags(
        data=data["source"],
        run_dir=run.parent if run.name == path.name else path.parent,
        name=path.name,
        model=ModelFlags(**{**cfg.to_dict(), "d_vocab": ModelFlags.d_vocab}),
        training=TrainingArgs.from_dict(config["args"]),
        **{name: value for name, value in data.items() if name in known},
    )


def command_line(flags: TrainFlags) -> str:
    """`pvml train ...`, quoted for a shell, which gives these flags back when it is parsed."""
    return shlex.join(["pvml", "train", *train_arguments(flags)])


def train_arguments(flags: TrainFlags) -> list[str]:
    """The words after `pvml train` that give these flags: all that differ from the defaults."""
    always = {"data": flags.data, "tokenizer": flags.tokenizer, "name": flags.name}
    others = _changed(flags, TrainFlags(), leave_out=(*always, *_NESTED))
    shape = _changed(flags.model, ModelFlags(), leave_out=("d_head", "d_mlp"))
    model = flags.model.to_dict()
    if model["d_head"] * model["n_heads"] != model["d_model"]:  # else they follow from the width
        shape["d_head"] = model["d_head"]
    if model["d_mlp"] != 4 * model["d_model"]:
        shape["d_mlp"] = model["d_mlp"]
    return _words({**always, **others, **shape, **_changed(flags.training, TrainingArgs())})


def _changed(ours: Any, default: Any, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    return {
        f.name: getattr(ours, f.name)
        for f in fields(ours)
        if f.name not in leave_out and getattr(ours, f.name) != getattr(default, f.name)
    }


def _words(values: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif str(value).startswith("-"):  # which would be read as another flag
            words.append(f"--{flag}={value}")
        else:
            words += [f"--{flag}", str(value)]
    return words
