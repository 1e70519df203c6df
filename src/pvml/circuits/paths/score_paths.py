"""An attention score as a sum over pairs of paths: what the query came by, what the key came by.

A score is q . k, and q and k are linear in their streams once the layers below are frozen; so the
score is a table, one row for each path into the query, one column for each path into the key.
Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", "the QK circuit of
an induction head".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor

from pvml.circuits.held import (
    Head,
    HeldPass,
    hold,
    require_head,
    require_one_sequence,
    require_position,
    require_sum,
    wide,
)
from pvml.circuits.paths.logit_paths import (
    MOST_PATHS,
    Path,
    count_paths,
    paths_into,
)
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScoreExpansion:
    """One head's score of a key for a query, and the table that it is the sum of."""

    layer: int
    head: int
    query: int
    """The query's position, counted from 0."""
    key: int
    """The key's position."""
    queries: tuple[str, ...]
    """What the query came by: paths, `position` of a shortformer, and b_Q, to which ln1.b adds."""
    keys: tuple[str, ...]
    """What the key came by, the same way."""
    values: Float[Tensor, "n_queries n_keys"]
    """What each pair adds to the score, before it is divided by sqrt(d_head)."""
    score: float
    """The model's own q . k."""
    scale: float
    """1 / sqrt(d_head): what the scores are multiplied by before the softmax."""
    error: float
    """|total - score|, as a share of |q| |k|: the largest score that vectors so long can have."""
    frozen: tuple[str, ...]
    """What was held at the value it had in this pass."""
    processing: tuple[str, ...] = ()
    """How the model's weights were rewritten, as its own `processing` says."""

    def __repr__(self) -> str:
        return f"<the score of key {self.key} for query {self.query}: {self.check()}>"

    @property
    def total(self) -> float:
        """The sum of the table."""
        return float(self.values.sum())

    def value(self, query: str, key: str) -> float:
        """What one pair adds.

        Raises: PvmlError for a name that is not there.
        """
        for name, names in ((query, self.queries), (key, self.keys)):
            if name not in names:
                raise PvmlError(f"there is no {name!r} here: there are {', '.join(names[:12])}")
        return float(self.values[self.queries.index(query), self.keys.index(key)])

    def largest(self, most: int = 20) -> list[tuple[str, str, float]]:
        """Query path, key path and what they add, by size, the largest first."""
        flat = self.values.flatten()
        order = flat.abs().argsort(descending=True, stable=True)[:most].tolist()
        width = len(self.keys)
        return [(self.queries[i // width], self.keys[i % width], float(flat[i])) for i in order]

    def table(self, most: int = 20) -> Table:
        """The largest pairs as a table, with the sum of the others, and the score at its foot."""
        table = Table("query came by", "key came by", "adds to q . k")
        table.columns[2].justify = "right"
        shown = self.largest(most)
        for query, key, value in shown:
            table.add_row(query, key, f"{value:+.4f}")
        if others := self.values.numel() - len(shown):
            rest = self.total - sum(value for *_, value in shown)
            table.add_row(f"{others:,} other pairs", "", f"{rest:+.4f}")
        table.add_section()
        table.add_row("sum", "", f"{self.total:+.4f}")
        table.add_row("the model's own", "", f"{self.score:+.4f}")
        return table

    def check(self) -> str:
        """A line that says how well the pairs add up."""
        return (
            f"{len(self.queries):,} x {len(self.keys):,} pairs add up to the score of "
            f"{self.layer}.{self.head}: off by {self.error:.1e} of |q| |k|"
        )


@t.no_grad()
def expand_score(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    head: Head,
    query: int,
    key: int,
    *,
    most_paths: int = MOST_PATHS,
    quiet: bool = False,
) -> ScoreExpansion:
    """The raw score q . k of two positions at one head as a sum over pairs of paths.

    tokens: a batch of one. head: layer and head, from 0. query, key: positions counted from 0, or
    from the end if negative. quiet: do not print how well the pairs add up.

    Raises: PvmlError for a batch other than 1, a head or position that is not there, a key behind
        its query, or more than most_paths paths or pairs; CheckFailed if they do not add up.
    """
    require_one_sequence(tokens)
    layer, index = require_head(model, head)
    at, to = (require_position(position, tokens.shape[1]) for position in (query, key))
    if to > at:
        raise PvmlError(f"key {to} lies behind query {at}, which cannot see it")
    n_paths = count_paths(model.cfg, layer)
    if n_paths**2 > most_paths:
        raise PvmlError(
            f"{n_paths:,} paths lead to the query and as many to the key, {n_paths**2:,} pairs, "
            f"more than most_paths {most_paths:,}: raise it, or take a lower layer"
        )
    tokens = tokens[:, : at + 1]
    score = float(_scores(model, tokens, layer)[index, at, to])
    held = hold(model, tokens)
    attn = held.attention(layer)
    queries, q = _read(held, layer, at, attn.W_Q[index], attn.b_Q[index], "b_Q")
    keys, k = _read(held, layer, to, attn.W_K[index], attn.b_K[index], "b_K")
    values = q @ k.T
    longest = float(q.sum(0).norm() * k.sum(0).norm()) or 1.0
    expansion = ScoreExpansion(
        layer=layer,
        head=index,
        query=at,
        key=to,
        queries=queries,
        keys=keys,
        values=values,
        score=score,
        scale=model.cfg.d_head**-0.5,
        error=abs(float(values.sum()) - score) / longest,
        frozen=held.frozen,
        processing=model.processing,
    )
    require_sum(expansion.error, model.dtype, f"the score of {layer}.{index}")
    if not quiet:
        print(expansion.check())
    return expansion


def _scores(
    model: Transformer, tokens: Int[Tensor, "1 posn"], layer: int
) -> Float[Tensor, "n_heads posn posn"]:
    name = f"blocks.{layer}.attn.attn_scores"
    _, cache = model.run_with_cache(tokens, names_filter=name)
    return wide(cache[name][0])


def _read(
    held: HeldPass,
    layer: int,
    position: int,
    W: Float[Tensor, "d_model d_head"],
    b: Float[Tensor, " d_head"],
    bias: str,
) -> tuple[tuple[str, ...], Float[Tensor, "n d_head"]]:
    """Names of all that comes into a query or a key at a position, and what each brings."""
    paths: Sequence[Path] = list(paths_into(held, position, layer))
    reading, constant = held.reading(layer, W, b)
    streams = t.stack([path.stream for path in paths])
    names = [*(path.name for path in paths), bias]
    brought = [streams / held.stds[layer][position] @ reading, constant[None]]
    if held.model.cfg.positions == "shortformer":
        names.append("position")
        brought.append(wide(held.model.pos_embed.W_pos[position])[None] @ wide(W))
    return tuple(names), t.cat(brought)
