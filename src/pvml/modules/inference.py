"""Running a model to look at it or to let it write, not to train it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch as t
from torch import nn


@contextmanager
def inference(model: nn.Module, parts: Sequence[nn.Module] | None = None) -> Iterator[None]:
    """Evaluation mode without gradients; every part's own mode is put back, whatever happens.

    parts: all of the model's modules, if they are known already.
    """
    # entered for every token, and nn.Module's own setter would be a good part of its time
    parts = list(model.modules()) if parts is None else parts
    in_training = [vars(part) for part in parts if part.training]
    for attributes in in_training:
        attributes["training"] = False
    try:
        with t.no_grad():
            yield
    finally:
        for attributes in in_training:
            attributes["training"] = True
