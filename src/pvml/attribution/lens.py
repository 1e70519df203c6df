"""The logit lens: what each layer's stream would predict, were it read out as the last one is.

The stream before each layer goes through ln_final and W_U at once. Which standard deviation
ln_final divides by is a choice: the stream's own, as nostalgebraist 2020 ("interpreting GPT: the
logit lens") does it, or that of the finished stream, frozen, so that what a layer changes is
exactly what it adds to the logits. Without LayerNorm there is nothing to choose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch as t
from jaxtyping import Float, Int
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from pvml.circuits.held import (
    constants,
    relative_error,
    require_one_sequence,
    require_position,
    require_sum,
    unscaled_readout,
    wide,
)
from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer

Scale = Literal["own", "final"]
"""The standard deviation that ln_final divides a layer's stream by."""
_STREAMS = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post")
_KEPT = ("embed.out", *_STREAMS, "ln_final.residual_std")


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitLens:
    """What a model would predict after each layer, at one position."""

    labels: tuple[str, ...]
    """`0_pre` (the embeddings), `1_pre` (after layer 0), ..., `final_post`; with `0_mid`, ...
    between attention and MLP if asked for.
    """
    logits: Float[Tensor, "n_streams d_vocab"]
    """In nats; the last row is the model's own."""
    position: int
    """Where the prediction is made, counted from 0."""
    scale: Scale | None
    """What divided each stream; None in a model without LayerNorm."""
    error: float
    """max|last row - the model's logits| / max|logits|, checked."""
    processing: tuple[str, ...] = ()
    """How the model's weights were rewritten, as its own `processing` says."""

    @property
    def probabilities(self) -> Float[Tensor, "n_streams d_vocab"]:
        return self.logits.softmax(-1)

    def ranks(self, token: int) -> Int[Tensor, " n_streams"]:
        """Of a token, 1 the likeliest; among equals, lower ids come first.

        Raises: PvmlError for an id outside the vocabulary.
        """
        own = self._of(token)[:, None]
        before = (self.logits > own).sum(1) + (self.logits[:, :token] == own).sum(1)
        return before + 1

    def of(self, token: int) -> list[tuple[str, float, float, int]]:
        """For each stream: its label, and the token's logit (nats), probability and rank.

        Raises: PvmlError for an id outside the vocabulary.
        """
        logits, chances = self._of(token).tolist(), self.probabilities[:, token].tolist()
        return list(zip(self.labels, logits, chances, self.ranks(token).tolist(), strict=True))

    def likeliest(self) -> list[tuple[str, int, float]]:
        """For each stream: its label, and its likeliest token and that one's probability."""
        chances, ids = self.probabilities.max(-1)
        return list(zip(self.labels, ids.tolist(), chances.tolist(), strict=True))

    @property
    def said(self) -> str:
        """What was done with LayerNorm's scale, as a sentence."""
        if self.scale is None:
            return "This model has no LayerNorm: each stream is read as it is."
        whose = "its own" if self.scale == "own" else "the finished stream's, frozen"
        return f"Each stream goes through ln_final, divided by {whose} standard deviation."

    def table(self, token: int | None = None, texts: Sequence[str] | None = None) -> Table:
        """A row for each stream: its likeliest token, and what it says about a given one.

        texts: what each id of the vocabulary stands for (default: show ids).

        Raises: PvmlError for an id outside the vocabulary.
        """
        asked = [] if token is None else [f"logit of {_named(token, texts)}", "probability", "rank"]
        table = Table("stream", "likeliest", "probability", *map(escape, asked))
        for column in table.columns[2:]:
            column.justify = "right"
        about = [] if token is None else self.of(token)
        told = [(f"{logit:+.3f}", f"{own:.1%}", f"{rank:,}") for _, logit, own, rank in about]
        for i, (label, first, chance) in enumerate(self.likeliest()):
            more = told[i] if told else ()
            table.add_row(label, escape(_named(first, texts)), f"{chance:.1%}", *more)
        return table

    def _of(self, token: int) -> Float[Tensor, " n_streams"]:
        if not 0 <= token < self.logits.shape[1]:
            raise PvmlError(
                f"token id {token} is outside the vocabulary: ids run from 0 to "
                f"{self.logits.shape[1] - 1}"
            )
        return self.logits[:, token]


@t.no_grad()
def logit_lens(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    position: int = -1,
    *,
    incl_mid: bool = False,
    scale: Scale = "own",
) -> LogitLens:
    """What the stream before each layer, and after the last, would predict at a position.

    position: counted from 0, or from the end if negative. incl_mid: also between each layer's
    attention and MLP.

    Raises: PvmlError for a batch other than 1, a position that is not there, another scale than
        own and final, or incl_mid in an attention-only model; CheckFailed if the last row is not
        what the model says.
    """
    if scale not in get_args(Scale):
        raise PvmlError(f"scale must be own or final, got {scale!r}")
    check_tokens(tokens, model.cfg)
    require_one_sequence(tokens)
    here = require_position(position, tokens.shape[1])
    read = tokens[:, : here + 1]  # nothing behind a position reaches it
    whole, cache = model.run_with_cache(read, names_filter=lambda name: name.endswith(_KEPT))
    found = cache.accumulated_resid(incl_mid=incl_mid, pos_slice=-1, return_labels=True)
    streams, labels = cast(tuple[Tensor, list[str]], found)
    x = wide(streams[:, 0])
    has_norm = model.cfg.normalization == "LN"
    if has_norm:
        centred = x - x.mean(-1, keepdim=True)
        std = (centred.square().mean(-1, keepdim=True) + model.cfg.layer_norm_eps).sqrt()
        x = x / (std if scale == "own" else wide(cache["ln_final.residual_std"][0, -1]))
    logits = x @ unscaled_readout(model) + sum(vector for _, vector in constants(model))
    own = wide(whole[0, -1])
    error = relative_error(logits[-1], own)
    require_sum(error, model.dtype, "the model's own logits")
    return LogitLens(
        labels=tuple(labels),
        logits=logits,
        position=here,
        scale=scale if has_norm else None,
        error=error,
        processing=model.processing,
    )


def _named(token: int, texts: Sequence[str] | None) -> str:
    return repr(texts[token]) if texts else f"token {token}"
