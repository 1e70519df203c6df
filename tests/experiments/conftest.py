"""The scripts in experiments/ import each other by name, as they do when they are run."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _scripts_can_be_imported(root: Path) -> Iterator[None]:
    folder = str(root / "experiments")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


@pytest.fixture
def make_outcome() -> Any:
    """Make what a run came to, with these figures and plain ones for all others."""
    from outcomes import Outcome

    def make(experiment: str, seed: int = 0, **figures: Any) -> Outcome:
        plain: dict[str, Any] = {
            "path": Path(f"twin-{experiment}-seed{seed}"),
            "kind": "twin",
            "n_ctx": 128,
            "steps": 500,
            "tokens": 2_048_000,
            "passes": 0.5,
            "minutes": 3.0,
            "step_seconds": 0.25,
            "window": 50,
            "loss": 3.0,
            "slope": -0.05,
            "held_out_loss": 3.125,
            "bits_per_byte": 1.0,
            "accuracy": 0.4,
            "bits_by_epoch": (1.5, 1.0),
            "loss_by_position": (4.0, 3.0, 2.0),
            "text": "10 stories (0.1 MB), 1 of them held out; tokenizer bpe:4096",
        }
        return Outcome(experiment=experiment, seed=seed, **{**plain, **figures})

    return make
