"""A prediction taken apart: the logits at one position as a sum of what each route brought.

With attention patterns and LayerNorm scales frozen at what they were, the rest of an attention-only
model is linear, so the parts add up to the logits exactly: the direct route, one term a head, and
the biases. What a later layer read from an earlier one stays inside the later heads' terms.
Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", one-layer models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch as t
from jaxtyping import Float, Int
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from pvml.circuits.held import (
    HeldPass,
    at,
    hold,
    relative_error,
    require_one_sequence,
    require_position,
    require_sum,
    wide,
)
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer


@dataclass(frozen=True, kw_only=True, eq=False)
class Term:
    """One summand of the logits."""

    name: str
    """token, position, head 0.3 (layer.head, from 0), b_O 0 (layer), ln_final.b or b_U."""
    kind: Literal["direct", "head", "bias"]
    vector: Float[Tensor, " d_vocab"]
    """What it adds to each token's logit (nats)."""
    layer: int | None = None
    """Counted from 0; None where a term belongs to no layer."""
    head: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadTerm(Term):
    """What one head added: its attention row times its OV table at the tokens it read."""

    row: Float[Tensor, " posn_k"]
    """The share of its attention that each position up to this one got; they add up to 1."""
    ov_rows: Float[Tensor, "posn_k d_model"]
    """What it would write to the stream if it read only that position."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Routes:
    """The logits at one position, and the terms they are the sum of."""

    position: int
    """Where, counted from 0."""
    terms: tuple[Term, ...]
    logits: Float[Tensor, " d_vocab"]
    """The model's own (nats)."""
    error: float
    """max|sum - logits| / max|logits|, at most TOLERANCE."""
    frozen: tuple[str, ...]
    """What was held at the value it had in this pass, so that all the rest is linear."""
    readout: Float[Tensor, "d_model d_vocab"]
    """The frozen way from the stream to the logits: ln_final's linear part, then W_U."""
    processing: tuple[str, ...] = ()
    """How the model's weights were rewritten, as its own `processing` says."""

    def __getitem__(self, name: str) -> Term:
        """The term of that name.

        Raises: PvmlError for any other name; it lists them.
        """
        for term in self.terms:
            if term.name == name:
                return term
        names = ", ".join(term.name for term in self.terms)
        raise PvmlError(f"there is no term {name!r}: this prediction has {names}")

    def values(self, token: int, minus: int | None = None) -> list[tuple[Term, float]]:
        """What each term adds to a token's logit, by size, the largest first (nats).

        minus: take the difference of the token's logit and this one's instead.

        Raises: PvmlError for an id outside the vocabulary.
        """
        pairs = [(term, float(at(term.vector, token, minus))) for term in self.terms]
        return sorted(pairs, key=lambda pair: -abs(pair[1]))

    def logit(self, token: int, minus: int | None = None) -> float:
        """The model's own logit of a token, or the difference of two (nats)."""
        return float(at(self.logits, token, minus))

    def by_source(
        self, layer: int, head: int, token: int, minus: int | None = None
    ) -> Float[Tensor, " posn_k"]:
        """What a head adds to a token's logit from each position: share times OV entry (nats).

        Raises: PvmlError for a head or a token that the model does not have.
        """
        term = self[f"head {layer}.{head}"]
        assert isinstance(term, HeadTerm)
        return term.row * (term.ov_rows @ at(self.readout, token, minus))

    def table(
        self, token: int, minus: int | None = None, texts: Sequence[str] | None = None
    ) -> Table:
        """`values` as a table, with their sum and the model's own logit at its foot.

        texts: what each id of the vocabulary stands for (default: show ids).
        """
        names = [repr(texts[i]) if texts else f"token {i}" for i in (token, minus) if i is not None]
        table = Table("term", escape(f"adds to the logit of {' minus '.join(names)}"))
        table.columns[1].justify = "right"
        values = self.values(token, minus)
        for term, value in values:
            table.add_row(term.name, f"{value:+.4f}")
        table.add_section()
        table.add_row("sum", f"{sum(value for _, value in values):+.4f}")
        table.add_row("the model's own", f"{self.logit(token, minus):+.4f}")
        return table


@t.no_grad()
def decompose(model: Transformer, tokens: Int[Tensor, "batch posn"], position: int = -1) -> Routes:
    """The logits at `position` as a sum of routes, checked against the model's own.

    position: counted from 0, or from the end if negative.

    Raises: PvmlError for a model with MLPs, a batch other than 1, a position that is not there;
        CheckFailed if the terms do not add up to the logits.
    """
    here = _require_one_prediction(model, tokens, position)
    held = hold(model, tokens[:, : here + 1])  # nothing behind a position reaches it
    readout, logits = held.readout(here), held.logits[here]
    terms = (*_direct(held, readout), *_heads(held, readout), *_biases(held, readout))
    error = relative_error(t.stack([term.vector for term in terms]).sum(0), logits)
    require_sum(error, model.dtype, "the logits")
    below = ("what each layer reads from the layers below",) if model.cfg.n_layers > 1 else ()
    return Routes(
        position=here,
        terms=terms,
        logits=logits,
        error=error,
        frozen=(*held.frozen, *below),
        processing=model.processing,
        readout=readout,
    )


def _require_one_prediction(model: Transformer, tokens: Tensor, position: int) -> int:
    if model.cfg.n_layers and not model.cfg.attn_only:
        raise PvmlError(
            "this model has MLPs, which are not linear and have no term here: decompose takes "
            "attention-only models (Config(attn_only=True), `pvml train --attn-only`)"
        )
    require_one_sequence(tokens)
    return require_position(position, tokens.shape[1])


def _direct(held: HeldPass, readout: Float[Tensor, "d_model d_vocab"]) -> Iterator[Term]:
    model, position = held.model, len(held.tokens) - 1
    vector = wide(model.embed.W_E[int(held.tokens[-1])]) @ readout
    yield Term(name="token", kind="direct", vector=vector)
    if model.cfg.positions == "standard":
        vector = wide(model.pos_embed.W_pos[position]) @ readout
        yield Term(name="position", kind="direct", vector=vector)


def _heads(held: HeldPass, readout: Float[Tensor, "d_model d_vocab"]) -> Iterator[HeadTerm]:
    for layer, patterns in enumerate(held.patterns):
        attn, x = held.attention(layer), held.streams[layer] / held.stds[layer][:, None]
        for head, row in enumerate(patterns[:, -1]):
            reads, constant = held.reading(layer, attn.W_V[head], attn.b_V[head])
            ov_rows = (x @ reads + constant) @ wide(attn.W_O[head])
            yield HeadTerm(
                name=f"head {layer}.{head}",
                kind="head",
                vector=row @ ov_rows @ readout,
                layer=layer,
                head=head,
                row=row,
                ov_rows=ov_rows,
            )


def _biases(held: HeldPass, readout: Float[Tensor, "d_model d_vocab"]) -> Iterator[Term]:
    for layer in range(len(held.patterns)):
        vector = wide(held.attention(layer).b_O) @ readout
        yield Term(name=f"b_O {layer}", kind="bias", vector=vector, layer=layer)
    for name, vector in held.constants():
        yield Term(name=name, kind="bias", vector=vector)
