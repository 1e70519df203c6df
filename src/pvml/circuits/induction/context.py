"""How much a model's predictions gain from what stands far before: loss by position.

The in-context-learning score is the loss late in a text minus the loss early in it: below 0 where a
longer context helps. Source: Olsson et al. 2022, arXiv:2209.11895, "in-context learning score",
tokens 500 and 50 of 512. A text's late tokens may also be easier than its early ones: so the same
late tokens are graded once more, with no more context than the early ones have.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.ablation import HeadMeans, ablated, token_losses
from pvml.circuits.chance import SIGNIFICANCE, chance_of, told_p
from pvml.circuits.held import Head, require_finite
from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer

_EARLY, _LATE = 50 / 512, 500 / 512
"""Where in a row the paper's two tokens stand."""


@dataclass(frozen=True, kw_only=True)
class ContextLosses:
    """Losses (nats per token) by a token's position, and what the context between two is worth."""

    by_position: tuple[float, ...]
    """The mean loss of the token at position 1, 2, ... of a row."""
    early: int
    """Position of the early token, counted from 0, which is BOS."""
    late: int
    """Position of the late one."""
    late_cut: float
    """The late token's loss with BOS and the last `early` - 1 tokens before it, and no more."""
    error: float
    """Standard error (nats) of the score, between rows."""
    p: float
    """Probability of so large a gain of the late tokens by more context, if it did not count."""
    n_rows: int

    @property
    def score(self) -> float:
        """The in-context-learning score (nats): below 0 where the model gains from its context."""
        return self.by_position[self.late - 1] - self.by_position[self.early - 1]

    @property
    def null_score(self) -> float:
        """What of it is the text's: the late tokens with an early one's context, minus the early.

        In nats; about 0 in a text that is as hard late as it is early.
        """
        return self.late_cut - self.by_position[self.early - 1]

    @property
    def gain(self) -> float:
        """What the longer context is worth to the late tokens (nats)."""
        return self.null_score - self.score

    @property
    def beyond(self) -> bool:
        """Whether it is the context that helps, not the text that gets easier."""
        return self.p <= SIGNIFICANCE and self.gain > 0

    def __str__(self) -> str:
        p = told_p(self.p)
        return (
            f"in-context-learning score {self.score:+.2f} ± {self.error:.2f} nats, token "
            f"{self.late} against token {self.early} ({self.null_score:+.2f} with the early one's "
            f"context; {p})"
        )


def default_places(posn: int) -> tuple[int, int]:
    """The early and the late position in rows of `posn` tokens, as far in as the paper's in 512.

    Raises: PvmlError for rows of fewer than 3 tokens, which have no two to compare.
    """
    if posn < 3:
        raise PvmlError(f"rows of at least 3 tokens have an early and a late one, got {posn}")
    return max(1, int(posn * _EARLY)), max(2, int(posn * _LATE))


@t.no_grad()
def context_losses(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    heads: Collection[Head] = (),
    means: HeadMeans | None = None,
    *,
    early: int | None = None,
    late: int | None = None,
    seed: int = 0,
) -> ContextLosses:
    """The loss by position in these rows, with these heads ablated or none of them.

    tokens: rows of natural text, each with BOS first. early, late: positions; unset, those of
    `default_places`. p: each late token with more context and with less, by random flips of the
    sign of their difference. heads, means: as `ablated` takes them.

    Raises: PvmlError for no rows, rows that are too short, positions that are not in this order in
        them, what are no tokens of this model, or weights that are not finite.
    """
    check_tokens(tokens, model.cfg)
    require_finite(model)
    posn = tokens.shape[1]
    if len(tokens) == 0:
        raise PvmlError("there are no rows to grade")
    usual_early, usual_late = default_places(posn)
    early, late = usual_early if early is None else early, usual_late if late is None else late
    if not 1 <= early < late < posn:
        raise PvmlError(
            f"early and late must be two positions of rising order from 1 to {posn - 1}, got "
            f"{early} and {late}"
        )
    with_less = t.cat([tokens[:, :1], tokens[:, late - early + 1 : late + 1]], 1)
    with ablated(model, heads, means):
        each = token_losses(model, tokens)
        cut = token_losses(model, with_less)[:, -1]
    (p,) = chance_of((cut - each[:, late - 1])[:, None], 1, t.Generator().manual_seed(seed))
    scores = each[:, late - 1] - each[:, early - 1]
    n = len(tokens)
    return ContextLosses(
        by_position=tuple(each.mean(0).tolist()),
        early=early,
        late=late,
        late_cut=float(cut.mean()),
        error=float(scores.std(correction=min(1, n - 1))) / n**0.5,
        p=p,
        n_rows=n,
    )
