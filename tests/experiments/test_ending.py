"""How scripts end: told in a sentence, with `pvml`'s exit codes, all of them the same way."""

import subprocess
import sys
from pathlib import Path

import pytest

from pvml.errors import CheckFailed, PvmlError


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (PvmlError("bad flag"), 2, "recipes: bad flag\n"),
        (CheckFailed("too far"), 1, "recipes: too far\n"),
        (OSError(28, "No space left on device"), 2, "recipes: [Errno 28] No space left"),
        (KeyboardInterrupt(), 130, "recipes: stopped by Ctrl-C\n"),
        (
            KeyboardInterrupt("stopped: `pvml train --resume` goes on from there"),
            130,
            "goes on from there; so does this command, if it is given again\n",
        ),
    ],
)
def test_each_failure_is_told(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, told: str
) -> None:
    """Under the script's name, with what to do after a training that was stopped."""
    from ending import ended

    def run() -> int:
        raise error

    assert ended("recipes", run) == code
    assert told in capsys.readouterr().err


def test_every_script_ends_so(root: Path) -> None:
    """A script ends through `ended`, under its own name, or is a door to one that does."""
    scripts = {
        path: text
        for path in (root / "experiments").rglob("*.py")
        if "__main__" in (text := path.read_text())
    }

    assert len(scripts) > 20
    for path, text in scripts.items():
        door = "from door import run_this" in text or "from pvml.cli.main import main" in text
        assert door or f'ended("{path.stem}", ' in text, path


def test_a_closed_pipe_is_silent(root: Path, tmp_path: Path) -> None:
    """`recipes.py --list | head -0`: no traceback, and the code that `pvml` ends with."""
    with subprocess.Popen(
        [sys.executable, str(root / "experiments" / "recipes.py"), "--list"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()

    assert (process.returncode, told) == (141, "")
