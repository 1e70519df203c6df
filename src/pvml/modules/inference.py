"""Running a model to look at it or to let it write, not to train it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch as t
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every part's own mode is put back, whatever happens."""
    # entered for every token, and nn.Module's own setter would be a good part of its time
    in_training = [vars(part) for part in model.modules() if part.training]
    for attributes in in_training:
        attributes["training"] = False
    try:
        with t.no_grad():
            yield
    finally:
        for attributes in in_training:
            attributes["training"] = True
