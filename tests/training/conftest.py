"""A small run to train, and what tests do to its trainer. pvml is imported late, as everywhere."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STORIES = [
    f"The {animal} sat on the {thing}. The {animal} saw the {thing} and {verb}."
    for animal in ("cat", "dog", "hen", "owl", "fox")
    for thing in ("mat", "hat", "bed", "rug", "log")
    for verb in ("slept", "ran", "sang")
]


class Bench:
    """Where trainers of one small run are made, stopped and resumed."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        from pvml.data.rows import pack
        from pvml.training.args import TrainingArgs

        self.folder, self.tokenizer = folder, tokenizer
        self.held_out, self.train = STORIES[::9], [s for i, s in enumerate(STORIES) if i % 9]
        self.rows = pack(tokenizer, self.train[:23], 13)
        # 3 epochs of 7 steps of 5 rows go through the rows more than once: a border is crossed
        self.args = TrainingArgs(
            batch_size=5, epochs=3, max_steps_per_epoch=7, seed=3, device="cpu"
        )

    def make(self, name: str = "run", args: Any = None, **changes: Any) -> Any:
        """A trainer of a run that is made for it. changes: of the model's Config."""
        from pvml.config import Config
        from pvml.modules.transformer import Transformer
        from pvml.runs.format import RunDir
        from pvml.training.trainer import Trainer

        args, tokenizer = args or self.args, self.tokenizer
        sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_layers": 1, "n_ctx": 13}
        cfg = Config(**sizes, d_vocab=tokenizer.d_vocab, **changes)
        run = RunDir.create(self.folder / name, cfg=cfg, tokenizer=tokenizer, args=args.to_dict())
        model = Transformer(cfg, seed=1)
        return Trainer(model, tokenizer, self.rows, self.held_out, args, run, sample=self.sample)

    def resume(self, name: str = "run", rows: Any = None) -> Any:
        """A trainer that goes on with a run. rows: other ones than it was trained on."""
        from pvml.runs.format import RunDir
        from pvml.training.trainer import Trainer

        run = RunDir.open(self.folder / name)
        rows = self.rows if rows is None else rows
        return Trainer.resume(run, rows, self.held_out, sample=self.sample)

    @staticmethod
    def sample(model: Any, prompt: str) -> str:
        """A sample that needs no sampler: the prompt and the model's first choice after BOS."""
        import torch as t

        return f"{prompt} {int(model(t.tensor([[0]])).argmax())}"

    @staticmethod
    def stop_after(trainer: Any, step: int) -> None:
        """Let Ctrl-C arrive during this step."""
        whole_step: Callable[[Any], float] = trainer.training_step

        def interrupted_step(tokens: Any) -> float:
            if trainer.step == step - 1:
                signal.raise_signal(signal.SIGINT)
            return whole_step(tokens)

        trainer.training_step = interrupted_step

    def stopped(self, trainer: Any, step: int = 2) -> Any:
        """The trainer after Ctrl-C in this step, saved."""
        from pvml.training.interrupt import TrainingStopped

        self.stop_after(trainer, step)
        with pytest.raises(TrainingStopped):
            trainer.train()
        return trainer


@pytest.fixture(scope="session")
def small_tokenizer() -> Any:
    """A tokenizer for the small run's stories."""
    from pvml.data.tokenizer import Tokenizer

    return Tokenizer.train(STORIES, 271)


@pytest.fixture
def bench(small_tokenizer: Any, tmp_path: Path) -> Bench:
    """A bench whose runs are in this test's own folder."""
    return Bench(tmp_path, small_tokenizer)
