"""Our own training step: the loss and the optimizer that `Trainer.training_step` is made of."""

from torch import Tensor

from peers.contract import Step
from pvml.modules.transformer import Transformer
from pvml.training.args import Precision, TrainingArgs
from pvml.training.losses import NextTokenLoss
from pvml.training.optimizer import make_optimizer


def build(model: Transformer, precision: Precision) -> Step:
    """The trainer's step on one process, with the batch in one piece."""
    loss = NextTokenLoss(model, precision)
    optimizer = make_optimizer(model, TrainingArgs(precision=precision))

    def step(tokens: Tensor) -> float:
        nats, each, _ = loss(tokens)
        mean = nats / each.numel()
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        return mean.item()

    return step
