"""The lock: one process trains a run, and a dead one keeps nobody out."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pvml.errors import RunDirError
from pvml.runs import lock
from pvml.runs.lock import lock_holder, locked

HOLD = """
import sys, time
from pathlib import Path
from pvml.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.0)


def test_a_second_one_is_kept_out(tmp_path: Path) -> None:
    """While one has the lock another is refused, with the process told; afterwards it is free."""
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        assert lock_holder(tmp_path).startswith(f"process {os.getpid()} on ")
        with pytest.raises(RunDirError, match=f"is being trained by process {os.getpid()} on .*"):
            with locked(tmp_path):
                raise AssertionError("two hold one lock")
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        pass


def test_a_killed_process_keeps_nobody_out(tmp_path: Path) -> None:
    """Another process is named while it lives; killed, it leaves a file and no lock."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == "locked\n"
        with pytest.raises(RunDirError, match=f"trained by process {child.pid} on .* --name"):
            with locked(tmp_path):
                raise AssertionError("two hold one lock")
        child.send_signal(signal.SIGKILL)
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        assert lock_holder(tmp_path).startswith(f"process {os.getpid()} on ")


def test_an_error_within_lets_go(tmp_path: Path) -> None:
    """The lock is given back however its block ends."""
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert lock_holder(tmp_path) is None


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """A lock that cannot be made is an error that names its place."""
    with pytest.raises(RunDirError, match=r"nowhere/lock could not be written \(No such file"):
        with locked(tmp_path / "nowhere"):
            raise AssertionError("locked nothing")


def test_without_locks_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none, training goes on without."""
    monkeypatch.setattr(lock, "fcntl", None)
    with locked(tmp_path), locked(tmp_path):
        assert lock_holder(tmp_path) is None
