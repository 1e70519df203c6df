"""`experiments/plot.py` is a door to `pvml plot`."""

import subprocess
import sys
from pathlib import Path


def test_it_is_pvml_plot(root: Path, tmp_path: Path) -> None:
    """The arguments reach the command, and its exit code comes back."""
    script = str(root / "experiments" / "plot.py")
    done = subprocess.run(
        [sys.executable, script, "--format", "pdf"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "pvml: --format must be png, svg or png,svg" in done.stderr
