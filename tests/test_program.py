"""The command that is told to go on with: one that works where it is told."""

import sys
from pathlib import Path

import pytest

from pvml import program


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs' folder of an environment in the current folder, which runs this; no PATH."""
    folder = tmp_path / "my .venv" / "bin"
    _programs(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "")
    return folder


def _programs(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("pvml", "python"):
        (folder / name).touch(mode=0o755)


def test_off_the_path_it_is_a_path(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative from the folder that holds the environment, whole from elsewhere, always quoted."""
    assert program.pvml() == "'my .venv/bin/pvml'"
    assert program.python() == "'my .venv/bin/python'"
    monkeypatch.chdir(environment)
    (environment / "deeper").mkdir()
    for elsewhere in (environment, environment / "deeper"):
        monkeypatch.chdir(elsewhere)
        assert program.pvml() == f"'{environment}/pvml'"


def test_on_the_path_it_is_a_name(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another environment's stands before it."""
    monkeypatch.setenv("PATH", str(environment))
    assert (program.pvml(), program.python()) == ("pvml", "python")

    _programs(environment.parent / "another")
    monkeypatch.setenv("PATH", f"{environment.parent / 'another'}:{environment}")
    assert program.pvml() == "'my .venv/bin/pvml'"


def test_without_the_command_python_runs_it(environment: Path) -> None:
    """A copy that was not installed is run as a module."""
    (environment / "pvml").unlink()

    assert program.pvml() == "'my .venv/bin/python' -m pvml"
