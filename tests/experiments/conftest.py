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
            "tokenizer": "bpe:4096",
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


@pytest.fixture
def make_finished(tmp_path: Path) -> Any:
    """Make a finished run of these losses: a step a second, 20 rows of 11 tokens in a pass.

    An evaluation stands after each half of the steps. The weights are there, fresh ones.
    """
    from pvml.config import Config
    from pvml.data.tokenizer import Tokenizer
    from pvml.modules.transformer import Transformer
    from pvml.runs.format import RunDir

    def make(name: str, losses: list[float], *, seed: int = 0, finished: bool = True) -> Path:
        tokenizer = Tokenizer.train(["the cat sat on the mat"] * 3, 263)
        cfg = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=11, d_vocab=263)
        data = {"name": "tales", "documents": 100, "bytes": 200_000, "held_out_documents": 7}
        run = RunDir.create(
            tmp_path / "runs" / name,
            cfg=cfg,
            tokenizer=tokenizer,
            args={"batch_size": 2, "seed": seed},
            data={**data, "rows": 20},
        )
        half = len(losses) // 2
        for step, loss in enumerate(losses, start=1):
            now = {"step": step, "epoch": (step - 1) // half, "tokens": 22 * step}
            now["seconds"] = float(step)
            run.log({**now, "loss": loss, "lr": 1e-3})
            if step in (half, len(losses)):
                grades = {
                    "accuracy": step / 1000,
                    "held_out_loss": 2.5,
                    "bits_per_byte": 1 + 1 / step,
                }
                run.log({**now, **grades, "held_out_loss_by_position": [2 + 1 / 3] * 10})
        run.save_checkpoint(len(losses), Transformer(cfg, seed=seed), {"seed": seed})
        if finished:
            steps = len(losses)
            run.finish({"steps": steps, "tokens": 22 * steps, "seconds": 60.0 * 3})
        return run.path

    return make
