"""The loss without the logits: a few hundred positions meet the vocabulary at a time.

All logits of a training step, (batch, posn, d_vocab), would be its largest tensor by far, and their
gradient another. Here both exist for `CHUNK` positions only. As soon as a chunk's logits are known,
so is their gradient, softmax minus one at the target; the two products that need it follow at once,
and the backward pass only hands out what they gave.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch as t
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from pvml.training.matmul_route import fastest_float32

CHUNK = 512
"""Most positions that are unembedded at once."""
_LANE = 64
"""Rows of the buffers are filled up to a multiple of this: whole vectors, and lines of memory."""

_ROWS = 16
"""Rows of a gradient that are added at once."""


class Buffers:
    """Scratch memory that is used again: fresh pages cost as much time as the arithmetic.

    What it holds means nothing between two uses. Two threads must not share one.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def get(
        self, name: str, shape: Sequence[int], dtype: t.dtype, device: t.device
    ) -> Float[Tensor, "..."]:
        """A tensor of this shape; its numbers are anything."""
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or (held.dtype, held.device) != (dtype, device) or held.numel() < size:
            held = self._held[name] = t.empty(size, dtype=dtype, device=device)
        return held[:size].view(tuple(shape))


def chunked_nats(
    stream: Float[Tensor, "n d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    b_U: Float[Tensor, " d_vocab"],
    targets: Int[Tensor, " n"],
    arithmetic: t.dtype | None = None,
    buffers: Buffers | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, " n"]]:
    """The losses of n predictions (nats): their sum, to be differentiated, and each, detached.

    Equal to `-log_prob_of(stream @ W_U + b_U, targets)`, and to its gradients.
    arithmetic: the type that is multiplied in, the stream's own unless given; sums are float32 at
    least. buffers: memory to work in, kept from an earlier call.

    Raises: RuntimeError if the backward pass is run twice, or differentiated.
    """
    nats, losses = _ChunkedNats.apply(  # type: ignore[no-untyped-call]
        stream, W_U, b_U, targets.long(), arithmetic or stream.dtype, buffers or Buffers()
    )
    return nats, losses


class _ChunkedNats(t.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        W_U: Tensor,
        b_U: Tensor,
        targets: Tensor,
        arithmetic: t.dtype,
        buffers: Buffers,
    ) -> tuple[Tensor, Tensor]:
        """The losses; the gradients of their sum are left in `ctx`, for the inputs that need one.

        For each chunk: logits, softmax, the targets' probabilities, minus one there, and that times
        W_U and the stream: the gradients of the stream and of W_U.
        """
        needs_stream, needs_W_U, needs_b_U = ctx.needs_input_grad[:3]
        wide = t.promote_types(stream.dtype, t.float32)
        d_model, d_vocab = W_U.shape
        width = -(-d_vocab // _LANE) * _LANE

        def scratch(name: str, rows: int) -> Tensor:
            return buffers.get(name, (rows, width), arithmetic, stream.device)

        # the columns that fill up a row: nothing is multiplied by them, and their softmax is 0
        weights = scratch("W_U", d_model)
        weights[:, :d_vocab] = W_U
        weights[:, d_vocab:] = 0
        bias = b_U.to(arithmetic) if b_U.any() else None
        x = stream.to(arithmetic)
        losses = stream.new_empty(len(x), dtype=wide)
        d_stream = t.empty_like(stream) if needs_stream else None
        d_W_U = stream.new_zeros(d_model, d_vocab, dtype=wide) if needs_W_U else None
        d_b_U = stream.new_zeros(d_vocab, dtype=wide) if needs_b_U else None
        with fastest_float32(stream.device, arithmetic):
            for start in range(0, len(x), CHUNK):
                here = slice(start, start + CHUNK)
                read = x[here]
                logits = t.mm(read, weights, out=scratch("logits", len(read)))
                if bias is not None:
                    logits[:, :d_vocab] += bias
                logits[:, d_vocab:] = -math.inf
                shares = t.softmax(logits, -1, out=logits)
                places = t.arange(len(read), device=x.device), targets[here]
                losses[here] = -shares[places].to(wide).log()
                shares[places] -= 1
                if d_stream is not None:
                    d_stream[here] = shares @ weights.T
                if d_W_U is not None:
                    _add(t.mm(read.T, shares, out=scratch("d_W_U", d_model))[:, :d_vocab], d_W_U)
                if d_b_U is not None:
                    d_b_U += shares[:, :d_vocab].sum(0, dtype=wide)
        _mend_underflow(losses, x, W_U, bias, targets)
        ctx.gradients = d_stream, d_W_U, d_b_U
        ctx.dtypes = stream.dtype, W_U.dtype, b_U.dtype
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """What the forward pass left, times the factor of the sum."""
        if ctx.gradients is None:
            raise RuntimeError(
                "the chunked loss gives its gradients away in one backward pass, and a second "
                "was asked for: compute the loss again, or add losses before backward()"
            )
        gradients, ctx.gradients = ctx.gradients, None
        scaled = (
            None if gradient is None else gradient.mul_(scale).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return (*scaled, None, None, None)


def _add(more: Tensor, total: Tensor) -> None:
    """Add to a total of a wider type, some rows at a time: their copies stay in cache."""
    for piece, sums in zip(t.split(more, _ROWS), t.split(total, _ROWS), strict=True):
        sums += piece


def _mend_underflow(
    losses: Tensor, x: Tensor, W_U: Tensor, bias: Tensor | None, targets: Tensor
) -> None:
    """Losses above some 87 nats, whose probability is too small for a float, from the logits."""
    lost = (losses > -math.log(t.finfo(t.float32).tiny)).nonzero()[:, 0]
    for few in t.split(lost, CHUNK):
        logits = (x[few] @ W_U.to(x.dtype)).to(losses.dtype)
        if bias is not None:
            logits += bias
        own = logits.gather(-1, targets[few][:, None])[:, 0]
        losses[few] = logits.logsumexp(-1) - own
