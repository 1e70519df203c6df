"""A prediction as the sum of all end-to-end paths: from each source, through each chain of heads.

With attention patterns frozen a model is linear, and its logits are a sum over paths: the token's
embedding straight to the logits (the direct path), through one head, through a head that reads
what an earlier head wrote (a virtual head), and so on. Positions, biases and MLPs are sources of
their own. Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", "path
expansion".
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import torch as t
from jaxtyping import Float, Int
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from pvml.circuits.held import (
    Head,
    HeldPass,
    at,
    hold,
    relative_error,
    require_one_sequence,
    require_position,
    require_sum,
    wide,
)
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

MOST_PATHS = 200_000
"""Paths that `expand` takes unless it is told to: each is a vector of d_model numbers."""
REST = "the rest"
"""The term of a pruned expansion that adds up what was left out."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Path:
    """One way from a source to what reads the stream, and what comes along it."""

    source: str
    """token, position, b_V 0.1 (layer.head: what its b_V and ln1.b write), b_O 0, mlp 0."""
    heads: tuple[Head, ...]
    """The heads on the way, the lowest first; none: the direct path."""
    stream: Float[Tensor, " d_model"]
    """What it adds to the stream at the position."""

    @property
    def name(self) -> str:
        """The source and the heads, as `token > 0.1 > 1.3`."""
        return " > ".join([self.source, *(f"{layer}.{head}" for layer, head in self.heads)])

    @property
    def order(self) -> int:
        """How many heads it goes through."""
        return len(self.heads)

    def __repr__(self) -> str:
        return f"<path {self.name}>"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PathTerm:
    """One summand of the logits: a path's, a constant's, or what was pruned."""

    name: str
    """The path's name; ln_final.b or b_U; REST."""
    path: Path | None
    vector: Float[Tensor, " d_vocab"]
    """What it adds to each token's logit (nats)."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads on the way, the lowest first."""
        return self.path.heads if self.path else ()

    def __repr__(self) -> str:
        return f"<term {self.name}>"


@dataclass(frozen=True)
class Terms(Sequence[PathTerm]):
    """The summands of an expansion; each one's vector is made when it is asked for."""

    of: "Expansion"

    def __len__(self) -> int:
        return len(self.of.paths) + len(self.of.constants)

    @overload
    def __getitem__(self, which: int) -> PathTerm: ...
    @overload
    def __getitem__(self, which: slice) -> list[PathTerm]: ...
    def __getitem__(self, which: int | slice) -> PathTerm | list[PathTerm]:
        if isinstance(which, slice):
            return [self[i] for i in range(len(self))[which]]
        place, n_paths = range(len(self))[which], len(self.of.paths)
        if place < n_paths:
            return self.of.term_of(self.of.paths[place])
        return self.of.constants[place - n_paths]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Expansion:
    """The logits at one position, and the paths that they are the sum of."""

    position: int
    """Where, counted from 0."""
    paths: tuple[Path, ...]
    constants: tuple[PathTerm, ...]
    """What no path brings: ln_final.b, b_U, and the rest of a pruned expansion."""
    logits: Float[Tensor, " d_vocab"]
    """The model's own (nats)."""
    frozen: tuple[str, ...]
    """What was held at the value it had in this pass."""
    readout: Float[Tensor, "d_model d_vocab"]
    """The frozen way from the stream to the logits."""
    n_pruned: int = 0
    """Paths that were added up into `the rest`."""
    processing: tuple[str, ...] = ()
    """How the model's weights were rewritten, as its own `processing` says."""

    @cached_property
    def _streams(self) -> Float[Tensor, "n_paths d_model"]:
        if not self.paths:
            return self.readout.new_zeros(0, len(self.readout))
        return t.stack([path.stream for path in self.paths])

    @property
    def terms(self) -> Terms:
        """Every summand: paths, then constants."""
        return Terms(self)

    @property
    def total(self) -> Float[Tensor, " d_vocab"]:
        """The sum of all terms (nats)."""
        return self._streams.sum(0) @ self.readout + sum(term.vector for term in self.constants)

    @cached_property
    def error(self) -> float:
        """max|total - logits| / max|logits|."""
        return relative_error(self.total, self.logits)

    def __getitem__(self, name: str) -> PathTerm:
        """The term of that name, as `token > 0.1`.

        Raises: PvmlError for any other name; it says which there are.
        """
        for path in self.paths:
            if path.name == name:
                return self.term_of(path)
        for term in self.constants:
            if term.name == name:
                return term
        names = [*(path.name for path in self.paths), *(term.name for term in self.constants)]
        some = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise PvmlError(f"there is no term {name!r}: this expansion has {some}")

    def values(self, token: int, minus: int | None = None) -> list[tuple[str, float]]:
        """What each term adds to a token's logit, by size, the largest first (nats).

        minus: take the difference of the token's logit and this one's instead.

        Raises: PvmlError for an id outside the vocabulary.
        """
        values = self._of_paths(token, minus).tolist()
        pairs = [(path.name, value) for path, value in zip(self.paths, values, strict=True)]
        pairs += [(term.name, float(at(term.vector, token, minus))) for term in self.constants]
        return sorted(pairs, key=lambda pair: -abs(pair[1]))

    def logit(self, token: int, minus: int | None = None) -> float:
        """The model's own logit of a token, or the difference of two (nats)."""
        return float(at(self.logits, token, minus))

    def by_order(self, token: int, minus: int | None = None) -> list[float]:
        """What all paths of 0, 1, 2, ... heads add together (nats); constants are in none."""
        sums = [0.0] * (1 + max((path.order for path in self.paths), default=0))
        for path, value in zip(self.paths, self._of_paths(token, minus).tolist(), strict=True):
            sums[path.order] += value
        return sums

    def pruned(self, least: float, token: int, minus: int | None = None) -> "Expansion":
        """The same sum with fewer terms: paths that add less than `least` nats become `the rest`.

        Raises: PvmlError for a negative or NaN `least`, or an id outside the vocabulary.
        """
        if not least >= 0:
            raise PvmlError(f"least must be a number of nats of at least 0, got {least}")
        keep = (self._of_paths(token, minus).abs() >= least).tolist()
        rest = self._streams[[not kept for kept in keep]].sum(0) @ self.readout
        rest = sum((term.vector for term in self.constants if term.name == REST), rest)
        constants = [term for term in self.constants if term.name != REST]
        return Expansion(
            position=self.position,
            paths=tuple(path for path, kept in zip(self.paths, keep, strict=True) if kept),
            constants=(*constants, PathTerm(name=REST, path=None, vector=rest)),
            logits=self.logits,
            frozen=self.frozen,
            processing=self.processing,
            readout=self.readout,
            n_pruned=self.n_pruned + keep.count(False),
        )

    def table(
        self,
        token: int,
        minus: int | None = None,
        texts: Sequence[str] | None = None,
        most: int = 20,
    ) -> Table:
        """The largest `values` as a table, with the sum of the others, and the logit at its foot.

        texts: what each id of the vocabulary stands for (default: show ids).
        """
        names = [repr(texts[i]) if texts else f"token {i}" for i in (token, minus) if i is not None]
        table = Table("path", escape(f"adds to the logit of {' minus '.join(names)}"))
        table.columns[1].justify = "right"
        values = self.values(token, minus)
        for name, value in values[:most]:
            table.add_row(name, f"{value:+.4f}")
        if others := values[most:]:
            table.add_row(f"{len(others):,} others", f"{sum(value for _, value in others):+.4f}")
        table.add_section()
        table.add_row("sum", f"{sum(value for _, value in values):+.4f}")
        table.add_row("the model's own", f"{self.logit(token, minus):+.4f}")
        return table

    def check(self) -> str:
        """A line that says how well the terms add up."""
        pruned = f", {self.n_pruned:,} of them as one rest" if self.n_pruned else ""
        n = sum(term.name != REST for term in self.constants)
        return (
            f"{len(self.paths) + self.n_pruned:,} paths{pruned} and {n} "
            f"constant{'' if n == 1 else 's'} add up to the logits: off by at most "
            f"{self.error:.1e} of the largest"
        )

    def __repr__(self) -> str:
        return f"<the logits at position {self.position}: {self.check()}>"

    def term_of(self, path: Path) -> PathTerm:
        """A path's summand."""
        return PathTerm(name=path.name, path=path, vector=path.stream @ self.readout)

    def _of_paths(self, token: int, minus: int | None) -> Float[Tensor, " n_paths"]:
        return self._streams @ at(self.readout, token, minus)


def count_paths(cfg: Config, layers: int | None = None) -> int:
    """How many paths lead from the sources through the first `layers` layers (default: all).

    Of a token's own: the product of (1 + n_heads) over the layers. Positions, biases and MLPs that
    come in at a layer take the layers above it.
    """
    n_layers, through = cfg.n_layers if layers is None else layers, 1 + cfg.n_heads
    total = (1 + (cfg.positions == "standard")) * math.prod([through] * n_layers)
    for layer in range(n_layers):
        born_here = cfg.n_heads + 1 + (not cfg.attn_only)
        total += born_here * math.prod([through] * (n_layers - 1 - layer))
    return total


@t.no_grad()
def expand(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    position: int = -1,
    *,
    most_paths: int = MOST_PATHS,
    quiet: bool = False,
) -> Expansion:
    """The logits at `position` as a sum of paths, checked against the model's own.

    tokens: a batch of one. position: counted from 0, or from the end if negative. quiet: do not
    print how many paths there are, and how well they add up.

    Raises: PvmlError for a batch other than 1, a position that is not there, or more than
        most_paths paths; CheckFailed if they do not add up to the logits.
    """
    require_one_sequence(tokens)
    here = require_position(position, tokens.shape[1])
    n_paths = count_paths(model.cfg)
    if n_paths > most_paths:
        raise PvmlError(
            f"{n_paths:,} paths lead to this prediction, more than most_paths {most_paths:,}: "
            f"raise it, or take one term for each head: `pvml attribute`, in Python `decompose`"
        )
    if not quiet:
        print(f"{n_paths:,} paths lead to this prediction")
    held = hold(model, tokens[:, : here + 1])  # nothing behind a position reaches it
    readout, paths = held.readout(here), tuple(paths_into(held, here, model.cfg.n_layers))
    constants = tuple(
        PathTerm(name=name, path=None, vector=vector) for name, vector in held.constants()
    )
    expansion = Expansion(
        position=here,
        paths=paths,
        constants=constants,
        logits=held.logits[here],
        frozen=held.frozen,
        processing=model.processing,
        readout=readout,
    )
    require_sum(expansion.error, model.dtype, "the logits")
    if not quiet:
        print(expansion.check())
    return expansion


def paths_into(held: HeldPass, position: int, layers: int) -> Iterator[Path]:
    """Every path into the stream at a position, through the first `layers` layers."""
    model, heads_of = held.model, range(held.model.cfg.n_heads)
    posn = len(held.tokens)
    carried = held.logits.new_zeros(1, posn)
    carried[0, position] = 1.0
    # from the top down: which heads are chosen, and how much of each position comes through them
    chosen: list[tuple[Head, ...]] = [()]
    found = []
    for layer in reversed(range(layers)):
        found += [(name, len(chosen), carried, written) for name, written in born(held, layer)]
        through = [carried @ held.patterns[layer][head] / held.stds[layer] for head in heads_of]
        chosen = [*chosen, *(((layer, head), *way) for head in heads_of for way in chosen)]
        carried = t.cat([carried, *through])
    if model.cfg.positions == "standard":
        found.append(("position", len(chosen), carried, wide(model.pos_embed.W_pos[:posn])))
    found.append(("token", len(chosen), carried, wide(model.embed.W_E[held.tokens.long()])))
    for source, n, weights, written in reversed(found):
        streams = _through_heads(held, chosen[:n], weights @ written)
        for way, stream in zip(chosen[:n], streams, strict=True):
            yield Path(source=source, heads=way, stream=stream)


def born(held: HeldPass, layer: int) -> Iterator[tuple[str, Float[Tensor, "posn d_model"]]]:
    """What comes into the stream at a layer and is not read from it, at every position."""
    attn, posn = held.attention(layer), len(held.tokens)
    if held.mlp_outs:
        yield f"mlp {layer}", held.mlp_outs[layer]
    yield f"b_O {layer}", wide(attn.b_O).expand(posn, -1)
    for head in reversed(range(held.model.cfg.n_heads)):
        _, constant = held.reading(layer, attn.W_V[head], attn.b_V[head])
        # a pattern's row adds up to 1: what every position brings, each position gets
        yield f"b_V {layer}.{head}", (constant @ wide(attn.W_O[head])).expand(posn, -1)


def _through_heads(
    held: HeldPass, ways: Sequence[tuple[Head, ...]], streams: Float[Tensor, "n d_model"]
) -> Float[Tensor, "n d_model"]:
    """What comes out of each way's heads, the lowest first, if its stream goes in."""
    by_head: dict[Head, list[int]] = {}
    for row, way in enumerate(ways):
        for head in way:
            by_head.setdefault(head, []).append(row)
    streams = streams.clone()
    for head in sorted(by_head):
        rows, (layer, index) = by_head[head], head
        attn = held.attention(layer)
        reading, _ = held.reading(layer, attn.W_V[index], attn.b_V[index])
        streams[rows] = streams[rows] @ reading @ wide(attn.W_O[index])
    return streams
