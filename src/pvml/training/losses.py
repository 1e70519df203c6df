"""How a prediction is graded: the log-probability that it gave to the token that came next.

`get_log_probs` says it in a line. `next_token_losses` gives the same numbers without ever holding
all logits; how is in `chunked.py`. The table that `python -m pvml.training.losses` prints is in
`pvml.demos.losses`.
"""

import warnings
from dataclasses import dataclass
from typing import get_args

import torch as t
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer, check_mask
from pvml.modules.unembedding import log_prob_of
from pvml.training.args import Precision
from pvml.training.chunked import Buffers, chunked_nats


def get_log_probs(
    logits: Float[Tensor, "batch posn d_vocab"], tokens: Int[Tensor, "batch posn"]
) -> Float[Tensor, "batch posn-1"]:
    """Log-probability, in nats, that each position gave to the token after it.

    The last position has nothing after it to be graded on, and nothing predicts the first token:
    one number fewer than tokens. The loss of a batch is `-get_log_probs(logits, tokens).mean()`.

    Raises: PvmlError if the shapes disagree, if a row has fewer than 2 tokens, or for an id that
    has no logit.
    """
    require_gradable(logits, tokens)
    # the last position is graded on a token of no meaning, then dropped: cutting it off before
    # would copy all the logits, the largest tensor of a training step, here and in the gradient
    return log_prob_of(logits, tokens.roll(-1, dims=1))[:, :-1]


@dataclass(frozen=True)
class TokenLosses:
    """The losses of some tokens, each given what stands before it in its row."""

    tokens: Int[Tensor, "batch posn"]
    """The ids that the losses are about."""
    nats: Float[Tensor, ""]
    """Their sum (nats), which can be differentiated."""
    each: Float[Tensor, "batch posn-1"]
    """Every one (nats), detached; 0 where nothing was graded. Column 0 is the token at posn 1."""
    graded: Bool[Tensor, "batch posn-1"]
    """Which tokens were graded."""

    @property
    def n_tokens(self) -> int:
        """How many tokens were graded."""
        return int(self.graded.sum())

    @property
    def mean(self) -> Float[Tensor, ""]:
        """The loss (nats per graded token), which can be differentiated; NaN if none was graded."""
        return self.nats / self.n_tokens

    def by_position(self) -> Float[Tensor, " later_posn"]:
        """The mean loss (nats) of the tokens at posn 1, 2, ...; NaN where none was graded."""
        return self.each.sum(0) / self.graded.sum(0)

    def by_token(self, d_vocab: int) -> Float[Tensor, " d_vocab"]:
        """The mean loss (nats) of each token id; NaN for one that was not graded."""
        ids, losses = self.tokens[:, 1:][self.graded].long(), self.each[self.graded]
        nats = losses.new_zeros(d_vocab).index_add_(0, ids, losses)
        return nats / t.bincount(ids, minlength=d_vocab)


class NextTokenLoss(nn.Module):
    """A model together with its loss: what a training step calls and differentiates.

    It keeps memory from one call to the next, so two threads must not share one.
    """

    def __init__(self, model: Transformer, precision: Precision = "float32"):
        """precision: what matrices are multiplied in; bfloat16 leaves the weights as they are.

        Raises: PvmlError for another word than float32 and bfloat16.
        """
        super().__init__()
        if precision not in get_args(Precision):
            raise PvmlError(
                f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}"
            )
        self.model = model
        self.precision = precision
        self._scratch = Buffers()

    def forward(
        self,
        tokens: Int[Tensor, "batch posn"],
        attention_mask: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
        graded: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "batch posn-1"], Bool[Tensor, "batch posn-1"]]:
        """The fields `nats`, `each` and `graded` of `TokenLosses`.

        attention_mask: False at padding, which is neither read, nor predicted, nor predicts.
        graded: False at tokens that are read but not graded.

        Raises: PvmlError for tokens or masks of another shape or other values.
        """
        check_tokens(tokens, self.model.cfg)
        require_predictable(tokens, self.model.cfg.d_vocab)
        attention_mask = check_mask(attention_mask, tokens)
        graded = check_mask(graded, tokens, "graded")
        kept = which_are_graded(tokens, attention_mask, graded)
        half = self.precision == "bfloat16"
        unembed = self.model.unembed
        with t.autocast(tokens.device.type, t.bfloat16, enabled=half):
            stream = self.model.stream(tokens, attention_mask)
            stream = unembed.tap.at("normalized_resid_final", stream)
            logits = self._logits_for_listeners(stream)
        targets = picked(tokens[:, 1:], kept)
        if logits is not None:
            losses = -log_prob_of(picked(logits[:, :-1], kept), targets)
            nats = losses.sum()
        else:
            read, arithmetic = picked(stream[:, :-1], kept), t.bfloat16 if half else None
            nats, losses = chunked_nats(
                read, unembed.W_U, unembed.b_U, targets, arithmetic, self._scratch
            )
        if kept is None:
            kept = t.ones_like(tokens[:, 1:], dtype=t.bool)
        each = losses.new_zeros(kept.shape).masked_scatter(kept, losses.detach())
        return nats, each, kept

    def _logits_for_listeners(self, stream: Tensor) -> Tensor | None:
        """Shows the logits to whoever listens; returns them if the loss must be made of them."""
        unembed = self.model.unembed
        if not unembed.tap.wants("logits"):
            return None
        megabytes = stream[..., 0].numel() * self.model.cfg.d_vocab * stream.element_size() / 1e6
        warnings.warn(
            f"someone listens to unembed.logits, so the loss writes all of them out: "
            f"{megabytes:,.1f} MB, and as much again for their gradient if they are edited",
            stacklevel=2,
        )
        if unembed.tap.edits("logits"):
            return unembed.logits(stream)
        with t.no_grad():
            unembed.logits(stream)
        return None


def next_token_losses(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    attention_mask: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
    graded: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
    precision: Precision = "float32",
) -> TokenLosses:
    """The loss of every token but the first of each row, with gradients, in bounded memory.

    The same as `-get_log_probs(model(tokens), tokens)`, of which it holds a few hundred positions'
    logits at a time. Whoever listens to `unembed.logits` gets them whole, with a warning that says
    how large they are. The masks are as in `NextTokenLoss`, which training uses.

    Raises: PvmlError for rows of fewer than 2 tokens or ids without a logit.
    """
    nats, each, kept = NextTokenLoss(model, precision)(tokens, attention_mask, graded)
    return TokenLosses(tokens, nats, each, kept)


def which_are_graded(
    tokens: Int[Tensor, "batch posn"],
    attention_mask: Bool[Tensor, "batch posn"] | None,
    graded: Bool[Tensor, "batch posn"] | None,
) -> Bool[Tensor, "batch posn-1"] | None:
    """Whether the token after each position is graded; None: all are.

    It is where both tokens are real, and it was not left out.
    """
    if attention_mask is None and graded is None:
        return None
    kept = t.ones_like(tokens[:, 1:], dtype=t.bool)
    if attention_mask is not None:
        kept &= attention_mask[:, 1:] & attention_mask[:, :-1]
    if graded is not None:
        kept &= graded[:, 1:]
    return kept


def picked(
    x: Shaped[Tensor, "batch posn ..."], kept: Bool[Tensor, "batch posn"] | None
) -> Shaped[Tensor, "n ..."]:
    """The kept places of every row, one after the other."""
    return x.flatten(0, 1) if kept is None else x[kept]


def require_gradable(logits: Tensor, tokens: Tensor) -> None:
    """Nothing, if these logits can be graded on these tokens.

    Raises: PvmlError that shows the shapes, or an id that has no logit.
    """
    if logits.shape[:2] != tokens.shape:
        raise PvmlError(
            f"logits {tuple(logits.shape)} and tokens {tuple(tokens.shape)} do not belong "
            f"together: expected (batch, posn, d_vocab) and (batch, posn)"
        )
    require_predictable(tokens, logits.shape[-1])


def require_predictable(tokens: Tensor, d_vocab: int) -> None:
    """Nothing, if these tokens can be predicted from a vocabulary of this size.

    Raises: PvmlError that shows the shape, or an id that has no logit.
    """
    if tokens.shape[1] < 2:
        raise PvmlError(
            f"tokens of shape {tuple(tokens.shape)} leave nothing to grade: a row needs at least "
            f"2 tokens, the first is predicted by none"
        )
    if tokens.numel():
        low, high = (int(extreme) for extreme in tokens.aminmax())
        if low < 0 or high >= d_vocab:
            raise PvmlError(
                f"token id {low if low < 0 else high} has no logit: ids run from 0 to {d_vocab - 1}"
            )


if __name__ == "__main__":
    from pvml.demos.losses import main

    main()
