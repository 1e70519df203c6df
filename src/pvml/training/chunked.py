"""The loss without the logits: a few hundred positions meet the vocabulary at a time.

All logits of a training step, (batch, posn, d_vocab), would be its largest tensor by far, and their
gradient another. Here both exist for `CHUNK` positions only. As soon as a chunk's logits are known,
so is their gradient, softmax minus one at the target; the two products that need it follow at once,
and the backward pass only hands out what they gave.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch as t
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pvml.modules.matmul_route import fastest_float32

CHUNK = 512
"""Most positions that are unembedded at once."""
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

    Equal to `-log_prob_of(stream @ W_U + b_U, targets)`, and to its gradients, up to rounding. In
    bfloat16 a target's share is rounded too, before its logarithm: that takes or adds up to 0.002
    nats, and a share above 0.998 counts as 1. A logarithm of float32 sums took 5 to 8 times as
    long. arithmetic: the type that is multiplied in, the stream's own unless given; sums are
    float32 at least. buffers: memory to work in, kept from an earlier call.

    Raises: RuntimeError if the backward pass is run twice, or differentiated.
    """
    with t.autocast(stream.device.type, enabled=False):
        nats, losses = _ChunkedNats.apply(  # type: ignore[no-untyped-call]
            stream, W_U, b_U, targets.long(), arithmetic or stream.dtype, buffers or Buffers()
        )
    return nats, losses


def chunked_grades(
    stream: Float[Tensor, "n d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    b_U: Float[Tensor, " d_vocab"],
    targets: Int[Tensor, " n"],
    buffers: Buffers | None = None,
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Each prediction's loss (nats), and whether its target has the largest logit; no gradients.

    Of equal logits the first in the vocabulary counts as the largest.
    """
    with t.no_grad(), t.autocast(stream.device.type, enabled=False):
        table = _Table(W_U, b_U, stream.dtype, buffers or Buffers())
        losses = stream.new_empty(len(stream), dtype=t.promote_types(stream.dtype, t.float32))
        right = stream.new_empty(len(stream), dtype=t.bool)
        with fastest_float32(stream.device, stream.dtype):
            for here in _chunks(len(stream)):
                logits = table.logits(stream[here])
                right[here] = logits.argmax(-1) == targets[here]
                _, losses[here] = _shares_and_losses(logits, targets[here], losses.dtype)
        table.mend_underflow(losses, stream, targets)
    return losses, right


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
        table = _Table(W_U, b_U, arithmetic, buffers)
        x = stream.to(arithmetic)
        columns = x.T.contiguous()  # products over positions are faster so
        losses = stream.new_empty(len(x), dtype=wide)
        d_stream = stream.new_empty(stream.shape, dtype=wide) if needs_stream else None
        d_W_U = stream.new_zeros(W_U.shape, dtype=wide) if needs_W_U else None
        d_b_U = stream.new_zeros(b_U.shape, dtype=wide) if needs_b_U else None
        with fastest_float32(stream.device, arithmetic):
            for here in _chunks(len(x)):
                logits = table.logits(x[here])
                shares, losses[here] = _shares_and_losses(logits, targets[here], wide)
                shares[t.arange(len(shares), device=x.device), targets[here]] -= 1
                if d_stream is not None:
                    d_stream[here] = shares @ table.W_U.T
                if d_W_U is not None:
                    table.add_product(columns[:, here], shares, d_W_U)
                if d_b_U is not None:
                    d_b_U += shares.sum(0, dtype=wide)
        table.mend_underflow(losses, x, targets)
        ctx.gradients = d_stream, d_W_U, d_b_U
        ctx.dtypes = stream.dtype, W_U.dtype, b_U.dtype
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """What the forward pass left, times the factor of the sum."""
        if t.is_grad_enabled():  # create_graph=True: what was left does not know how it came about
            raise RuntimeError(
                "the chunked loss has no second derivative: use -get_log_probs(model(tokens), "
                "tokens) for that"
            )
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


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, n, CHUNK))


def _shares_and_losses(logits: Tensor, targets: Tensor, wide: t.dtype) -> tuple[Tensor, Tensor]:
    """The softmax, in the place of the logits, and minus the logarithm of the targets' shares."""
    shares = t.softmax(logits, -1, out=logits)
    # subtracted, not negated: a certain target's loss is 0, not -0
    return shares, 0.0 - shares.gather(-1, targets[:, None])[:, 0].to(wide).log()


class _Table:
    """W_U and b_U in the type that is multiplied in, and what they are multiplied with."""

    def __init__(self, W_U: Tensor, b_U: Tensor, arithmetic: t.dtype, buffers: Buffers):
        self._buffers, self._type = buffers, (arithmetic, W_U.device)
        self.W_U = W_U.detach()
        if W_U.dtype != arithmetic:
            self.W_U = self._scratch("W_U", W_U.shape).copy_(W_U)
        self.b_U = b_U.to(arithmetic) if b_U.any() else None

    def _scratch(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._buffers.get(name, shape, *self._type)

    def logits(self, x: Tensor) -> Tensor:
        """Of a chunk, in memory that the next chunk's will take."""
        logits = t.mm(x, self.W_U, out=self._scratch("logits", (len(x), self.W_U.shape[1])))
        return logits if self.b_U is None else logits.add_(self.b_U)

    def add_product(self, columns: Tensor, shares: Tensor, total: Tensor) -> None:
        """Add a chunk's `columns @ shares` to the gradient of W_U."""
        if total.dtype == shares.dtype:
            total.addmm_(columns, shares)
            return
        product = t.mm(columns, shares, out=self._scratch("product", total.shape))
        # some rows at a time: their copies in the total's type stay in the processor's cache
        for piece, sums in zip(t.split(product, _ROWS), t.split(total, _ROWS), strict=True):
            sums += piece

    def mend_underflow(self, losses: Tensor, x: Tensor, targets: Tensor) -> None:
        """Losses whose share is too small for its type, from the logits: above some 87 nats."""
        lost = (losses > -math.log(t.finfo(self._type[0]).tiny)).nonzero()[:, 0]
        for few in t.split(lost, CHUNK):
            logits = self.logits(x[few]).to(losses.dtype)
            own = logits.gather(-1, targets[few][:, None])[:, 0]
            losses[few] = logits.logsumexp(-1) - own
