"""Our own training step, the one that `pvml train` takes."""

from peers.contract import Step
from pvml.modules.transformer import Transformer
from pvml.training.args import Precision, TrainingArgs
from pvml.training.step import TrainingStep


def build(model: Transformer, precision: Precision, batch: int) -> Step:
    """The seeds' recipe in this precision. Its rate is constant, so each step may be the first."""
    args = TrainingArgs(batch_size=batch, precision=precision)
    training_step = TrainingStep(model, args, n_steps=1)
    return lambda tokens: training_step.take(0, tokens).loss
