"""Running a model to look at it or to let it write, not to train it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch as t
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every part's own mode is put back, whatever happens."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with t.no_grad():
            yield
    finally:
        for part, was_training in modes:
            part.training = was_training
