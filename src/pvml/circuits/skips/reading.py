"""One head read for skip-trigrams: tokens' queries, keys and writings, and who else is looked at.

A score means nothing by itself: the softmax weighs it against what else stands in the context. So
the context is said here, and the share of attention in it is exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.held import Head, block_of, require_head, wide
from pvml.circuits.weights.blocks import Block
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.maps import Reading
from pvml.circuits.weights.streamed import Told, scan
from pvml.errors import PvmlError

_ROWS = 16
"""Destinations whose exponentials are in memory together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Competition:
    """What stands in the context beside one source: the destination itself, and all of this.

    The source's share of the attention is `exp(score) / (exp(score) + others)`, where `others` are
    exp(score of the destination with itself), exp(score) of each token in `always`, and `n_others`
    times the mean of exp(score) over the vocabulary.

    Raises: PvmlError for a negative number or frequency, or frequencies that are all 0.
    """

    n_others: int
    """How many further tokens."""
    always: tuple[int, ...] = ()
    """Token ids that stand in every context, once each: BOS, where the model was trained with it.
    """
    frequencies: Float[Tensor, " d_vocab"] | None = None
    """How often each token is one of the others, of any scale; None: all equally."""
    as_often_as: str = "the frequencies given say"
    """What the frequencies are, in words."""

    def __post_init__(self) -> None:
        if self.n_others < 0:
            raise PvmlError(f"n_others must be at least 0 tokens, got {self.n_others}")
        if (shares := self.frequencies) is not None and not (
            bool(shares.isfinite().all()) and bool((shares >= 0).all()) and float(shares.sum()) > 0
        ):
            raise PvmlError("frequencies must be finite, at least 0, and not all 0")

    @classmethod
    def of_text(
        cls, tokens: Int[Tensor, "batch posn"], d_vocab: int, n_others: int | None = None
    ) -> "Competition":
        """The middle of one of these rows: what every row begins with, and others as they come.

        n_others: half a row unless given.

        Raises: PvmlError for no tokens, or ids outside the vocabulary.
        """
        if tokens.numel() == 0:
            raise PvmlError(f"a competition needs at least one token, got {tuple(tokens.shape)}")
        if int(tokens.min()) < 0 or int(tokens.max()) >= d_vocab:
            raise PvmlError(
                f"token ids must lie between 0 and {d_vocab - 1}, got {int(tokens.min())} to "
                f"{int(tokens.max())}"
            )
        first = tokens[:, 0]
        begins = bool((first == first[0]).all()) and len(tokens) > 1
        rest = tokens[:, 1:] if begins and tokens.shape[1] > 1 else tokens
        return cls(
            n_others=max(1, tokens.shape[1] // 2) if n_others is None else n_others,
            always=(int(first[0]),) if begins else (),
            frequencies=t.bincount(rest.flatten().cpu().long(), minlength=d_vocab).double(),
            as_often_as="they stand in the text",
        )

    def require_fits(self, d_vocab: int) -> None:
        """Nothing, if it is of this vocabulary.

        Raises: PvmlError that says what is not.
        """
        if self.frequencies is not None and self.frequencies.shape != (d_vocab,):
            raise PvmlError(
                f"frequencies must be one for each of the {d_vocab:,} tokens, got "
                f"{tuple(self.frequencies.shape)}"
            )
        if outside := [one for one in self.always if not 0 <= one < d_vocab]:
            raise PvmlError(f"token ids run from 0 to {d_vocab - 1}, got {outside} in always")

    def __str__(self) -> str:
        often = "evenly from the vocabulary"
        if self.frequencies is not None:
            often = f"as often as {self.as_often_as}"
        always = f", the tokens {', '.join(map(str, self.always))}" if self.always else ""
        return (
            f"the source once, the destination itself{always}, and {self.n_others} tokens drawn "
            f"{often}, at their mean weight"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SkipReading:
    """A head over the vocabulary: what each token asks, offers, and has written."""

    head: Head
    queries: Float[Tensor, "d_vocab d_head"]
    """Divided by sqrt(d_head), so that products with keys are what the softmax takes."""
    keys: Float[Tensor, "d_vocab d_head"]
    values: Float[Tensor, "d_vocab d_head"]
    readout: Float[Tensor, "d_head d_vocab"]
    """From a value to the logits, each row less its mean: softmax ignores what all logits share."""
    unit: str
    """What a value times the readout is in: nats, or nats times the stds that are left out."""

    def log_competition(
        self,
        destinations: Int[Tensor, " n"],
        competition: Competition,
        memory: int,
        tell: Told | None = None,
    ) -> Float[Tensor, " n"]:
        """The logarithm of what each destination's `others` weigh together."""
        queries = self.queries[destinations]
        itself = (queries * self.keys[destinations]).sum(-1)
        parts = [itself[:, None]]
        if competition.always:
            parts.append(queries @ self.keys[list(competition.always)].T)
        if competition.n_others:
            shares = competition.frequencies
            if shares is None:
                shares = t.ones(len(self.keys), dtype=t.float64)
            logs = (shares.double() / shares.double().sum()).log().to(queries)
            weights = _LogMeanExp(logs)
            scan(FactoredMap(queries, self.keys.T), weights, memory=memory, tell=tell)
            parts.append(weights.values[:, None] + math.log(competition.n_others))
        return t.cat(parts, 1).logsumexp(1)

    def excess(
        self,
        sources: Int[Tensor, " n"],
        destinations: Int[Tensor, " m"],
        against: Float[Tensor, " m"],
    ) -> FactoredMap:
        """A source's (row) score less the log of its competition: attention is its sigmoid."""
        keys = self.keys[sources]
        return FactoredMap(
            t.cat([keys, keys.new_ones(len(keys), 1)], 1),
            t.cat([self.queries[destinations].T, -against[None]]),
        )

    def writes(self, outputs: Int[Tensor, " n"]) -> FactoredMap:
        """What a token (row, of all the vocabulary) adds to each output's logit."""
        return FactoredMap(self.values, self.readout[:, outputs])


@dataclass
class _LogMeanExp:
    """The logarithm of each row's weighted mean of exp(entry)."""

    log_weights: Float[Tensor, " columns"]

    def begin(self, table: FactoredMap) -> None:
        self.values: Float[Tensor, " rows"] = table.left.new_empty(table.shape[0])

    def take(self, block: Block) -> None:
        # a few rows at a time: the sum and its exponentials are as large as what they are of
        for at in range(0, len(block.entries), _ROWS):
            some = block.entries[at : at + _ROWS] + self.log_weights
            first = block.first + at
            self.values[first : first + len(some)] = some.logsumexp(-1)


def read_head(reading: Reading, head: Head) -> SkipReading:
    """A head's queries, keys and values of every token, as if it stood alone in the stream.

    b_Q, b_K and ln1.b are in the queries and keys. What b_V and ln1.b write comes with every source
    alike, so it is left out.

    Raises: PvmlError for a head that is not there.
    """
    model = reading.model
    layer, index = require_head(model, head)
    block = block_of(model, layer)
    attn, W_E = block.attn, wide(model.embed.W_E)
    scale, unit = W_E.new_ones(len(W_E), 1), "nats"
    if model.cfg.normalization == "LN":
        unit = "nats x std" if reading.norms == "folded" else "nats x 2 stds"
    if model.cfg.normalization == "LN" and reading.norms == "folded":
        scale = (W_E.var(-1, correction=0, keepdim=True) + model.cfg.layer_norm_eps).sqrt()
    sides = {}
    for side, W, b in (
        ("queries", attn.W_Q[index], attn.b_Q[index]),
        ("keys", attn.W_K[index], attn.b_K[index]),
        ("values", attn.W_V[index], attn.b_V[index]),
    ):
        reads, constant = reading.part(block.ln1, W, b)
        sides[side] = W_E @ reads / scale
        if side != "values":
            sides[side] += constant
    sides["queries"] /= attn.W_Q.shape[-1] ** 0.5
    # ln_final's part is taken with W_O, which is small: W_U, which is not, is never copied
    identity = t.eye(model.cfg.d_model, dtype=W_E.dtype, device=W_E.device)
    final, _ = reading.part(model.ln_final, identity, W_E.new_zeros(model.cfg.d_model))
    readout = wide(attn.W_O[index]) @ final @ wide(model.unembed.W_U)
    return SkipReading(
        head=(layer, index),
        readout=readout - readout.mean(1, keepdim=True),
        unit=unit,
        **sides,
    )


def what_holds(reading: Reading, heads: Sequence[Head]) -> tuple[str, ...]:
    """What was left out or held fixed to read these heads, in words."""
    cfg, words = reading.model.cfg, []
    if any(layer > 0 for layer, _ in heads):
        words.append("layers above 0: read as if no layer below had written to the stream")
    if cfg.normalization == "LN" and reading.norms == "folded":
        words.append(
            "LayerNorms: w and centring folded in; ln1's scale is that of each token's embedding "
            "alone, ln_final's is left out, so an effect is nats times its std"
        )
    elif cfg.normalization == "LN":
        words.append("LayerNorms: taken for nothing")
    words.append(
        "biases: b_Q, b_K and ln1.b are in the scores; what b_V and ln1.b write, which is the same "
        "for every source, is left out"
    )
    if cfg.positions == "standard":
        words.append("positions: left out of queries, keys and values")
    elif cfg.positions == "shortformer":
        words.append("positions: left out of queries and keys")
    if not cfg.attn_only:
        words.append("MLPs: passed by")
    return tuple(words)
