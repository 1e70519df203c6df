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
from einops import einsum
from jaxtyping import Float, Int
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from pvml.errors import CheckFailed, PvmlError
from pvml.modules.attention import Attention
from pvml.modules.block import TransformerBlock
from pvml.modules.normalization import LayerNorm
from pvml.modules.transformer import Transformer
from pvml.trace.capture import ActivationCache

TOLERANCE = {t.float64: 1e-12, t.float32: 1e-5, t.float16: 2e-2, t.bfloat16: 1e-1}
"""Largest error of the sum allowed, relative to the largest logit, by the model's dtype."""

_NEEDED = (".attn_pattern", ".resid_pre", ".residual_std", "unembed.logits")


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
        pairs = [(term, self._at(term.vector, token, minus)) for term in self.terms]
        return sorted(pairs, key=lambda pair: -abs(pair[1]))

    def logit(self, token: int, minus: int | None = None) -> float:
        """The model's own logit of a token, or the difference of two (nats)."""
        return self._at(self.logits, token, minus)

    def by_source(
        self, layer: int, head: int, token: int, minus: int | None = None
    ) -> Float[Tensor, " posn_k"]:
        """What a head adds to a token's logit from each position: share times OV entry (nats).

        Raises: PvmlError for a head or a token that the model does not have.
        """
        term = self[f"head {layer}.{head}"]
        assert isinstance(term, HeadTerm)
        direction = self.readout[:, self._known(token)]
        if minus is not None:
            direction = direction - self.readout[:, self._known(minus)]
        return term.row * (term.ov_rows @ direction)

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

    def _at(self, vector: Tensor, token: int, minus: int | None) -> float:
        value = vector[self._known(token)]
        return float(value if minus is None else value - vector[self._known(minus)])

    def _known(self, token: int) -> int:
        if not 0 <= token < len(self.logits):
            raise PvmlError(
                f"token id {token} is outside the vocabulary: ids run from 0 to "
                f"{len(self.logits) - 1}"
            )
        return token


@t.no_grad()
def decompose(model: Transformer, tokens: Int[Tensor, "batch posn"], position: int = -1) -> Routes:
    """The logits at `position` as a sum of routes, checked against the model's own.

    position: counted from 0, or from the end if negative.

    Raises: PvmlError for a model with MLPs, a batch other than 1, a position that is not there;
        CheckFailed if the terms do not add up to the logits.
    """
    here = _require_one_prediction(model, tokens, position)
    tokens = tokens[:, : here + 1]  # nothing behind a position reaches it
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith(_NEEDED))
    logits = _wide(cache["unembed.logits"][0, here])
    readout = _readout(model, cache)
    terms = (
        *_direct(model, int(tokens[0, here]), here, readout),
        *_heads(model, cache, readout),
        *_biases(model, readout),
    )
    total = t.stack([term.vector for term in terms]).sum(0)
    error = float((total - logits).abs().max() / (logits.abs().max() or 1.0))
    if not error <= TOLERANCE[model.dtype]:
        raise CheckFailed(
            f"the terms do not add up to the logits: off by {error:.1e} of the largest logit, "
            f"where {model.dtype} allows {TOLERANCE[model.dtype]:.0e}. Is something editing this "
            f"model's tensors, or are its numbers not finite? If not, this is a fault of PvML"
        )
    return Routes(
        position=here,
        terms=terms,
        logits=logits,
        error=error,
        frozen=_frozen(model),
        readout=readout,
    )


def _require_one_prediction(model: Transformer, tokens: Tensor, position: int) -> int:
    if model.cfg.n_layers and not model.cfg.attn_only:
        raise PvmlError(
            "this model has MLPs, which are not linear and have no term here: decompose takes "
            "attention-only models (Config(attn_only=True), `pvml train --attn-only`)"
        )
    if tokens.ndim != 2 or tokens.shape[0] != 1:
        raise PvmlError(
            f"decompose takes one sequence, of shape (1, posn); got {tuple(tokens.shape)}"
        )
    n = tokens.shape[1]
    if not -n <= position < n:
        raise PvmlError(f"position {position} is not in a sequence of {n} tokens")
    return position % n


def _wide(x: Tensor) -> Tensor:
    """Half types are summed in float32: their own sums would be off by more than the model is."""
    return x if x.dtype == t.float64 else x.float()


def _readout(model: Transformer, cache: ActivationCache) -> Float[Tensor, "d_model d_vocab"]:
    W_U = _wide(model.unembed.W_U)
    if not isinstance(model.ln_final, LayerNorm):
        return W_U
    std = _wide(cache["ln_final.residual_std"][0, -1])
    scaled = (_wide(model.ln_final.w) / std)[:, None] * W_U
    return scaled - scaled.mean(0)  # centring the stream is centring each column over d_model


def _direct(
    model: Transformer, token: int, position: int, readout: Float[Tensor, "d_model d_vocab"]
) -> Iterator[Term]:
    vector = _wide(model.embed.W_E[token]) @ readout
    yield Term(name="token", kind="direct", vector=vector)
    if model.cfg.positions == "standard":
        vector = _wide(model.pos_embed.W_pos[position]) @ readout
        yield Term(name="position", kind="direct", vector=vector)


def _heads(
    model: Transformer, cache: ActivationCache, readout: Float[Tensor, "d_model d_vocab"]
) -> Iterator[HeadTerm]:
    for layer, attn, ln1 in _layers(model):
        path = f"blocks.{layer}"
        x = _wide(cache[f"{path}.resid_pre"][0])
        if isinstance(ln1, LayerNorm):
            std = _wide(cache[f"{path}.ln1.residual_std"][0])
            x = (x - x.mean(-1, keepdim=True)) / std * _wide(ln1.w) + _wide(ln1.b)
        rows = _wide(cache[f"{path}.attn.attn_pattern"][0, :, -1])
        for head, row in enumerate(rows):
            v = x @ _wide(attn.W_V[head]) + _wide(attn.b_V[head])
            ov_rows = v @ _wide(attn.W_O[head])
            written = einsum(row, ov_rows, "posn_k, posn_k d_model -> d_model")
            yield HeadTerm(
                name=f"head {layer}.{head}",
                kind="head",
                vector=written @ readout,
                layer=layer,
                head=head,
                row=row,
                ov_rows=ov_rows,
            )


def _biases(model: Transformer, readout: Float[Tensor, "d_model d_vocab"]) -> Iterator[Term]:
    for layer, attn, _ in _layers(model):
        vector = _wide(attn.b_O) @ readout
        yield Term(name=f"b_O {layer}", kind="bias", vector=vector, layer=layer)
    if isinstance(model.ln_final, LayerNorm):
        vector = _wide(model.ln_final.b) @ _wide(model.unembed.W_U)
        yield Term(name="ln_final.b", kind="bias", vector=vector)
    yield Term(name="b_U", kind="bias", vector=_wide(model.unembed.b_U).clone())


def _layers(model: Transformer) -> Iterator[tuple[int, Attention, nn.Module]]:
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, TransformerBlock)
        yield layer, block.attn, block.ln1


def _frozen(model: Transformer) -> tuple[str, ...]:
    held = ["attention patterns"] if model.cfg.n_layers else []
    if model.cfg.normalization == "LN":
        held.append("LayerNorms' standard deviations")
    if model.cfg.n_layers > 1:
        held.append("what each layer reads from the layers below")
    return tuple(held)
