"""What the name of a run means, to every command and to `pvml.load`. It needs no torch."""

import os
from pathlib import Path

RUNS = Path("runs")
"""Where `pvml train` puts runs unless it is told."""


def named_run(word: str | os.PathLike[str], folder: Path = RUNS) -> Path:
    """The folder that a word means: itself if there is one, else that of a run in `folder`.

    So NAME is runs/NAME, and NAME/checkpoints/step-N a checkpoint in it. If there is neither, it is
    the word as a path. Whether a run lies there is not looked at.
    """
    given = Path(word)
    inside = folder / given
    return inside if not given.is_dir() and inside.is_dir() else given
