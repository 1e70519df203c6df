"""Statistics of a huge table that is never whole: rows pass by, some at a time.

A circuit over a vocabulary of 50,257 has 2.5 billion entries. `scan` makes them block by block and
shows each block to whoever gathers something. All answers are exact, ties included: the same as
those of the dense table. Of equal entries the one with the lower id comes first.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.factored import FactoredMap
from pvml.errors import PvmlError
from pvml.modules.matmul_route import fastest_float32

MEMORY = 256 << 20
"""What a scan may hold beside the factors (bytes)."""
GROUP = 64
"""Columns whose largest entry is looked for together."""
_ROWS = 128
"""In a block at most: more do not fit into the processor's caches."""
_BYTES_PER_ENTRY = 12
"""Of a block in float32, its copies on the way included."""

Told = Callable[[int, int], object]
"""Told how many rows have passed, and of how many."""


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a table, all columns."""

    first: int
    """The first row's number in the table."""
    entries: Float[Tensor, "n columns"]
    padded: Float[Tensor, "n padded_columns"]
    """The same memory, filled up with -inf to a whole number of groups."""

    @cached_property
    def largest(self) -> Float[Tensor, "n n_groups"]:
        """The largest entry of each group of columns."""
        largest: Tensor = self.padded.view(len(self.padded), -1, GROUP).amax(-1)
        return largest


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

    Raises: PvmlError if memory does not hold a single row.
    """
    for statistic in statistics:
        statistic.begin(table)
    for block in blocks(table, memory):
        for statistic in statistics:
            statistic.take(block)
        if tell is not None:
            tell(block.first + len(block.entries), table.shape[0])


@t.no_grad()
def blocks(table: FactoredMap, memory: int = MEMORY) -> Iterator[Block]:
    """The table's rows, some at a time, in memory that the next block overwrites.

    Raises: PvmlError if memory does not hold a single row.
    """
    n_rows, n_columns = table.shape
    width = -(-n_columns // GROUP) * GROUP
    a_row = width * _BYTES_PER_ENTRY * (2 if table.dtype == t.float64 else 1)
    if n_rows and a_row > memory:
        raise PvmlError(
            f"a row of {n_columns:,} entries takes {a_row:,} bytes on the way, more than the "
            f"memory of {memory:,} that was allowed"
        )
    at_once = max(1, min(_ROWS, memory // max(1, a_row), n_rows))
    right = F.pad(table.right, (0, width - n_columns))
    room = table.left.new_empty(at_once, width)
    with fastest_float32(table.device, table.dtype):
        for first in range(0, n_rows, at_once):
            left = table.left[first : first + at_once]
            padded = t.mm(left, right, out=room[: len(left)])
            padded[:, n_columns:] = -t.inf
            yield Block(first, padded[:, :n_columns], padded)


@dataclass
class RowTop:
    """The k largest entries of each row, the largest first."""

    k: int

    def begin(self, table: FactoredMap) -> None:
        k = min(self.k, table.shape[1])
        self.values: Float[Tensor, "rows k"] = table.left.new_empty(table.shape[0], k)
        self.ids: Int[Tensor, "rows k"] = _ids(table, table.shape[0], k)

    def take(self, block: Block) -> None:
        k, here = self.values.shape[1], slice(block.first, block.first + len(block.entries))
        # an entry is among the k largest only if its group is among the k with the largest maxima,
        # of equal ones those with the lower ids
        groups = first_largest(block.largest, min(k, block.largest.shape[1]))
        columns = _columns_of(groups).flatten(1).sort(-1).values
        candidates = block.padded.gather(1, columns)
        places = first_largest(candidates, k)
        self.values[here] = candidates.gather(1, places)
        self.ids[here] = columns.gather(1, places)


@dataclass
class Top:
    """The k largest entries of the whole table, the largest first; of equal ones the upper rows."""

    k: int

    def begin(self, table: FactoredMap) -> None:
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
        n_groups = block.largest.shape[1]
        flat = block.largest.flatten()
        groups = first_largest(flat[None], min(self.k, len(flat)))[0].sort().values
        rows = groups // n_groups
        columns = _columns_of(groups % n_groups)
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

    def take(self, block: Block) -> None:
        n = min(len(block.entries), len(self.values) - block.first)
        if n <= 0:
            return
        here = slice(block.first, block.first + n)
        own = block.entries[:n].diagonal(block.first)
        self.values[here] = own
        self.ranks[here] = (block.entries[:n] > own[:, None]).sum(-1)


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
        ordered = block.entries.sort(-1).values
        for number, share in enumerate(self.shares):
            below = math.floor(share * last)
            low, high = ordered[:, below], ordered[:, min(below + 1, last)]
            found = t.lerp(low, high, share * last - below)
            self.values[block.first : block.first + len(ordered), number] = found


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
        low, width = float(self.edges[0]), self.resolution
        bins = ((block.entries - low) / width).long().clamp_(0, self.n_bins - 1)
        if self.by_row:
            ones = t.ones_like(bins)
            here = slice(block.first, block.first + len(bins))
            self.row_counts[here].scatter_add_(1, bins, ones)
        self.counts += t.bincount(bins.flatten(), minlength=self.n_bins)

    def quantile(self, share: float) -> float:
        """The value that `share` of all entries do not exceed, to within `resolution`.

        Raises: PvmlError for a share outside 0 to 1.
        """
        if not 0 <= share <= 1:
            raise PvmlError(f"quantiles lie between 0 and 1, got {share}")
        reached = self.counts.cumsum(0) >= max(1, share * int(self.counts.sum()))
        return float(self.edges[int(reached.long().argmax()) + 1])


def _ids(table: FactoredMap, *shape: int) -> Tensor:
    return t.empty(shape, dtype=t.long, device=table.device)


def _columns_of(groups: Int[Tensor, "*places"]) -> Int[Tensor, "*places group"]:
    return groups[..., None] * GROUP + t.arange(GROUP, device=groups.device)


def first_largest(x: Float[Tensor, "n m"], k: int) -> Int[Tensor, "n k"]:
    """Where each row's k largest are, the largest first, of equal ones the lower places first."""
    if x.dtype != t.float32:
        return x.argsort(dim=-1, descending=True, stable=True)[:, :k]
    # a number that orders as the value does, and behind it one that falls with the place: no two
    # are equal, so that whatever `topk` does with equal ones does not matter
    bits = (x + 0.0).contiguous().view(t.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    places = t.arange(x.shape[1], device=x.device)
    keys = (ordered.long() << 32) | ((1 << 32) - 1 - places)
    return keys.topk(k, dim=-1).indices
