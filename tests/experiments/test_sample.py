"""`experiments/sample.py` is a door to `pvml sample`."""

import subprocess
import sys
from pathlib import Path


def test_it_is_pvml_sample(root: Path, tmp_path: Path) -> None:
    """The arguments reach the command, and its exit code comes back."""
    script = str(root / "experiments" / "sample.py")
    done = subprocess.run(
        [sys.executable, script, "runs/none", "--beams", "2", "--seed", "1"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "pvml: --beams searches and draws nothing" in done.stderr
