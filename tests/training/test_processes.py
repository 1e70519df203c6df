"""Two processes and one: the same losses to float32 rounding, and each resumes the other's run."""

import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
import torch as t

from pvml.errors import PvmlError
from pvml.runs.format import RunDir
from pvml.training.processes import Processes, joined
from pvml.training.trainer import Trainer


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    path = root / "tests" / "training" / "two_processes.py"
    spec = util.spec_from_file_location("two_processes", path)
    assert spec and spec.loader
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def together(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have trained every recipe."""
    folder = tmp_path_factory.mktemp("together")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*launch, str(script.__file__), str(folder)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return folder


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in RunDir.open(folder).rows("loss")]


@pytest.mark.parametrize("name", ["ddp", "muon", "fsdp"])
def test_two_processes_take_the_steps_of_one(
    script: ModuleType, together: Path, tmp_path: Path, name: str
) -> None:
    """The same global batches: losses, norms, grades and weights agree to float32 rounding."""
    alone = script.trainer(tmp_path / "alone", script.RECIPES[name])
    alone.train()
    run = RunDir.open(together / name)
    keys = {"loss", "grad_norm", "held_out_loss", "accuracy", "lr", "tokens"}

    assert losses(run.path) == pytest.approx(losses(tmp_path / "alone"), rel=2e-5)
    for ours, theirs in zip(run.rows(), alone.run.rows(), strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() & keys:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-3)
    assert run.summary()["processes"] == 2
    weights = run.load_model().state_dict()
    for key, x in alone.model.state_dict().items():
        if not key.endswith("b_K"):  # its gradient is 0 but for rounding
            assert t.allclose(weights[key], x, rtol=0, atol=1e-3), key


@pytest.mark.parametrize("name", ["ddp", "muon", "fsdp"])
def test_a_checkpoint_of_two_processes_resumes_on_one(
    script: ModuleType, together: Path, name: str
) -> None:
    """Ctrl-C in one of them stopped both after step 2; one process goes on as two would have."""
    assert json.loads((together / "told.json").read_text()) == {
        "count": 2,
        **dict.fromkeys(script.RECIPES, 2),
    }
    _, rows, _ = script.material()
    run = RunDir.open(together / f"{name}-half")

    Trainer.resume(run, rows, script.HELD_OUT).train()

    assert losses(run.path) == pytest.approx(losses(together / name), rel=2e-5)


def test_what_the_first_finds_wrong_reaches_all(together: Path) -> None:
    """It runs its block alone; if that fails, the others raise the same and do not run theirs."""
    for rank in range(2):
        assert (together / f"heard-{rank}.txt").read_text() == "the run is there already"


def test_a_process_that_has_gone_is_told(together: Path) -> None:
    """Whoever waits for it gets an error of ours, not the backend's."""
    told = (together / "gone.txt").read_text()
    assert told.startswith("another process of this training has ended")


LEAVES_AT_ONCE = """
import os, sys, time
import torch as t
import torch.distributed as dist
from pvml.training.processes import joined

os.environ.update(TORCHELASTIC_RUN_ID="alone", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
sys.setswitchinterval(60)  # the backend's thread gets Python only where it is given it
with joined("cpu"):
    kept = dist.group.WORLD  # as a model under FSDP does
    dist.broadcast(t.zeros(3), 0, async_op=True)
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        pass  # the thread is done with it, and waits for Python to free the tensor
"""


def test_a_process_ends_well_just_after_its_last_exchange() -> None:
    """The backend's threads have let go of its tensors: or they abort the process as it ends."""
    done = subprocess.run([sys.executable, "-c", LEAVES_AT_ONCE], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_a_batch_is_shared_out_whole() -> None:
    """Every row goes to exactly one piece of one process, in order, in nearly equal numbers."""
    shares = [Processes(rank, 3, t.device("cpu")).share(range(11), 2) for rank in range(3)]

    assert [row for share in shares for piece in share for row in piece] == list(range(11))
    assert {len(piece) for share in shares for piece in share} == {1, 2}


def test_a_batch_too_small_to_be_shared_is_refused() -> None:
    """Every process needs a row in every piece."""
    with pytest.raises(PvmlError, match="batch_size 3 cannot be shared by 2 processes in 2 pieces"):
        Processes(0, 2, t.device("cpu")).share(range(3), 2)


def test_alone_nothing_is_asked_of_anyone() -> None:
    """Without torchrun there is one process, which comes first and waits for nobody."""
    with joined("cpu") as alone:
        assert (alone.rank, alone.count, alone.first) == (0, 1, True)
        alone.wait()
        with alone.first_goes_ahead():
            pass

        assert alone.any(True) and not alone.any(False)
        assert alone.sum(t.tensor(2.0)) == 2
