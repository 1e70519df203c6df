"""What a head is worth where its skip-trigrams occur: the loss there without it.

An effect that was read off the weights says what one path adds. Other heads may add the same, or
the softmax may be sure already: what the model loses without the head is measured here, exactly at
the places that the trigram speaks of.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.ablation import Fill, HeadMeans, Over, ablated, head_means, token_losses
from pvml.circuits.chance import SIGNIFICANCE, told_p
from pvml.circuits.intervals import above_by_chance
from pvml.circuits.skips.sightings import RowMean, RowSums, Sightings, sightings
from pvml.circuits.skips.trigrams import SkipTrigram
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class OccurrenceLoss:
    """How much worse a trigram's output is predicted without its head, where it occurs."""

    trigram: SkipTrigram
    fill: Fill
    """What the head wrote instead: its mean, or nothing."""
    n: int
    """Occurrences: the source earlier in the row, the destination, and the output next."""
    increase: float | None
    """Mean change of the loss there (nats; above 0: the head helps); None if there are none."""
    error: float | None
    """Its standard error, rows taken as independent; None for fewer than 2 rows."""
    null_n: int
    """The destination and the output next, with no source before."""
    null_increase: float | None
    """The same mean at those."""
    null_error: float | None
    p: float
    """Probability that the head helps so much more with the source by chance, times the number of
    trigrams tried (at most 1); 1 where either kind is in fewer than 2 rows."""

    @property
    def untested(self) -> str:
        """What is too little for a test, in words; empty where there is one."""
        few = [
            words
            for words, error in (("with", self.error), ("without", self.null_error))
            if error is None
        ]
        return f"fewer than 2 rows {' and '.join(few)} the source" if few else ""

    @property
    def beyond(self) -> bool:
        """Whether the head surely helps at the occurrences, and more than without the source."""
        return self.p <= SIGNIFICANCE and (self.increase or 0.0) > 0

    def __str__(self) -> str:
        layer, head = self.trigram.head
        instead = "its mean" if self.fill == "mean" else "nothing"
        p = f"not tested, {self.untested}" if self.untested else told_p(self.p)
        return (
            f"{self.trigram.name} without {layer}.{head} ({instead} instead): "
            f"{_told(self.increase, self.error)} at {self.n:,} occurrences, "
            f"{_told(self.null_increase, self.null_error)} at {self.null_n:,} without the source "
            f"({p})"
        )


def _told(change: float | None, error: float | None) -> str:
    if change is None:
        return "nothing to measure"
    return f"{change:+.3f} nats" if error is None else f"{change:+.3f} ± {error:.3f} nats"


@t.no_grad()
def loss_on_occurrences(
    model: Transformer,
    trigrams: Sequence[SkipTrigram],
    tokens: Int[Tensor, "batch posn"],
    *,
    fill: Fill = "mean",
    over: Over = "position",
    reference: Int[Tensor, "batch_reference posn_reference"] | None = None,
    document_end: int | None = None,
) -> list[OccurrenceLoss]:
    """For each trigram the change of the loss at its occurrences when its head is ablated.

    tokens: held-out text. fill, over, reference: as in `ablate_heads`. document_end: as in
    `find_evidence`. Null: the same prediction where the source does not stand before.

    p: Welch's t of the two means, whose standard errors are between rows, one-sided; times the
    number of trigrams (Bonferroni). Source: Welch 1947, "The generalization of Student's problem
    when several different population variances are involved".

    Raises: PvmlError for rows that the model cannot read or that are too short, or another word for
        `fill` or `over`.
    """
    if fill not in get_args(Fill):
        raise PvmlError(f"fill must be one of {', '.join(get_args(Fill))}, got {fill!r}")
    means = None
    if fill == "mean":
        means = head_means(model, tokens if reference is None else reference, over)
    triples = [(each.source, each.destination, each.output) for each in trigrams]
    with_source, without = RowSums(len(trigrams)), RowSums(len(trigrams))
    for found in sightings(triples, tokens, document_end):
        changes = _changes(model, trigrams, tokens, found, means)
        for sums, those in ((with_source, found.seen), (without, ~found.seen)):
            those = those & found.follows
            sums.add(found.row[those], found.trigram[those], changes[those])
    return [
        _compared(trigram, fill, with_source.mean(number), without.mean(number), len(trigrams))
        for number, trigram in enumerate(trigrams)
    ]


def _changes(
    model: Transformer,
    trigrams: Sequence[SkipTrigram],
    tokens: Int[Tensor, "batch posn"],
    found: Sightings,
    means: HeadMeans | None,
) -> Float[Tensor, " n"]:
    """What the loss of the next token changes by without the trigram's head; 0 where not asked."""
    changes = t.zeros(len(found.row), dtype=t.float64)
    rows = t.unique(found.row[found.follows])
    if len(rows) == 0:
        return changes
    own = token_losses(model, tokens[rows])
    heads = t.tensor([each.head for each in trigrams])
    for head in sorted({each.head for each in trigrams}):
        those = found.follows & (heads[found.trigram] == t.tensor(head)).all(1)
        needed = t.isin(rows, found.row[those])
        if not needed.any():
            continue
        with ablated(model, [head], means):
            others = token_losses(model, tokens[rows[needed]])
        change = (others - own[needed])[
            t.searchsorted(rows[needed], found.row[those]), found.position[those]
        ]
        changes[those] = change
    return changes


def _compared(
    trigram: SkipTrigram, fill: Fill, seen: RowMean, unseen: RowMean, n_tests: int
) -> OccurrenceLoss:
    p = min(1.0, _chance(seen, unseen) * n_tests)
    return OccurrenceLoss(
        trigram=trigram,
        fill=fill,
        n=seen.n,
        increase=seen.mean if seen.n else None,
        error=None if seen.variance is None else math.sqrt(seen.variance),
        null_n=unseen.n,
        null_increase=unseen.mean if unseen.n else None,
        null_error=None if unseen.variance is None else math.sqrt(unseen.variance),
        p=p,
    )


def _chance(seen: RowMean, unseen: RowMean) -> float:
    """Of a mean so far above the other, by Welch's t."""
    if seen.variance is None or unseen.variance is None:
        return 1.0
    variance = seen.variance + unseen.variance
    if variance == 0:
        return 1.0
    each = ((x.variance or 0.0, x.n_rows - 1) for x in (seen, unseen))
    freedom = variance**2 / sum(v**2 / n for v, n in each)
    return above_by_chance((seen.mean - unseen.mean) / math.sqrt(variance), freedom)
