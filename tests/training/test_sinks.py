"""Rows reach TensorBoard, W&B and Trackio, and no sink stops a training."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pvml.errors import PvmlError
from pvml.training.sinks import Sinks, open_sinks, require_sinks

ROW = {"step": 3, "loss": 2.5, "epoch": 0, "grad_norm": float("nan"), "by_position": [1.0, 2.0]}


class Recorder:
    """Stands for a tracking package: keeps every call, and can be told to fail."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch):
        self.calls: list[tuple[str, Any]] = []
        self.broken = ""
        module: Any = ModuleType(name)
        module.init = lambda **given: self._take("init", given)
        module.log = lambda row, step: self._take("log", (row, step))
        module.finish = lambda: self._take("finish", None)
        monkeypatch.setitem(sys.modules, name, module)
        self.module = module

    def _take(self, what: str, given: Any) -> Any:
        if what == self.broken:
            raise OSError("no route to host")
        self.calls.append((what, given))
        return self.module


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return Recorder("wandb", monkeypatch)


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder("trackio", monkeypatch)


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    """The real package: scalars by name and step, the config as text, rows taken again once."""
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sinks = open_sinks(["tensorboard"], "run", {"lr": 0.1}, tmp_path)
    for step in (1, 2, 3):
        sinks.log({**ROW, "loss": 5.0 - step}, step)
    sinks.close()
    sinks = open_sinks(["tensorboard"], "run", {"lr": 0.1}, tmp_path, step=2)
    sinks.log({**ROW, "loss": 1.5}, 3)
    sinks.close()

    events = tensorboard.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["epoch", "loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 4.0), (2, 3.0), (3, 1.5)]
    assert b'"lr": 0.1' in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_wandb_and_trackio_get_the_numbers(
    wandb: Recorder, trackio: Recorder, tmp_path: Path
) -> None:
    """Each is opened once under the run's name, gets finite numbers only, and is finished."""
    sinks = open_sinks(["wandb", "trackio", "wandb"], "my-run", {"lr": 0.1}, tmp_path)
    sinks.log(ROW, 3)
    sinks.close()
    sinks.close()

    assert wandb.calls == [
        (
            "init",
            {"project": "pvml", "name": "my-run", "config": {"lr": 0.1}, "dir": str(tmp_path)},
        ),
        ("log", ({"loss": 2.5, "epoch": 0.0}, 3)),
        ("finish", None),
    ]
    assert trackio.calls == [
        (
            "init",
            {"project": "pvml", "name": "my-run", "config": {"lr": 0.1}, "resume": "never"},
        ),
        ("log", ({"loss": 2.5, "epoch": 0.0}, 3)),
        ("finish", None),
    ]


def test_a_resumed_run_goes_on_in_trackio(trackio: Recorder, tmp_path: Path) -> None:
    """With steps taken before, the run of that name is continued."""
    open_sinks(["trackio"], "my-run", {}, tmp_path, step=5)

    assert trackio.calls[0][1]["resume"] == "allow"


def test_wandbs_project_is_the_users(
    wandb: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WANDB_PROJECT, where it is set, names the project."""
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    open_sinks(["wandb"], "my-run", {}, tmp_path)

    assert wandb.calls[0][1]["project"] == "mine"


def test_a_failing_sink_is_left_out(wandb: Recorder, trackio: Recorder, tmp_path: Path) -> None:
    """A sink that breaks warns once, naming itself and the step; the others go on."""
    sinks = open_sinks(["wandb", "trackio"], "my-run", {}, tmp_path)
    wandb.broken = "log"

    with pytest.warns(UserWarning, match="--log wandb failed at step 3 .*no route to host"):
        sinks.log(ROW, 3)
    sinks.log(ROW, 4)
    trackio.broken = "finish"
    with pytest.warns(UserWarning, match="--log trackio failed at its end"):
        sinks.close()

    assert [step for what, (_, step) in trackio.calls[1:] if what == "log"] == [3, 4]


def test_a_sink_that_does_not_open_closes_the_others(
    wandb: Recorder, trackio: Recorder, tmp_path: Path
) -> None:
    """What fails at once is an error with the reason; what was open by then is finished."""
    trackio.broken = "init"

    with pytest.raises(PvmlError, match="--log trackio cannot be opened: OSError: no route"):
        open_sinks(["wandb", "trackio"], "my-run", {}, tmp_path)
    assert wandb.calls[-1] == ("finish", None)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink whose package is not there is an error that says what to install."""
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(PvmlError, match=rf'--log {name} needs .* pip install "pvml\[{name}\]"'):
        require_sinks([name])


def test_an_unknown_sink_is_refused(tmp_path: Path) -> None:
    """A name outside the list is an error that gives the list."""
    with pytest.raises(PvmlError, match="no sink 'paper': --log takes tensorboard, wandb, trackio"):
        open_sinks(["paper"], "my-run", {}, tmp_path)


def test_no_sinks_take_anything() -> None:
    """Without sinks a row goes nowhere, and closing is nothing."""
    sinks = Sinks()
    sinks.log(ROW, 3)
    sinks.close()
