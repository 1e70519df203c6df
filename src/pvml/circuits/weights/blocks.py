"""A huge table's rows, some at a time, in memory that the next of them overwrite."""

import mmap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.held import require_no_overflow
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.largest import largest_in_groups
from pvml.errors import PvmlError
from pvml.modules.matmul_route import fastest_float32

MEMORY = 256 << 20
"""What a scan may hold beside the factors (bytes)."""
GROUP = 64
"""Columns whose largest entry is looked for together."""
_ROWS = 256
"""In a block at most: fewer are multiplied more slowly, and more are not multiplied faster."""
PART = 16
"""Rows that stay in the processor's cache, with what is computed from them."""
_BYTES_BESIDE = 32
"""For each entry of a part: what statistics compute from it on their way."""


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

    def row_top(self, k: int) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]]:
        """Where each row's k largest entries are, and these, the largest first."""
        (n, width), found = self.padded.shape, []
        # no more candidates together than a part has entries, or than are of no account
        rows = max(1, max(PART * width, 1 << 20) // (k * GROUP))
        for at in range(0, n, rows):
            some = slice(at, at + rows)
            found.append(largest_in_groups(self.padded[some], self.largest[some], k))
        ids = t.cat(found)
        return ids, self.padded.gather(1, ids)

    def parts(self) -> Iterator[tuple[slice, Float[Tensor, "few columns"]]]:
        """A few rows at a time, behind where they are in the table."""
        for at in range(0, len(self.entries), PART):
            part = self.entries[at : at + PART]
            yield slice(self.first + at, self.first + at + len(part)), part


class Product:
    """A table's rows multiplied out, some at a time, in memory that the next block overwrites."""

    def __init__(self, table: FactoredMap, memory: int = MEMORY):
        """memory: bytes that may be held beside the factors.

        Raises: PvmlError if memory does not hold a single row.
        """
        self.table = table
        self.width = -(-table.shape[1] // GROUP) * GROUP
        """Columns, filled up to a whole number of groups."""
        fitting = _rows_at_once(table, self.width, memory) if all(table.shape) else 0
        self.at_once = min(fitting, table.shape[0])
        """Rows in a block; 0 where there is nothing to multiply."""

    def blocks(self) -> Iterator[Block]:
        """All of them, in order.

        Raises: PvmlError as `block`.
        """
        if self.at_once:
            yield from map(self.block, range(0, self.table.shape[0], self.at_once))

    @t.no_grad()
    def block(self, first: int) -> Block:
        """The block that begins with this row.

        Raises: PvmlError for an entry that is too large for the factors' type.
        """
        table = self.table
        left, n_columns = table.left[first : first + self.at_once], table.shape[1]
        with fastest_float32(table.device, table.dtype):
            padded = t.mm(left, self._right, out=self._room[: len(left)])
        if self._may_overflow:
            require_no_overflow(padded, "this map")
        padded[:, n_columns:] = -t.inf
        return Block(first, padded[:, :n_columns], padded)

    @cached_property
    def _right(self) -> Float[Tensor, "rank width"]:
        return F.pad(self.table.right, (0, self.width - self.table.shape[1]))

    @cached_property
    def _room(self) -> Float[Tensor, "at_once width"]:
        return room(self.table, self.at_once, self.width, self.table.dtype)

    @cached_property
    def _may_overflow(self) -> bool:
        """Whether an entry could: none is larger than the longest row times the longest column."""
        longest = float(self.table.left.norm(dim=1).max() * self.table.right.norm(dim=0).max())
        # nor is it where a length itself overflows
        return not longest < t.finfo(self.table.dtype).max / 2


def room(table: FactoredMap, rows: int, width: int, dtype: t.dtype) -> Float[Tensor, "rows width"]:
    """Memory for a block: in large pages, if the system has them, for they are read faster."""
    if table.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return table.left.new_empty(rows, width, dtype=dtype)
    memory = mmap.mmap(-1, rows * width * dtype.itemsize)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return t.frombuffer(memory, dtype=dtype).view(rows, width)


def _rows_at_once(table: FactoredMap, width: int, memory: int) -> int:
    entry = table.left.element_size()
    # `right` is copied to fill it up, and once more by the product
    fixed, beside = 2 * table.rank * width * entry, width * _BYTES_BESIDE
    if fixed + width * entry + beside > memory:
        raise PvmlError(
            f"a row of {table.shape[1]:,} entries takes {fixed + width * entry + beside:,} bytes "
            f"on the way, more than the memory of {memory:,} that was allowed"
        )
    fitting = (memory - fixed) // (width * entry + beside)
    if fitting > PART:
        fitting = (memory - fixed - PART * beside) // (width * entry)
    return min(_ROWS, fitting)
