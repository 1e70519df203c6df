"""Our own training step, as `pvml train` takes it."""

from torch import Tensor

from peers.contract import Step
from pvml.modules.transformer import Transformer
from pvml.training.args import Precision, TrainingArgs
from pvml.training.losses import get_log_probs
from pvml.training.optimizer import make_optimizer


def build(model: Transformer, precision: Precision) -> Step:
    """Forward, loss, backward, optimizer."""
    args = TrainingArgs(precision=precision)
    optimizer = make_optimizer(model, args)

    def step(tokens: Tensor) -> float:
        loss = -get_log_probs(model(tokens), tokens).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step
