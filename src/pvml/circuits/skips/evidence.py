"""Whether a text does what a head says: the lift of a skip-trigram, with its counts.

The lift is P(output | source earlier in the row, destination) / P(output | destination): how much
more often the output comes next because a source stands somewhere before. Rows in which the source
stands late have more before them, and a topic brings many tokens along: a lift says that the text
goes so, not why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from pvml.circuits.chance import SIGNIFICANCE, told_p
from pvml.circuits.intervals import hits_by_chance, ratio_interval, wilson
from pvml.circuits.skips.sightings import RowMean, RowSums, sightings
from pvml.circuits.skips.trigrams import SkipTrigram


@dataclass(frozen=True, kw_only=True)
class CorpusEvidence:
    """What a text says to a skip-trigram."""

    trigram: SkipTrigram
    n_destination: int
    """Destinations with a token after them."""
    n_output: int
    """Those of them that the output follows."""
    n_source_destination: int
    """Destinations with the source earlier in the row."""
    n_source_output: int
    """Those of them that the output follows: the trigram's occurrences."""
    interval: tuple[float, float] | None
    """95 per cent interval of the lift, rows taken as independent; None without a lift, or where
    the source stands before every destination."""
    p: float
    """Probability of so many occurrences if the source did not matter, times the number of
    trigrams tried (at most 1)."""

    @property
    def expected(self) -> float:
        """Occurrences if the source did not matter; 0 where the destination never stands."""
        share = self.n_output / self.n_destination if self.n_destination else 0.0
        return self.n_source_destination * share

    @property
    def lift(self) -> float | None:
        """How many times the output is as probable with the source before as in general.

        None, which is undefined, where source and destination never meet, or output never follows.
        """
        return self.n_source_output / self.expected if self.expected else None

    @property
    def most(self) -> float | None:
        """The largest lift that there can be, where the output never follows without the source.

        None where source and destination never meet.
        """
        met = self.n_source_destination
        return self.n_destination / met if met else None

    @property
    def untested(self) -> str:
        """Why the text has nothing to say, in words; empty where it has."""
        if not self.n_source_destination:
            return "source and destination never meet"
        if not self.n_output:
            return "the output never follows the destination"
        if self.n_source_destination == self.n_destination:
            return "the source stands before every destination"
        return ""

    @property
    def beyond(self) -> bool:
        """Whether the text surely does this more than by chance."""
        surely = self.interval is not None and self.interval[0] > 1
        return surely and self.p <= SIGNIFICANCE

    @property
    def against(self) -> bool:
        """Whether the text surely does this less than by chance; a lift of 0 alone may be luck."""
        return self.interval is not None and self.interval[1] < 1

    def __str__(self) -> str:
        counts = (
            f"{self.n_source_output:,} of {self.n_source_destination:,} with the source before, "
            f"{self.n_output:,} of {self.n_destination:,} in all"
        )
        if self.untested or self.interval is None or self.lift is None or self.most is None:
            return f"{self.trigram.name}: not tested, {self.untested} ({counts})"
        between = "95% {:.2f} to {:.2f}".format(*self.interval)
        if math.isclose(self.interval[1], self.most):
            between += ", the most there can be"
        return f"{self.trigram.name}: lift {self.lift:.2f} ({between}; {told_p(self.p)}; {counts})"


def find_evidence(
    trigrams: Sequence[SkipTrigram],
    tokens: Int[Tensor, "batch posn"],
    *,
    document_end: int | None = None,
) -> list[CorpusEvidence]:
    """The lift of each trigram in these rows, with its counts, its interval and its p.

    tokens: held-out text, for what a model was trained on tells of itself. document_end: unless it
    is given, a source counts anywhere earlier in the row, for a head sees it there; with it, only
    in the same document.

    Interval: of the shares with and without the source before, each Wilson's for as many sightings
    as its rows are worth, put together to that of their ratio (MOVER-R), and that turned into the
    lift's, the share of destinations with the source before taken as given. p: Fisher's exact test,
    one-sided, which takes sightings as independent; times the number of different trigrams
    (Bonferroni).

    Raises: PvmlError for no rows, or rows of fewer than 2 tokens.
    """
    triples = [(each.source, each.destination, each.output) for each in trigrams]
    distinct = list(dict.fromkeys(triples))
    with_source, without = RowSums(len(distinct)), RowSums(len(distinct))
    for found in sightings(distinct, tokens, document_end):
        for sums, those in ((with_source, found.seen), (without, ~found.seen)):
            sums.add(found.row[those], found.trigram[those], found.follows[those].double())
    of = {
        triple: _weighed(with_source.mean(number), without.mean(number), len(distinct))
        for number, triple in enumerate(distinct)
    }
    return [
        CorpusEvidence(trigram=trigram, **of[triple])
        for trigram, triple in zip(trigrams, triples, strict=True)
    ]


def _weighed(seen: RowMean, unseen: RowMean, n_tests: int) -> dict[str, Any]:
    """The fields of a CorpusEvidence."""
    hits, others = round(seen.mean * seen.n), round(unseen.mean * unseen.n)
    n, n_output = seen.n + unseen.n, hits + others
    by_chance = hits_by_chance(hits, seen.n, n_output, n)
    interval = None
    if seen.n and unseen.n and n_output:
        low, high = ratio_interval(
            seen.mean, wilson(seen.mean, seen.worth), unseen.mean, wilson(unseen.mean, unseen.worth)
        )
        before = seen.n / n
        interval = _lift(low, before), _lift(high, before)
    return {
        "n_destination": n,
        "n_output": n_output,
        "n_source_destination": seen.n,
        "n_source_output": hits,
        "interval": interval,
        "p": min(1.0, by_chance * n_tests),
    }


def _lift(ratio: float, before: float) -> float:
    """The lift of a ratio with source to without. before: share of destinations with it."""
    if math.isinf(ratio):
        return 1 / before
    return ratio / (before * ratio + 1 - before)
