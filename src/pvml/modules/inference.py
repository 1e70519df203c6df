"""Running a model to look at it or to let it write, not to train it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch as t
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every part's own mode is put back, whatever happens."""
    # entered for every token: whoever is in evaluation mode already is left alone
    in_training = [part for part in model.modules() if part.training]
    if in_training:
        model.eval()
    try:
        with t.no_grad():
            yield
    finally:
        for part in in_training:
            part.training = True
