"""Where a run may be made: one that a killed `--overwrite` left hidden is put back, not lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.runs.format import RunDir
from pvml.runs.place import require_free

KILLED = """
import os, signal, sys
from pathlib import Path
from pvml.runs.place import out_of_the_way
with out_of_the_way(Path(sys.argv[1])) as clear:
    clear(True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def make(path: Path, **args: int) -> RunDir:
    tokenizer = Tokenizer.train(["the cat sat"], 258)
    cfg = Config(d_model=4, n_heads=2, n_layers=1, n_ctx=5, d_vocab=tokenizer.d_vocab)
    return RunDir.create(path, cfg=cfg, tokenizer=tokenizer, args=args, overwrite=True)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Where a run was until a process was killed between the two renames of an overwrite."""
    path = tmp_path / "a [b]"
    make(path, seed=7)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=100)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    return path


def test_the_next_command_for_that_name_puts_it_back(killed: Path) -> None:
    """Opened, it is the run that it was; asked for a new run, the name is taken."""
    with pytest.raises(RunDirError, match="already holds a run"):
        require_free(killed, overwrite=False)
    assert RunDir.open(killed).args == {"seed": 7}
    assert [entry.name for entry in killed.parent.iterdir()] == ["a [b]"]


def test_opening_it_is_enough(killed: Path) -> None:
    """`--resume`, `sample` and all others open a run by its path."""
    assert RunDir.open(killed).args == {"seed": 7}


def test_an_overwrite_that_is_going_on_is_left_alone(tmp_path: Path) -> None:
    """What a living process moved aside is its own, and so is what no overwrite of ours left."""
    path = tmp_path / "run"
    make(path)
    aside = tmp_path / f".run.old-{os.getpid()}"
    path.rename(aside)
    (tmp_path / ".run.old-x").mkdir()
    (tmp_path / ".run.old-4194304999").mkdir()
    with pytest.raises(RunDirError, match="does not exist"):
        RunDir.open(path)
    assert aside.exists()
    make(path, seed=1)
    assert RunDir.open(path).args == {"seed": 1}
