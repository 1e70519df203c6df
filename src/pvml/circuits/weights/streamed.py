"""Statistics of a huge table that is never whole: rows pass by, some at a time.

A circuit over a vocabulary of 50,257 has 2.5 billion entries. `scan` makes them block by block and
shows each block to whoever gathers something. All answers are exact, ties included: the same as
those of the dense table. Of equal entries the one with the lower id comes first.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.weights.blocks import GROUP, MEMORY, PART, Block, Product
from pvml.circuits.weights.coarse import CoarseBlock, CoarseProduct, pays
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.largest import first_largest
from pvml.errors import PvmlError

Told = Callable[[int, int], object]
"""Told how many rows have passed, and of how many."""


@runtime_checkable
class Statistic(Protocol):
    """Gathers something from a table's blocks, which come in the order of their rows."""

    def begin(self, table: FactoredMap) -> None:
        """Forget everything, and make room for this table."""

    def take(self, block: Block) -> None:
        """Gather from a block. Its memory is used again: what is kept must be copied."""


def scan(
    table: FactoredMap,
    *statistics: Statistic,
    memory: int = MEMORY,
    tell: Told | None = None,
) -> None:
    """Show every row of the table to the statistics, which then have their answers.

    memory: bytes that may be held beside factors and answers. tell: called after each block.

    Raises: PvmlError if memory does not hold a single row, for an entry that is too large for the
        factors' type, or for what is no map.
    """
    if not isinstance(table, FactoredMap):
        raise PvmlError(
            f"a scan reads a map, which a circuit has as circuit.map; got {type(table).__name__}"
        )
    for statistic in statistics:
        statistic.begin(table)
    for block in blocks_for(statistics, table, memory):
        for statistic in statistics:
            statistic.take(block)
        if tell is not None:
            tell(block.first + len(block.entries), table.shape[0])


def blocks_for(
    statistics: Sequence[Statistic], table: FactoredMap, memory: int = MEMORY
) -> Iterator[Any]:
    """The blocks of a scan: `Product`'s, unless others tell these statistics as much, sooner.

    Raises: PvmlError as `scan`.
    """
    if all(isinstance(one, RowTop) for one in statistics) and pays(table, memory):
        return CoarseProduct(table, memory).blocks()
    return Product(table, memory).blocks()


@dataclass
class RowTop:
    """The k largest entries of each row, the largest first."""

    k: int

    def begin(self, table: FactoredMap) -> None:
        _require_some(self.k)
        k = min(self.k, table.shape[1])
        self.values: Float[Tensor, "rows k"] = table.left.new_empty(table.shape[0], k)
        self.ids: Int[Tensor, "rows k"] = _ids(table, table.shape[0], k)

    def take(self, block: Block | CoarseBlock) -> None:
        here = slice(block.first, block.first + len(block.entries))
        self.ids[here], self.values[here] = block.row_top(self.values.shape[1])


@dataclass
class Top:
    """The k largest entries of the whole table, the largest first; of equal ones the upper rows."""

    k: int

    def begin(self, table: FactoredMap) -> None:
        _require_some(self.k)
        self._n_columns = table.shape[1]
        self.values: Float[Tensor, " k"] = table.left.new_empty(0)
        self._places = _ids(table, 0)

    @property
    def rows(self) -> Int[Tensor, " k"]:
        return self._places // self._n_columns

    @property
    def columns(self) -> Int[Tensor, " k"]:
        return self._places % self._n_columns

    def take(self, block: Block) -> None:
        n_groups, flat = block.largest.shape[1], block.largest.flatten()
        # what is equal to the last that is kept comes behind it, for it is further below
        groups = t.arange(len(flat), device=flat.device)
        if len(self.values) == self.k:
            groups = (flat > self.values[-1]).nonzero()[:, 0]
            if not len(groups):
                return
        groups = groups[first_largest(flat[groups][None], min(self.k, len(groups)))[0]]
        groups = groups.sort().values
        rows = groups // n_groups
        columns = (groups % n_groups)[:, None] * GROUP + t.arange(GROUP, device=flat.device)
        found = block.padded[rows[:, None], columns].flatten()
        places = ((block.first + rows)[:, None] * self._n_columns + columns).flatten()
        real = (columns < self._n_columns).flatten()
        values = t.cat([self.values, found[real]])
        places = t.cat([self._places, places[real]])
        order = places.argsort(stable=True)
        values, places = values[order], places[order]
        best = first_largest(values[None], min(self.k, len(values)))[0]
        self.values, self._places = values[best], places[best]


@dataclass
class Diagonal:
    """The entries at (0, 0), (1, 1), ..., and where each stands among its row."""

    def begin(self, table: FactoredMap) -> None:
        n = min(table.shape)
        self.values: Float[Tensor, " n"] = table.left.new_empty(n)
        self.ranks: Int[Tensor, " n"] = _ids(table, n)
        """How many entries of the row are larger: 0 for a row's maximum."""
        self._larger = t.empty(PART, table.shape[1], device=table.device)

    def take(self, block: Block) -> None:
        n = min(len(block.entries), len(self.values) - block.first)
        if n <= 0:
            return
        own = block.entries[:n].diagonal(block.first)
        self.values[block.first : block.first + n] = own
        for here, part in Block(block.first, block.entries[:n], block.padded[:n]).parts():
            # as numbers, whose sum is far faster than that of booleans; exact up to 2^24 columns
            larger = t.gt(part, self.values[here, None], out=self._larger[: len(part)])
            self.ranks[here] = larger.sum(-1).long()


@dataclass
class RowQuantiles:
    """Quantiles of each row, interpolated along a line as `torch.quantile` does."""

    shares: tuple[float, ...]
    """Which, from 0 (the smallest) to 1 (the largest)."""

    def begin(self, table: FactoredMap) -> None:
        if not all(0 <= share <= 1 for share in self.shares):
            raise PvmlError(f"quantiles lie between 0 and 1, got {self.shares}")
        self.values: Float[Tensor, "rows n_shares"] = table.left.new_empty(
            table.shape[0], len(self.shares)
        )

    def take(self, block: Block) -> None:
        last = block.entries.shape[1] - 1
        below = [math.floor(share * last) for share in self.shares]
        for here, part in block.parts():
            found = _in_order(part, sorted({*below, *(min(place + 1, last) for place in below)}))
            for number, (share, place) in enumerate(zip(self.shares, below, strict=True)):
                low, high = found[place], found[min(place + 1, last)]
                self.values[here, number] = t.lerp(low, high, share * last - place)


@dataclass
class Histogram:
    """How many entries of the whole table, and of each row if asked, lie in each of many bins.

    Its bins are equally wide, from the least to the largest value that the factors allow.
    """

    n_bins: int = 4096
    by_row: bool = False

    def begin(self, table: FactoredMap) -> None:
        if self.n_bins < 1:
            raise PvmlError(f"a histogram needs at least 1 bin, got {self.n_bins}")
        longest = table.left.double().norm(dim=1).max() * table.right.double().norm(dim=0).max()
        # no product of two vectors is larger than that of their lengths; a little for rounding
        bound = float(longest) * (1 + 1e-5) or 1.0
        self.edges: Float[Tensor, " n_edges"] = t.linspace(
            -bound, bound, self.n_bins + 1, dtype=t.float64
        )
        self.counts: Int[Tensor, " n_bins"] = _ids(table, self.n_bins).zero_()
        rows = table.shape[0] if self.by_row else 0
        self.row_counts: Int[Tensor, "rows n_bins"] = _ids(table, rows, self.n_bins).zero_()

    @property
    def resolution(self) -> float:
        """The width of a bin: `quantile` is off by no more."""
        return float(self.edges[1] - self.edges[0])

    def take(self, block: Block) -> None:
        low, per_unit = float(self.edges[0]), 1 / self.resolution
        for here, part in block.parts():
            bins = ((part - low) * per_unit).long().clamp_(0, self.n_bins - 1)
            self.counts += t.bincount(bins.flatten(), minlength=self.n_bins)
            if self.by_row:
                self.row_counts[here].scatter_add_(1, bins, t.ones_like(bins))

    def quantile(self, share: float) -> float:
        """The value that `share` of all entries do not exceed, to within `resolution`.

        Raises: PvmlError for a share outside 0 to 1.
        """
        if not 0 <= share <= 1:
            raise PvmlError(f"quantiles lie between 0 and 1, got {share}")
        reached = self.counts.cumsum(0) >= max(1, share * int(self.counts.sum()))
        return float(self.edges[int(reached.long().argmax()) + 1])


def _require_some(k: int) -> None:
    if k < 1:
        raise PvmlError(f"k must be at least 1 entry, got {k}")


def _ids(table: FactoredMap, *shape: int) -> Tensor:
    return t.empty(shape, dtype=t.long, device=table.device)


def _in_order(x: Float[Tensor, "n m"], places: list[int]) -> dict[int, Float[Tensor, " n"]]:
    """What stands at these places of each row once it is sorted."""
    if x.device.type == "cpu" and x.dtype in (t.float32, t.float64):
        # several times as fast as torch's sort
        ordered = t.from_numpy(np.partition(x.numpy(), places, axis=-1))
    else:
        ordered = x.sort(-1).values
    return {place: ordered[:, place] for place in places}
