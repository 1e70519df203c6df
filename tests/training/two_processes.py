"""What `test_processes.py` starts under torchrun, twice: the same steps, over two processes.

Arguments: a folder to write into. Every process trains the models of `recipes`; the first writes
what came out.
"""

import json
import sys
from pathlib import Path

import torch as t

from pvml.config import Config
from pvml.data.rows import Rows, pack
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.training.args import TrainingArgs
from pvml.training.interrupt import TrainingStopped
from pvml.training.processes import Processes, joined
from pvml.training.trainer import Trainer

STORIES = [
    f"The {animal} sat on the {thing}. The {animal} saw the {thing} and {verb}."
    for animal in ("cat", "dog", "hen", "owl", "fox")
    for thing in ("mat", "hat", "bed", "rug", "log")
    for verb in ("slept", "ran", "sang")
]
HELD_OUT, TRAIN = STORIES[::9], [s for i, s in enumerate(STORIES) if i % 9]
# 7 rows over two processes in two pieces: shares of 3 and 4, pieces of 1 and 2
SHARED = {"batch_size": 7, "epochs": 2, "max_steps_per_epoch": 3, "lr": 0.01, "device": "cpu"}
RECIPES = {
    "ddp": TrainingArgs(**SHARED, accumulate=2, grad_clip=0.5),  # type: ignore[arg-type]
    "muon": TrainingArgs(**SHARED, optimizer="muon"),  # type: ignore[arg-type]
    "fsdp": TrainingArgs(**SHARED, parallel="fsdp", grad_clip=0.5),  # type: ignore[arg-type]
}


def material() -> tuple[Tokenizer, Rows, Config]:
    tokenizer = Tokenizer.train(STORIES, 271)
    cfg = Config(d_model=16, n_heads=2, n_layers=2, n_ctx=13, d_vocab=tokenizer.d_vocab)
    return tokenizer, pack(tokenizer, TRAIN, 13), cfg


def trainer(folder: Path, args: TrainingArgs, processes: Processes | None = None) -> Trainer:
    """A trainer of a fresh run, which the first process has made."""
    tokenizer, rows, cfg = material()
    processes = processes or Processes(0, 1, t.device("cpu"))
    with processes.first_goes_ahead():
        if processes.first:
            RunDir.create(folder, cfg=cfg, tokenizer=tokenizer, args=args.to_dict())
    model = Transformer(cfg, seed=1)
    run = RunDir.open(folder)
    return Trainer(model, tokenizer, rows, HELD_OUT, args, run, processes=processes)


def stop_at(trainer: Trainer, step: int) -> None:
    """Let Ctrl-C reach the last process alone, during this step: all must stop after it."""
    take = trainer.training_step

    def interrupted(tokens: t.Tensor) -> object:
        if trainer.step == step - 1 and trainer.processes.rank == trainer.processes.count - 1:
            import signal

            signal.raise_signal(signal.SIGINT)
        return take(tokens)

    trainer.training_step = interrupted  # type: ignore[method-assign,assignment]


def main(folder: Path) -> None:
    t.set_num_threads(1)
    try:
        with joined("cpu") as processes:
            train_all(folder, processes)
            first_fails(folder, processes)
            if not processes.first:
                processes.wait()  # for one that has gone
    except PvmlError as error:
        (folder / "gone.txt").write_text(str(error))


def train_all(folder: Path, processes: Processes) -> None:
    told = {"count": processes.count}
    for name, args in RECIPES.items():
        trainer(folder / name, args, processes).train()
        half = trainer(folder / f"{name}-half", args, processes)
        stop_at(half, 2)
        try:
            half.train()
        except TrainingStopped:
            told[name] = half.step
    if processes.first:
        (folder / "told.json").write_text(json.dumps(told))


def first_fails(folder: Path, processes: Processes) -> None:
    """What the first process alone finds wrong, every process writes down."""
    try:
        with processes.first_goes_ahead():
            if processes.first:
                raise PvmlError("the run is there already")
            raise AssertionError("the others must not run the block")
    except PvmlError as error:
        (folder / f"heard-{processes.rank}.txt").write_text(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
