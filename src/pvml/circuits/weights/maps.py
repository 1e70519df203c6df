"""The circuits of a model, read off its weights: where each head looks, and what its look does.

Row vectors, as everywhere here: a circuit's row is what is read (for QK: the query), its column
what is answered (for QK: the key). What has to hold for a circuit to be what the model computes is
in its `holds`. Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits",
whose matrices are the transposes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch as t
from jaxtyping import Float
from torch import Tensor, nn

from pvml.circuits.held import Head, block_of, require_head, wide
from pvml.circuits.weights.factored import FactoredMap
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.processing.changes import described
from pvml.processing.folding import folded

Space = Literal["vocabulary", "positions", "stream"]
"""What a circuit's rows or columns are: tokens, positions, or the stream's d_model directions."""
Norms = Literal["folded", "ignored"]
"""LayerNorms' w and centring belong to the products that read them, or are taken for nothing."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Circuit:
    """A part of a model as one linear map."""

    name: str
    """As `OV 1.3`, `QK 1.3, keys through 0.1`, `bigram`."""
    map: FactoredMap
    rows: Space
    columns: Space
    holds: tuple[str, ...]
    """What was left out or held fixed, in words: under these it is what the model computes."""
    left_out: tuple[str, ...] = ()
    """The LayerNorms whose 1/std is left out, as `blocks.0.ln1`, once for each division: divided
    by their stds, an entry is what it is in a pass."""

    def __repr__(self) -> str:
        held = f": {'; '.join(self.holds)}" if self.holds else ""
        return f"<{self.name}, {self.rows} by {self.columns}, {self.map!r}{held}>"


@dataclass(frozen=True)
class Reading:
    """How a model is read: the choices that every circuit of one call shares."""

    model: Transformer
    norms: Norms
    biases: bool

    def __post_init__(self) -> None:
        if self.norms not in get_args(Norms):
            raise PvmlError(
                f"norms must be one of {', '.join(get_args(Norms))}, got {self.norms!r}"
            )

    def part(
        self, ln: nn.Module, W: Float[Tensor, "d_model out"], b: Float[Tensor, " out"]
    ) -> tuple[Float[Tensor, "d_model out"], Float[Tensor, " out"]]:
        """What a product reads from the stream, ln's scale left out, and the constant beside it."""
        if self.norms == "ignored":
            return wide(W), wide(b)
        return folded(ln, wide(W), wide(b))

    def said(self, *biases: str) -> tuple[str, ...]:
        """What has to hold, in words. biases: what they are called here."""
        cfg, words = self.model.cfg, []
        if cfg.normalization == "LN":
            kept = "w and centring folded in" if self.norms == "folded" else "taken for nothing"
            words.append(f"LayerNorms: {kept}, the scale 1/std left out")
        if biases:
            what = "included" if self.biases else "left out"
            words.append(f"biases ({', '.join(biases)}): {what}")
        if cfg.n_layers and not cfg.attn_only:
            words.append("MLPs: passed by")
        if self.model.processing:
            words.append(described(self.model.processing))
        return tuple(words)

    def left_out(self, *norms: str) -> tuple[str, ...]:
        """Those of these LayerNorms that divide by something."""
        return norms if self.model.cfg.normalization == "LN" else ()

    def came_by(self, space: Space, through: Sequence[Head]) -> "FactoredMap | Tensor | None":
        """What a token or position writes to the stream, through a chain of heads; None: itself.

        Raises: PvmlError for heads that are not there or not in the order of their layers, or for
            positions that do not come into the stream.
        """
        written: FactoredMap | Tensor | None = None
        if space == "vocabulary":
            written = wide(self.model.embed.W_E)
        elif space == "positions":
            if self.model.cfg.positions != "standard":
                raise PvmlError(
                    f"positions do not come into this model's stream (positions "
                    f"{self.model.cfg.positions!r}), so nothing reads them there"
                )
            written = wide(self.model.pos_embed.W_pos)
        elif space != "stream":
            raise PvmlError(f"a space is one of {', '.join(get_args(Space))}, got {space!r}")
        for below, above in pairwise(through):
            if below[0] >= above[0]:
                raise PvmlError(
                    f"head {above[0]}.{above[1]} cannot read what {below[0]}.{below[1]} writes: "
                    f"give heads of rising layers"
                )
        for head in through:
            reads, writes = self.values(head)
            first = reads if written is None else written @ reads
            written = (
                first @ writes if isinstance(first, FactoredMap) else FactoredMap(first, writes)
            )
        return written

    def values(
        self, head: Head
    ) -> tuple[Float[Tensor, "d_model d_head"], Float[Tensor, "d_head d_model"]]:
        """How a head reads what it carries, and how it writes it."""
        layer, index = require_head(self.model, head)
        block = block_of(self.model, layer)
        reads, _ = self.part(block.ln1, block.attn.W_V[index], block.attn.b_V[index])
        return reads, wide(block.attn.W_O[index])


@t.no_grad()
def bigram(model: Transformer, *, norms: Norms = "folded", biases: bool = False) -> Circuit:
    """The direct path, `W_E W_U`: what a token alone says about the next.

    biases: with ln_final.b and b_U, which say the same after every token.

    Raises: PvmlError for an unknown `norms`.
    """
    reading = Reading(model, norms, biases)
    left = wide(model.embed.W_E)
    right, constant = reading.part(model.ln_final, model.unembed.W_U, model.unembed.b_U)
    if biases:
        left = t.cat([left, left.new_ones(len(left), 1)], 1)
        right = t.cat([right, constant[None]])
    return Circuit(
        name="bigram",
        map=FactoredMap(left, right),
        rows="vocabulary",
        columns="vocabulary",
        holds=reading.said("ln_final.b", "b_U"),
        left_out=reading.left_out("ln_final"),
    )


@t.no_grad()
def ov(
    model: Transformer,
    *heads: Head,
    rows: Space = "vocabulary",
    columns: Space = "vocabulary",
    norms: Norms = "folded",
    biases: bool = False,
) -> Circuit:
    """What reading a row does to each column: `W_E W_V W_O W_U` of a head (layer, head).

    heads: several, of rising layers, make a virtual head: each reads what the one before wrote.
    rows: tokens, positions (of a model that adds them to the stream), or the stream's directions.
    columns: tokens, or the stream's directions. biases: b_V and ln1.b of the first head come with
    each token; positions bring none, so that the two add up.

    Raises: PvmlError for no head, one that is not there, falling layers, or a space that the model
        does not have there.
    """
    reading = Reading(model, norms, biases)
    if not heads:
        raise PvmlError("an OV circuit needs a head: ov(model, (layer, head))")
    if columns not in ("vocabulary", "stream"):
        raise PvmlError(f"an OV circuit ends in the vocabulary or the stream, got {columns!r}")
    heads = tuple(require_head(model, head) for head in heads)
    first, *later = heads
    reading.came_by("stream", heads)  # refuses what is no chain, before anything is computed
    read = _read(reading, first, rows)
    found = FactoredMap(read, reading.values(first)[1])
    for head in later:
        reads, writes = reading.values(head)
        found = found @ FactoredMap(reads, writes)
    if columns == "vocabulary":
        # ln_final's part is taken with the narrow factor: W_U, which is large, is never copied
        W_U = wide(model.unembed.W_U)
        identity = t.eye(len(W_U), dtype=W_U.dtype, device=W_U.device)
        final, _ = reading.part(model.ln_final, identity, W_U.new_zeros(len(W_U)))
        found = found @ final @ W_U
    return Circuit(
        name="OV " + " > ".join(f"{layer}.{head}" for layer, head in heads),
        map=found,
        rows=rows,
        columns=columns,
        holds=reading.said("b_V", "ln1.b"),
        left_out=reading.left_out(
            *_first_norms(heads), *(["ln_final"] if columns == "vocabulary" else [])
        ),
    )


@t.no_grad()
def qk(
    model: Transformer,
    head: Head,
    *,
    queries: Space = "vocabulary",
    keys: Space = "vocabulary",
    queries_through: Sequence[Head] = (),
    keys_through: Sequence[Head] = (),
    scaled: bool = False,
    norms: Norms = "folded",
    biases: bool = False,
) -> Circuit:
    """How well a key (column) answers a query (row): `W_E W_Q W_K^T W_E^T` of a head.

    queries, keys: tokens, positions (added to the stream, or of a shortformer), or the stream's
    directions. queries_through, keys_through: heads of lower layers that the query or the key came
    by, the lowest first: Q- and K-composition. scaled: divided by sqrt(d_head), as attention does;
    the paper's circuit is not. biases: b_Q, b_K and ln1.b come with each token; positions bring
    none, so that the four circuits of tokens and positions add up to a score.

    Raises: PvmlError for a head that is not there, heads that are not below it, or a space that the
        model does not have there.
    """
    reading = Reading(model, norms, biases)
    layer, index = require_head(model, head)
    queries_through, keys_through = (
        tuple(require_head(model, below) for below in through)
        for through in (queries_through, keys_through)
    )
    attn = block_of(reading.model, layer).attn
    sides = (
        (queries, queries_through, attn.W_Q[index], attn.b_Q[index]),
        (keys, keys_through, attn.W_K[index], attn.b_K[index]),
    )
    q, k = (_asked(reading, layer, *side) for side in sides)
    if isinstance(q, FactoredMap) or isinstance(k, FactoredMap):
        q, k = (x if isinstance(x, FactoredMap) else _as_map(x) for x in (q, k))
        found = q @ k.T
    else:
        found = FactoredMap(q, k.T)
    if scaled:
        found = FactoredMap(found.left / attn.W_Q.shape[-1] ** 0.5, found.right)
    return Circuit(
        name=f"QK {layer}.{index}"
        + "".join(
            f", {what} through {' > '.join(f'{at}.{which}' for at, which in through)}"
            for what, through in (("queries", queries_through), ("keys", keys_through))
            if through
        ),
        map=found,
        rows=queries,
        columns=keys,
        holds=(
            *reading.said("b_Q", "b_K", "ln1.b"),
            "divided by sqrt(d_head)" if scaled else "not divided by sqrt(d_head)",
        ),
        left_out=reading.left_out(
            *(
                norm
                for space, through in ((queries, queries_through), (keys, keys_through))
                # a shortformer's positions are added behind ln1
                if space != "positions" or model.cfg.positions != "shortformer"
                for norm in _first_norms([*through, head])
            )
        ),
    )


def _first_norms(heads: Sequence[Head]) -> list[str]:
    """The LayerNorms that heads read through."""
    return [f"blocks.{layer}.ln1" for layer, _ in heads]


def _read(reading: Reading, head: Head, rows: Space) -> Float[Tensor, "rows d_head"]:
    """What a head carries away from each row."""
    layer, index = require_head(reading.model, head)
    block = block_of(reading.model, layer)
    reads, constant = reading.part(block.ln1, block.attn.W_V[index], block.attn.b_V[index])
    written = reading.came_by(rows, ())
    read = reads if written is None else written @ reads
    assert isinstance(read, Tensor)
    return read + constant if reading.biases and rows == "vocabulary" else read


def _asked(
    reading: Reading,
    layer: int,
    space: Space,
    through: Sequence[Head],
    W: Float[Tensor, "d_model d_head"],
    b: Float[Tensor, " d_head"],
) -> FactoredMap | Tensor:
    """Each row's query or key."""
    for below, index in through:
        if below >= layer:
            raise PvmlError(
                f"head {below}.{index} is not below layer {layer}, which cannot read it"
            )
    if space == "positions" and reading.model.cfg.positions == "shortformer":
        if through:
            raise PvmlError("a shortformer's positions go through no head: they are never read")
        # added behind ln1, at every layer
        return wide(reading.model.pos_embed.W_pos) @ wide(W)
    reads, constant = reading.part(block_of(reading.model, layer).ln1, W, b)
    written = reading.came_by(space, through)
    if written is None:
        return reads
    asked = written @ reads
    if not reading.biases or space != "vocabulary":
        return asked
    if isinstance(asked, FactoredMap):
        ones = asked.left.new_ones(asked.shape[0], 1)
        return FactoredMap(t.cat([asked.left, ones], 1), t.cat([asked.right, constant[None]]))
    return asked + constant


def _as_map(x: Float[Tensor, "rows width"]) -> FactoredMap:
    """A matrix as a map: through an identity of its width."""
    return FactoredMap(x, t.eye(x.shape[1], dtype=x.dtype, device=x.device))
