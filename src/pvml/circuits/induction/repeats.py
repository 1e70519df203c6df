"""What a model gains where random tokens repeat: the loss at a token's second coming.

Random tokens cannot be told from what stands before them, but for one thing: that they have stood
there already, in the same order. So whatever is gained is read off the context. Source: Olsson et
al. 2022, arXiv:2209.11895, "random repeated sequences".
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.ablation import HeadMeans, ablated, token_losses
from pvml.circuits.chance import SIGNIFICANCE, chance_of, told_p
from pvml.circuits.held import Head, require_finite
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

_FEWEST = 3
"""Tokens that repeat, below which there is no order to speak of."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeats:
    """BOS and distinct random tokens, and then the same tokens again."""

    repeated: Int[Tensor, "batch posn"]
    """Again in the same order."""
    reordered: Int[Tensor, "batch posn"]
    """Again in another order: what is gained here is gained by knowing which tokens come again."""

    @property
    def period(self) -> int:
        """How many tokens come again."""
        return (self.repeated.shape[1] - 1) // 2


@dataclass(frozen=True, kw_only=True)
class RepeatLosses:
    """Mean losses (nats per token) at tokens that come for the first and for the second time.

    The first of the tokens that come again is left out on both sides: nothing tells that they do.
    """

    first: float
    again: float
    """The second time, in the same order."""
    reordered: float
    """The second time, in another order."""
    error: float
    """Standard error (nats) of the advantage, between sequences."""
    p: float
    """Probability of so large a gain by the order alone, if order did not count."""
    period: int
    """How many tokens come again."""
    n_sequences: int

    @property
    def advantage(self) -> float:
        """The repeated-token advantage: by how much less a token costs the second time (nats)."""
        return self.first - self.again

    @property
    def null_advantage(self) -> float:
        """The same where the tokens come again in another order (nats)."""
        return self.first - self.reordered

    @property
    def beyond(self) -> bool:
        """Whether the order of what stood before is what helps."""
        return self.p <= SIGNIFICANCE and self.advantage > max(0.0, self.null_advantage)

    def __str__(self) -> str:
        p = told_p(self.p)
        return (
            f"{self.first:.2f} nats per token the first time, {self.again:.2f} the second: an "
            f"advantage of {self.advantage:.2f} ± {self.error:.2f} ({self.null_advantage:.2f} in "
            f"another order; {p})"
        )


def draw_repeats(
    words: Int[Tensor, " words"], bos: int, period: int, n_sequences: int, seed: int
) -> Repeats:
    """Random sequences of `period` distinct words behind BOS that come twice.

    Raises: PvmlError for fewer words than a period, a period below 3, or no sequences.
    """
    if period < _FEWEST or len(words) < period or n_sequences < 1:
        raise PvmlError(
            f"random repetitions need at least one sequence and {_FEWEST} tokens that come again, "
            f"all different: got {n_sequences} sequences of {period} out of {len(words)} tokens"
        )
    rng = t.Generator().manual_seed(seed)
    drawn = t.stack([t.randperm(len(words), generator=rng)[:period] for _ in range(n_sequences)])
    first = words.cpu().long()[drawn]
    other = first.gather(1, t.rand(first.shape, generator=rng).argsort(1))
    start = t.full((n_sequences, 1), bos)
    return Repeats(
        repeated=t.cat([start, first, first], 1), reordered=t.cat([start, first, other], 1)
    )


def gains(
    model: Transformer, rows: Int[Tensor, "batch posn"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Each row's mean loss (nats per token) in its first half and in its second.

    The rows are one side of `Repeats`; of both halves the first token is left out.
    """
    period, each = (rows.shape[1] - 1) // 2, token_losses(model, rows)
    return each[:, 1:period].mean(1), each[:, period + 1 : 2 * period].mean(1)


def advantage(
    model: Transformer,
    repeats: Repeats,
    heads: Collection[Head] = (),
    means: HeadMeans | None = None,
) -> float:
    """The repeated-token advantage (nats) without these heads, quicker than `repeat_losses`.

    Raises: PvmlError as `ablated`, or for what are no tokens of this model.
    """
    with ablated(model, heads, means):
        first, again = gains(model, repeats.repeated)
    return float((first - again).mean())


def repeat_losses(
    model: Transformer,
    repeats: Repeats,
    heads: Collection[Head] = (),
    means: HeadMeans | None = None,
    seed: int = 0,
) -> RepeatLosses:
    """The losses with these heads ablated, or none of them.

    p: each sequence with its twin in another order, by random flips of the sign of their
    difference. heads, means: as `ablated` takes them.

    Raises: PvmlError as `ablated`, for what are no tokens of this model, or for weights that are
        not finite.
    """
    require_finite(model)
    with ablated(model, heads, means):
        first, again = gains(model, repeats.repeated)
        _, reordered = gains(model, repeats.reordered)
    (p,) = chance_of((reordered - again)[:, None], 1, t.Generator().manual_seed(seed))
    n = len(first)
    return RepeatLosses(
        first=float(first.mean()),
        again=float(again.mean()),
        reordered=float(reordered.mean()),
        error=float((first - again).std(correction=min(1, n - 1))) / n**0.5,
        p=p,
        period=repeats.period,
        n_sequences=n,
    )
