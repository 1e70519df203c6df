"""Freeze A: attention patterns held, so that a model is linear in what it embeds.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits": "the paths through
a transformer", where attention scores are fixed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.modules.transformer import Transformer
from pvml.trace.edit import replace
from pvml.trace.tap import places

_HELD = ("attn_pattern", "residual_std", "mlp_out")


@contextmanager
def freeze(model: Transformer, tokens: Int[Tensor, "batch posn"]) -> Iterator[tuple[str, ...]]:
    """Within it, what is not linear in the stream is held at what it was for these tokens.

    Held are attention patterns, LayerNorms' standard deviations and what each MLP adds; their names
    are what the `with` statement gives. All the rest is linear: to add something to the embeddings
    moves the logits by as much whatever else was added. Passes must have the tokens' shape.

    Raises: PvmlError for tokens that the model cannot read, or if nothing is run within it.
    """
    names = [place.name for place in places(model) if place.name.endswith(_HELD)]
    if not names:
        yield ()
        return
    with t.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=names)
    with replace(model, {name: cache[name] for name in names}):
        yield tuple(names)
