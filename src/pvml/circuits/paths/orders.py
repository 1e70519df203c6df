"""What paths through 0, 1, 2, ... heads are worth: the loss of a prediction cut off behind each.

With patterns, LayerNorms' scales and MLPs held, a stream is a sum over orders: what went through no
head, through one, through two in a row. Source: Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits", "term importance analysis".
"""

import math
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.held import HeldPass, hold, relative_error, require_sum, wide
from pvml.circuits.paths.logit_paths import born
from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class OrderLosses:
    """Losses of predictions from paths of at most 0, 1, 2, ... heads."""

    losses: tuple[float, ...]
    """Nats per token: entry n counts the paths through n heads or fewer; the last is the model's.
    """
    uniform: float
    """Nats per token of a guess that is equal for all: ln d_vocab."""

    @property
    def gains(self) -> tuple[float, ...]:
        """By how much the loss falls with each order (nats), the first from the uniform guess."""
        before = (self.uniform, *self.losses)
        return tuple(a - b for a, b in zip(before, self.losses, strict=False))


@t.no_grad()
def loss_by_order(model: Transformer, tokens: Int[Tensor, "batch posn"]) -> OrderLosses:
    """The mean loss over all predictions in these rows, up to each order.

    Patterns stay what they are in the whole model. Biases, positions and MLPs count as sources: a
    path from them has the order of the heads that it goes through.

    Raises: PvmlError for tokens that it cannot read, or rows of fewer than 2; CheckFailed if all
        orders together are not the model's logits.
    """
    check_tokens(tokens, model.cfg)
    if len(tokens) == 0 or tokens.shape[1] < 2:
        raise PvmlError(
            f"rows of at least 2 tokens have predictions to grade, got {tuple(tokens.shape)}"
        )
    n_orders = model.cfg.n_layers + 1
    nats = t.zeros(n_orders, dtype=t.float64)
    for row in t.split(tokens, 1):
        held = hold(model, row)
        logits = _logits_by_order(held)
        require_sum(relative_error(logits[-1], held.logits), model.dtype, "the logits")
        answers = row[:, 1:].long().expand(n_orders, -1)[..., None]
        nats -= logits[:, :-1].log_softmax(-1).gather(-1, answers).double().sum((1, 2)).cpu()
    losses = (nats / (len(tokens) * (tokens.shape[1] - 1))).tolist()
    return OrderLosses(losses=tuple(losses), uniform=math.log(model.cfg.d_vocab))


def streams_by_order(held: HeldPass) -> Float[Tensor, "n_orders posn d_model"]:
    """The stream behind the last layer as a sum: what went through 0, 1, 2, ... heads."""
    model, posn = held.model, len(held.tokens)
    streams = held.logits.new_zeros(model.cfg.n_layers + 1, posn, model.cfg.d_model)
    streams[0] = wide(model.embed.W_E[held.tokens.long()])
    if model.cfg.positions == "standard":
        streams[0] += wide(model.pos_embed.W_pos[:posn])
    for layer in range(model.cfg.n_layers):
        attn, read = held.attention(layer), streams / held.stds[layer][:, None]
        for head, pattern in enumerate(held.patterns[layer]):
            reads, _ = held.reading(layer, attn.W_V[head], attn.b_V[head])
            streams[1:] += pattern @ read[:-1] @ reads @ wide(attn.W_O[head])
        for _, written in born(held, layer):
            streams[0] += written
    return streams


def _logits_by_order(held: HeldPass) -> Float[Tensor, "n_orders posn d_vocab"]:
    streams = streams_by_order(held).cumsum(0) / held.final_std[:, None]
    return streams @ held.unscaled_readout() + sum(vector for _, vector in held.constants())
