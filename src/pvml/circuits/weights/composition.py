"""Which heads read what earlier heads wrote: Q-, K- and V-composition, each beside its null.

Score: |M1 M2| / (|M1| |M2|) with Frobenius norms, where M1 is what the lower head does to the
stream (W_V W_O) and M2 how the upper head reads it: its QK circuit from the query's or the key's
side, or its own W_V W_O. Source: Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits", "two-layer attention-only transformers". Two heads that have nothing to do with each
other still score about 1 / sqrt(d_model) and more if they are of low rank: hence the null.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch as t
from jaxtyping import Float
from torch import Tensor

from pvml.circuits.chance import SIGNIFICANCE, chance_above, told_p
from pvml.circuits.held import Head, block_of, require_finite, require_no_overflow, wide
from pvml.circuits.weights.maps import Norms, Reading
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

Kind = Literal["Q", "K", "V"]

N_NULL = 200
"""Random rotations that are drawn."""


@dataclass(frozen=True, kw_only=True)
class CompositionScore:
    """How far one head reads what a lower one wrote, and how far it would by chance."""

    kind: Kind
    """What the upper head uses it for: its queries, its keys, or what it carries on."""
    writer: Head
    """The lower head: layer and head, from 0."""
    reader: Head
    """The upper head."""
    score: float
    """|M1 M2| / (|M1| |M2|), from 0 to 1; NaN if a head does nothing."""
    null_mean: float
    """The mean of the same with the two turned against each other at random."""
    null_spread: float
    """Its standard deviation."""
    p: float
    """Probability of such a score by chance, times the number of scores tried (at most 1)."""
    processing: tuple[str, ...] = field(default=(), compare=False)
    """How the model's weights were rewritten, as its own `processing` says."""

    @property
    def beyond(self) -> bool:
        """Whether the two compose."""
        return self.p <= SIGNIFICANCE and self.score > self.null_mean

    def __str__(self) -> str:
        p = told_p(self.p)
        (below, writer), (above, reader) = self.writer, self.reader
        return (
            f"{self.kind}-composition of {above}.{reader} with {below}.{writer} "
            f"(score {self.score:.3f}; turned at random "
            f"{self.null_mean:.3f} ± {self.null_spread:.3f}; {p})"
        )


@dataclass(frozen=True, eq=False)
class _Ends:
    """A map as its two factors' inner sides: its norm with anything between needs no more."""

    left: Float[Tensor, "heads rank d_model"]
    right: Float[Tensor, "heads d_model rank"]
    norms: Float[Tensor, " heads"]


@t.no_grad()
def composition_scores(
    model: Transformer, *, norms: Norms = "folded", n_null: int = N_NULL, seed: int = 0
) -> list[CompositionScore]:
    """The three scores of every pair of heads in different layers.

    Null: both heads as they are, with a random rotation of the stream between them. It keeps what
    each can do alone, its singular values, and takes away only that one was made for the other.
    p: the share of rotations that reach the score, or where fewer than 10 do what `chance_above`
    makes of their mean and spread; times the number of scores (Bonferroni).

    Raises: PvmlError for an unknown `norms`, fewer than 100 rotations, or weights that are not
        finite or whose products are not.
    """
    if n_null < 100:
        raise PvmlError(f"n_null must be at least 100 rotations, got {n_null}")
    require_finite(model)
    reading = Reading(model, norms, biases=False)
    cfg, rng = model.cfg, t.Generator().manual_seed(seed)
    writers = [_ends(*_writing(reading, layer)) for layer in range(cfg.n_layers - 1)]
    readers = {
        (layer, kind): _ends(*_reading(reading, layer, kind))
        for layer in range(1, cfg.n_layers)
        for kind in get_args(Kind)
    }
    pairs = [(low, top) for low in range(cfg.n_layers - 1) for top in readers if top[0] > low]
    found = [_scores(writers[low], readers[top]) for low, top in pairs]
    nulls = [
        t.stack([_scores(writers[low], readers[top], turn) for low, top in pairs])
        for turn in _rotations(n_null if pairs else 0, cfg.d_model, rng)
    ]
    n_tests = len(pairs) * cfg.n_heads**2
    told = []
    for number, (low, (layer, kind)) in enumerate(pairs):
        null = t.stack([turned[number] for turned in nulls])
        for writer in range(cfg.n_heads):
            for reader in range(cfg.n_heads):
                score = float(found[number][writer, reader])
                by_chance = null[:, writer, reader]
                told.append(
                    CompositionScore(
                        kind=kind,
                        writer=(low, writer),
                        reader=(layer, reader),
                        score=score,
                        null_mean=float(by_chance.mean()),
                        null_spread=float(by_chance.std()),
                        p=min(1.0, chance_above(score, by_chance) * n_tests),
                        processing=model.processing,
                    )
                )
    return told


def _writing(
    reading: Reading, layer: int
) -> tuple[Float[Tensor, "heads d_model rank"], Float[Tensor, "heads rank d_model"]]:
    """W_V and W_O of every head of a layer, ln1 as the choice is."""
    attn = block_of(reading.model, layer).attn
    heads = [reading.values((layer, head)) for head in range(len(attn.W_V))]
    return t.stack([reads for reads, _ in heads]), t.stack([writes for _, writes in heads])


def _reading(
    reading: Reading, layer: int, kind: Kind
) -> tuple[Float[Tensor, "heads d_model rank"], Float[Tensor, "heads rank d_model"]]:
    """What a layer's heads make of a stream that they read for queries, keys or values."""
    if kind == "V":
        return _writing(reading, layer)
    block = block_of(reading.model, layer)
    q, k = (
        t.stack([reading.part(block.ln1, one, bias)[0] for one, bias in zip(W, b, strict=True)])
        for W, b in ((block.attn.W_Q, block.attn.b_Q), (block.attn.W_K, block.attn.b_K))
    )
    return (q, k.mT) if kind == "Q" else (k, q.mT)


def _ends(
    left: Float[Tensor, "heads d_model rank"], right: Float[Tensor, "heads rank d_model"]
) -> _Ends:
    left, right = wide(left).double(), wide(right).double()
    outer_left = t.linalg.qr(left, mode="r").R  # the outer sides turn nothing but directions
    outer_right = t.linalg.qr(right.mT, mode="r").R
    ends = _Ends(
        left=outer_left @ right,
        right=left @ outer_right.mT,
        norms=t.linalg.matrix_norm(outer_left @ outer_right.mT),
    )
    for made in (ends.left, ends.right, ends.norms):
        require_no_overflow(made, "a head's circuit")
    return ends


def _scores(
    writer: _Ends, reader: _Ends, turn: Float[Tensor, "d_model d_model"] | None = None
) -> Float[Tensor, "writers readers"]:
    between = writer.left if turn is None else writer.left @ turn
    products = t.einsum("wad,rdb->wrab", between, reader.right)
    scores: Tensor = t.linalg.matrix_norm(products) / (writer.norms[:, None] * reader.norms)
    return scores


def _rotations(n: int, size: int, rng: t.Generator) -> Iterator[Float[Tensor, "d_model d_model"]]:
    """Orthogonal matrices, each as likely as any other. Source: Mezzadri 2007, math-ph/0609050."""
    for _ in range(n):
        q, r = t.linalg.qr(t.randn(size, size, generator=rng, dtype=t.float64))
        yield q * r.diagonal().sign()
