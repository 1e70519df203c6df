"""Where in a text the destinations of skip-trigrams stand, with and without their sources before.

One pass over the rows serves any number of trigrams. Tokens of one row hang together, so rows are
what counts as independent: `RowSums` keeps what their spread needs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pvml.errors import PvmlError

Ids = tuple[int, int, int]
"""Source, destination and output."""

_AT_ONCE = 1 << 19
"""Sightings, and entries of the table of first places, that are in memory together."""


@dataclass(frozen=True, eq=False)
class Sightings:
    """Places where a destination stands with a token behind it, once for each of its trigrams."""

    row: Int[Tensor, " n"]
    position: Int[Tensor, " n"]
    trigram: Int[Tensor, " n"]
    """Its number among those asked for."""
    seen: Bool[Tensor, " n"]
    """Whether the source stands before it in the row."""
    follows: Bool[Tensor, " n"]
    """Whether the output comes next."""


def sightings(
    trigrams: Sequence[Ids], tokens: Int[Tensor, "batch posn"], document_end: int | None = None
) -> Iterator[Sightings]:
    """Every place at which a trigram's destination stands, some rows at a time and each row whole.

    A trigram is seen in full where `seen` and `follows`. document_end: a token that ends a
    document; a source in another document then does not count.

    Raises: PvmlError for no rows, rows of fewer than 2 tokens, or negative ids.
    """
    if tokens.ndim != 2 or len(tokens) == 0 or tokens.shape[1] < 2:
        raise PvmlError(
            f"trigrams are looked for in rows of at least 2 tokens, got {tuple(tokens.shape)}"
        )
    if int(tokens.min()) < 0 or any(one < 0 for ids in trigrams for one in ids):
        raise PvmlError("token ids are at least 0, and one is not")
    if not trigrams:
        return
    text, posn = tokens.cpu(), tokens.shape[1]
    asked = t.tensor(list(trigrams)).long()
    largest = max(int(text.max()), int(asked.max()))
    source_of, n_sources = _numbered(asked[:, 0], largest)
    destination_of, n_destinations = _numbered(asked[:, 1], largest)
    # trigrams by destination: those of number i stand from starts[i], of_each[i] of them
    by_destination = destination_of[asked[:, 1]].argsort(stable=True)
    of_each = t.bincount(destination_of[asked[:, 1]], minlength=n_destinations)
    starts = of_each.cumsum(0) - of_each
    documents = 1 + (0 if document_end is None else int((text == document_end).sum(1).max()))
    a_row = max(posn * int(of_each.max()), documents * n_sources)
    for first_row, rows in _blocks(text, max(1, _AT_ONCE // a_row)):
        document = t.arange(len(rows))[:, None] * documents
        if document_end is None:
            document = document.expand(-1, posn)
        else:  # the end still belongs to what it ends
            ends = (rows == document_end).long()
            document = document + ends.cumsum(1) - ends
        place = t.full((len(rows) * documents * n_sources,), posn)
        number = source_of[rows]
        row, position = (number >= 0).nonzero(as_tuple=True)
        keys = document[row, position] * n_sources + number[row, position]
        place.scatter_reduce_(0, keys, position, "amin")

        number = destination_of[rows[:, :-1]]
        row, position = (number >= 0).nonzero(as_tuple=True)
        number = number[row, position]
        n_each = of_each[number]
        hit = t.arange(len(number)).repeat_interleave(n_each)
        nth = t.arange(len(hit)) - (n_each.cumsum(0) - n_each)[hit]
        trigram = by_destination[starts[number[hit]] + nth]
        row, position = row[hit], position[hit]
        keys = document[row, position] * n_sources + source_of[asked[trigram, 0]]
        yield Sightings(
            row=first_row + row,
            position=position,
            trigram=trigram,
            seen=place[keys] < position,
            follows=rows[row, position + 1] == asked[trigram, 2],
        )


def _blocks(
    text: Int[Tensor, "batch posn"], at_once: int
) -> Iterator[tuple[int, Int[Tensor, "n posn"]]]:
    for first in range(0, len(text), at_once):
        yield first, text[first : first + at_once].long()


def _numbered(ids: Int[Tensor, " n"], largest: int) -> tuple[Int[Tensor, " ids"], int]:
    """For each id its number among the distinct ones given, or -1; and how many these are."""
    distinct = t.unique(ids)
    numbers = t.full((largest + 1,), -1)
    numbers[distinct] = t.arange(len(distinct))
    return numbers, len(distinct)


class RowSums:
    """The mean of a number over sightings of each trigram, and how sure it is, row by row."""

    def __init__(self, n_trigrams: int) -> None:
        self._sums = t.zeros(6, n_trigrams, dtype=t.float64)

    def add(
        self, row: Int[Tensor, " n"], trigram: Int[Tensor, " n"], values: Float[Tensor, " n"]
    ) -> None:
        """Count these sightings. All those of a row must come in one call."""
        n_trigrams = self._sums.shape[1]
        keys, which = t.unique(row * n_trigrams + trigram, return_inverse=True)
        n = t.bincount(which, minlength=len(keys)).double()
        total = n.new_zeros(len(keys)).index_add_(0, which, values.double())
        rows = t.stack([n, total, n.sign(), n * n, n * total, total * total])
        self._sums.index_add_(1, keys % n_trigrams, rows)

    def mean(self, trigram: int) -> "RowMean":
        """What was counted for one trigram."""
        n, total, n_rows, nn, nx, xx = self._sums[:, trigram].tolist()
        if n == 0:
            return RowMean(n=0, n_rows=0, mean=0.0, variance=None)
        mean, variance = total / n, None
        if n_rows > 1:
            spread = max(0.0, xx - 2 * mean * nx + mean * mean * nn)
            variance = n_rows / (n_rows - 1) * spread / n**2
        return RowMean(n=int(n), n_rows=int(n_rows), mean=mean, variance=variance)


@dataclass(frozen=True, kw_only=True)
class RowMean:
    """A mean over sightings, and the variance of that mean between rows."""

    n: int
    """Sightings."""
    n_rows: int
    """Rows that they are in."""
    mean: float
    """0 where there are none."""
    variance: float | None
    """None for fewer than 2 rows. Linearised, as of any ratio of two sums over independent rows.
    Source: Cochran 1977, "Sampling Techniques", section 6.3."""

    @property
    def worth(self) -> float:
        """As many independent sightings would be as sure about a share: from 1 to n.

        As many as there are rows where all or none are hits, which tells nothing about the spread.
        Source: Korn and Graubard 1998, "Confidence intervals for proportions with small expected
        number of positive counts estimated from survey data".
        """
        alone = self.mean * (1 - self.mean)
        if self.variance is None or alone == 0:
            return float(max(1, self.n_rows))
        return max(1.0, min(float(self.n), alone / self.variance if self.variance else math.inf))
