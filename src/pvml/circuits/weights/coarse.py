"""The largest entries of each row, looked for in bfloat16 and computed in float32: still exact.

Where a processor multiplies bfloat16, that takes half the time and half the memory, and gives each
entry to within a bound that is known before. Whatever lies within the bound of a row's k-th largest
is computed again, in float32: for 10 of 50,257 entries of a random circuit that is 14 a row.
Source of the bounds on sums of products: Higham 2002, "Accuracy and Stability of Numerical
Algorithms", section 3.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.weights.blocks import GROUP, MEMORY, Block, Product, room
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.largest import largest_of_some

LEAST_ROWS, LEAST_COLUMNS = 2048, 8192
"""Smaller tables are read as fast in float32: this way has more to prepare."""
_ROUNDING = 2.0**-8
"""How far a number is from its nearest in bfloat16 at most, as a share of it."""
_SUMMING = 2.0**-22
"""The same of a float32 product and its addition, here and where entries are computed again."""
_ABOUT = 1.001
"""For the rounding of the bounds themselves."""
_NOTHING, _FAR = 1e-30, 1e6
"""What hardware takes for 0 makes no larger difference, if no row or column is longer than this."""
_MANY = 64
"""Candidates for each row, on average and beside 8 k, beyond which float32 is the faster way."""
_AT_ONCE = 1 << 21
"""Numbers that are multiplied at once where candidates are computed again."""


@t.no_grad()
def pays(table: FactoredMap, memory: int = MEMORY) -> bool:
    """Whether a table's rows are looked through faster this way, within so many bytes."""
    large = table.shape[0] >= LEAST_ROWS and table.shape[1] >= LEAST_COLUMNS
    usual = table.device.type == "cpu" and table.dtype == t.float32
    return (
        large
        and usual
        and _bytes(table, memory) <= memory
        and bool(t.backends.mkldnn.enabled)  # or bfloat16 is multiplied one by one
        and multiplies_bfloat16()
        and _within(table)
    )


@cache
def multiplies_bfloat16() -> bool:
    """Whether this processor does, and keeps to the bounds: tried out, once."""
    can: dict[str, bool] = getattr(t.cpu, "get_capabilities", dict)()
    if not (can.get("avx512_bf16") or can.get("amx_bf16")):
        return False
    draw = t.Generator().manual_seed(0)
    left, right = t.randn(64, 96, generator=draw), t.randn(96, 64 * GROUP, generator=draw)
    found = CoarseProduct(FactoredMap(left, right)).block(0)
    exact = (left.double() @ right.double()).view(64, -1, GROUP)
    entries = found.entries.view(64, -1, GROUP).double()
    return bool(((entries - exact).abs() <= found.off(entries, found.error[..., None])).all())


@dataclass(frozen=True, eq=False)
class CoarseBlock:
    """Some rows of a table, each entry to within a bound."""

    made_by: "CoarseProduct"
    first: int
    """The first row's number in the table."""
    entries: Float[Tensor, "n width"]
    """In bfloat16; -inf beyond the table's columns."""
    error: Float[Tensor, "n n_groups"]
    """How far an entry of each group is off at most, but for its own rounding to bfloat16."""

    @staticmethod
    def off(entries: Tensor, error: Tensor) -> Tensor:
        """How far they may be off, their own rounding included."""
        return error + entries.abs() * (_ABOUT * _ROUNDING)

    @t.no_grad()
    def row_top(self, k: int) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]]:
        """As `Block.row_top`, and in float32 as there."""
        found = self._row_top(k) if k <= self.error.shape[1] else None
        self.made_by.in_vain += found is None
        return found or self.made_by.exact.block(self.first).row_top(k)

    def _row_top(self, k: int) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]] | None:
        """None: too many entries may be among the largest."""
        n, n_groups = self.error.shape
        # as whole numbers they are compared several times as fast, in the same order from 0 up;
        # of a group without any such entry, this gives one that is below 0
        whole = self.entries.view(t.int16).view(n, n_groups, GROUP).amax(-1)
        largest = whole.view(t.bfloat16).float()
        # each of k groups has an entry that is no smaller than that
        surely = largest - self.off(largest, self.error)
        least = surely.topk(k, sorted=False).values.amin(1, keepdim=True)
        largest.clamp_(min=0)
        rows, groups = (largest + self.off(largest, self.error) >= least).nonzero().unbind(1)
        if len(rows) > n * (8 * k + _MANY):
            return None
        entries = self.entries.view(-1, GROUP).index_select(0, rows * n_groups + groups).float()
        at_most = entries + self.off(entries, self.error[rows, groups, None])
        which, place = (at_most >= least[rows]).nonzero().unbind(1)
        if len(which) > n * (8 * k + _MANY):
            return None
        rows, columns = rows[which], groups[which] * GROUP + place
        values = self.made_by.entries_at(rows + self.first, columns)
        return largest_of_some(rows, columns, values, n, k)


class CoarseProduct:
    """A table's rows multiplied out in bfloat16, some at a time; the next block overwrites them."""

    @t.no_grad()
    def __init__(self, table: FactoredMap, memory: int = MEMORY):
        self.table, self.exact = table, Product(table, memory)
        self.in_vain = 0
        """Blocks that had to be multiplied out in float32 after all."""
        n_columns, width = table.shape[1], self.exact.width
        self._by_column = table.right.T.contiguous()
        right = F.pad(table.right, (0, width - n_columns))
        self._right = right.bfloat16()
        lost = (right - self._right.float()).norm(dim=0)
        kept = self._right.float().norm(dim=0)
        lost, kept = (x.view(-1, GROUP).amax(1) for x in (lost, kept))
        # |l r - l' r'| is at most |l| |r - r'| + |l - l'| |r'|; and summing has errors of its own
        summing = (table.rank + 2) * _SUMMING
        self._bounds = t.stack([_ABOUT * lost + summing * kept, _ABOUT * kept])
        self._room = room(table, self.exact.at_once, width, t.bfloat16)

    def blocks(self) -> Iterator["CoarseBlock | Block"]:
        """All of them, in order; in float32 once this way has been in vain more than once."""
        for first in range(0, self.table.shape[0], self.exact.at_once):
            yield self.exact.block(first) if self.in_vain > 1 else self.block(first)

    @t.no_grad()
    def block(self, first: int) -> CoarseBlock:
        """The block that begins with this row."""
        left = self.table.left[first : first + self.exact.at_once]
        ours = left.bfloat16()
        entries = t.mm(ours, self._right, out=self._room[: len(left)])
        entries[:, self.table.shape[1] :] = -t.inf
        lengths = t.stack([left.norm(dim=1), (left - ours.float()).norm(dim=1)], dim=1)
        return CoarseBlock(self, first, entries, lengths @ self._bounds + _NOTHING)

    def entries_at(
        self, rows: Int[Tensor, " n"], columns: Int[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """These entries in float32."""
        step = max(1, _AT_ONCE // max(1, self.table.rank))
        left, right = self.table.left, self._by_column
        pieces = [slice(at, at + step) for at in range(0, len(rows), step)]
        return t.cat(
            [
                (left.index_select(0, rows[some]) * right.index_select(0, columns[some])).sum(-1)
                for some in pieces
            ]
        )


def _bytes(table: FactoredMap, memory: int) -> int:
    """What is held on the way, the blocks of float32 that may be needed after all included."""
    exact = Product(table, memory)
    width, rows = exact.width, exact.at_once
    factors = table.rank * width * (2 + 2 + 4 + 8 + 8)
    return factors + rows * width * (2 + 4) + rows * width // GROUP * 32 + 3 * 4 * _AT_ONCE


def _within(table: FactoredMap) -> bool:
    """Whether no row or column is so long that what hardware takes for 0 would matter."""
    longest = max(float(table.left.norm(dim=1).max()), float(table.right.norm(dim=0).max()))
    return longest < _FAR
