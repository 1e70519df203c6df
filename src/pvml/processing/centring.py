"""Means taken off weights where nothing downstream can see them. The functions work in place."""

from collections.abc import Iterator

from torch import Tensor

from pvml.modules.transformer import Transformer
from pvml.processing.folding import blocks_of, exact


def centre_writing(model: Transformer) -> list[str]:
    """Off each vector that is written to the stream, its mean over d_model. What was changed.

    Every LayerNorm takes that mean off before it reads. A shortformer's W_pos is never written.
    """
    changed = []
    for name, x in _writers(model):
        x.copy_(_centred(x))
        changed.append(name)
    return changed


def centre_logits(model: Transformer) -> list[str]:
    """Off W_U's rows and off b_U, their mean over the vocabulary. What was changed."""
    for x in (model.unembed.W_U, model.unembed.b_U):
        x.copy_(_centred(x))
    return ["unembed.W_U", "unembed.b_U"]


def _centred(x: Tensor) -> Tensor:
    numbers = exact(x)
    return numbers - numbers.mean(-1, keepdim=True)


def _writers(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """What is added to the stream, by name: each a vector of d_model, or many."""
    yield "embed.W_E", model.embed.W_E
    if model.cfg.positions == "standard":
        yield "pos_embed.W_pos", model.pos_embed.W_pos
    for path, block in blocks_of(model):
        yield f"{path}.attn.W_O", block.attn.W_O
        yield f"{path}.attn.b_O", block.attn.b_O
        if not model.cfg.attn_only:
            yield f"{path}.mlp.W_out", block.mlp.W_out
            yield f"{path}.mlp.b_out", block.mlp.b_out
