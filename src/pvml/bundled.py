"""Which trained models come with the package, and where they lie. It needs no torch.

Each is a finished run directory in `models/` (what it holds is in `pvml.runs.layout`), without
checkpoints and with its weights in half precision. `experiments/bundle.py` makes them.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "models"
_CONFIG = "config.json"


def bundled_models() -> list[str]:
    """The names of the models that come with the package."""
    found = (path.parent.name for path in FOLDER.glob(f"*/{_CONFIG}"))
    return sorted(name for name in found if not name.startswith("."))  # hidden: being made


def bundled_folder(name: str) -> Path:
    """Where a bundled model lies: a run directory."""
    return FOLDER / name


def is_bundled(path: Path) -> bool:
    """Whether a run directory is a bundled model: nothing of one's own is put beside it."""
    return path.resolve().parent == FOLDER.resolve()
