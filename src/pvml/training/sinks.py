"""Where a run's rows may go besides metrics.jsonl: TensorBoard, Weights & Biases, Trackio.

A copy for looking at. metrics.jsonl stays what is true, and is never waited for here.
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pvml.errors import PvmlError
from pvml.plain import is_finite

SinkName = Literal["tensorboard", "wandb", "trackio"]

_MODULES = {
    "tensorboard": "torch.utils.tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
}
_PROJECT = "pvml"


@dataclass(frozen=True)
class _Sink:
    name: str
    log: Callable[[dict[str, float], int], object]
    close: Callable[[], object]


class Sinks:
    """Open sinks. One that fails is left out from then on: the training never stops for it."""

    def __init__(self, sinks: Sequence[_Sink] = ()):
        self._sinks = list(sinks)

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Send a row's finite numbers, under their names; lists, texts and null stay behind."""
        scalars = {name: float(x) for name, x in row.items() if name != "step" and is_finite(x)}
        if scalars:
            self._each(lambda sink: sink.log(scalars, step), f"at step {step:,}")

    def close(self) -> None:
        """Write what is still on its way, and end the connections."""
        self._each(lambda sink: sink.close(), "at its end")
        self._sinks = []

    def _each(self, act: Callable[[_Sink], object], when: str) -> None:
        for sink in tuple(self._sinks):
            try:
                act(sink)
            except Exception as error:
                self._sinks.remove(sink)
                warnings.warn(
                    f"--log {sink.name} failed {when} and gets no more rows, metrics.jsonl has "
                    f"them all: {type(error).__name__}: {error}",
                    stacklevel=3,
                )


def require_sinks(names: Sequence[str]) -> None:
    """Nothing, if every sink's package can be imported.

    Raises: PvmlError naming the sinks that there are, or the extra to install.
    """
    for name in names:
        _package(name)


def open_sinks(
    names: Sequence[str],
    run_name: str,
    config: Mapping[str, Any],
    folder: Path,
    *,
    step: int = 0,
) -> Sinks:
    """Sinks by these names (tensorboard, wandb, trackio), each once, for one run.

    config: what is shown beside the curves; it must go into JSON. folder: the run's own, where
    TensorBoard and W&B write. step: how many were taken before; TensorBoard and Trackio go on with
    the run, W&B begins another of the same name. WANDB_PROJECT and WANDB_MODE, such as offline,
    are obeyed, and so are Trackio's own.

    Raises: PvmlError if a package is not installed, or a sink cannot be opened.
    """
    opened: list[_Sink] = []
    try:
        for name in dict.fromkeys(names):
            package = _package(name)
            try:
                opened.append(_OPEN[name](package, run_name, dict(config), folder, step))
            except Exception as error:
                raise PvmlError(
                    f"--log {name} cannot be opened: {type(error).__name__}: {error}"
                ) from error
    except PvmlError:
        Sinks(opened).close()
        raise
    return Sinks(opened)


def _package(name: str) -> Any:
    if name not in _MODULES:
        raise PvmlError(f"there is no sink {name!r}: --log takes {', '.join(_MODULES)}")
    try:
        return import_module(_MODULES[name])
    except ImportError as error:
        raise PvmlError(
            f"--log {name} needs a package that cannot be imported ({error}): "
            f'pip install "pvml[{name}]"'
        ) from error


def _tensorboard(
    package: Any, run_name: str, config: dict[str, Any], folder: Path, step: int
) -> _Sink:
    # rows that were logged past the last checkpoint come again
    again = step + 1 if step else None
    writer = package.SummaryWriter(str(folder / "tensorboard"), purge_step=again)
    writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```", step)

    def log(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return _Sink("tensorboard", log, writer.close)


def _wandb(package: Any, run_name: str, config: dict[str, Any], folder: Path, step: int) -> _Sink:
    project = os.environ.get("WANDB_PROJECT", _PROJECT)
    run = package.init(project=project, name=run_name, config=config, dir=str(folder))
    return _Sink("wandb", lambda scalars, step: run.log(scalars, step=step), run.finish)


def _trackio(package: Any, run_name: str, config: dict[str, Any], folder: Path, step: int) -> _Sink:
    resume = "allow" if step else "never"
    package.init(project=_PROJECT, name=run_name, config=config, resume=resume)
    return _Sink("trackio", lambda scalars, step: package.log(scalars, step=step), package.finish)


_OPEN: dict[str, Callable[[Any, str, dict[str, Any], Path, int], _Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
}
