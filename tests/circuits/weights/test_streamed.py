"""Streamed tables: every answer is the dense table's, ties included, whatever the memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.weights import blocks
from pvml.circuits.weights.blocks import Block
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.streamed import (
    Diagonal,
    Histogram,
    RowQuantiles,
    RowTop,
    Top,
    scan,
)
from pvml.errors import PvmlError


def little(dtype: t.dtype, rows: int = 37) -> int:
    """Bytes that are just enough for so few rows of 2,000 entries at a time, at rank 5."""
    return 2048 * ((2 * 5 + rows) * dtype.itemsize + min(rows, 16) * 32)


def whole_numbers(rows: int, columns: int, dtype: t.dtype, rank: int = 5) -> FactoredMap:
    """A table of small whole numbers, exact in any type and full of ties."""
    rng = t.Generator().manual_seed(rows)
    left, right = (
        t.randint(-2, 3, shape, generator=rng).to(dtype)
        for shape in ((rows, rank), (rank, columns))
    )
    return FactoredMap(left, right)


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest along the last axis, of equal ones the first."""
    found = x.sort(dim=-1, descending=True, stable=True)
    return found.values[..., :k], found.indices[..., :k]


TABLES = [
    (2000, 2000, t.float32),
    (2000, 2000, t.float64),
    (7, 2000, t.float32),
    (300, 65, t.float32),
    (3, 64, t.float32),
    (130, 1, t.float32),
]


@pytest.mark.parametrize(("rows", "columns", "dtype"), TABLES, ids=str)
def test_all_statistics_are_the_dense_ones(rows: int, columns: int, dtype: t.dtype) -> None:
    """Tops of rows, of columns and of all, diagonal and ranks, quantiles: equal, not close."""
    table = whole_numbers(rows, columns, dtype)
    dense = table.left @ table.right
    row_top, column_top, top = RowTop(10), RowTop(10), Top(25)
    diagonal, quantiles = Diagonal(), RowQuantiles((0.0, 0.1, 0.5, 1.0))
    scan(table, row_top, top, diagonal, quantiles, memory=little(dtype))
    scan(table.T, column_top, memory=little(dtype))

    for found, wanted in ((row_top, largest(dense, 10)), (column_top, largest(dense.T, 10))):
        assert t.equal(found.values, wanted[0]) and t.equal(found.ids, wanted[1])
    values, places = largest(dense.flatten(), 25)
    assert t.equal(top.values, values)
    assert t.equal(top.rows * columns + top.columns, places)
    own = dense.diagonal()
    assert t.equal(diagonal.values, own)
    assert t.equal(diagonal.ranks, (dense[: len(own)] > own[:, None]).sum(1))
    for number, share in enumerate(quantiles.shares):
        t.testing.assert_close(
            quantiles.values[:, number], dense.quantile(share, dim=1), rtol=0, atol=1e-5
        )


def test_histograms_are_the_dense_ones() -> None:
    """Of all entries and of each row; a quantile is off by no more than a bin."""
    table = whole_numbers(400, 2000, t.float32)
    dense = (table.left @ table.right).double()
    histogram = Histogram(n_bins=501, by_row=True)
    scan(table, histogram, memory=little(t.float32))

    bins = t.bucketize(dense, histogram.edges, right=True) - 1
    assert t.equal(histogram.counts, t.bincount(bins.flatten(), minlength=501))
    assert t.equal(histogram.row_counts[7], t.bincount(bins[7], minlength=501))
    assert int(histogram.counts.sum()) == dense.numel()
    ordered = dense.flatten().sort().values
    for share in (0.0, 0.01, 0.5, 0.999, 1.0):
        exact = float(ordered[max(0, round(share * len(ordered)) - 1)])
        assert (
            histogram.quantile(share) - histogram.resolution <= exact <= histogram.quantile(share)
        )


def test_real_numbers_in_float32() -> None:
    """Of a table whose products round: the ids are those of the values that are told."""
    rng = t.Generator().manual_seed(3)
    table = FactoredMap(t.randn(500, 16, generator=rng), t.randn(16, 3000, generator=rng))
    found = RowTop(10)
    scan(table, found)
    exact = table.double().dense()

    assert (found.values[:, :-1] >= found.values[:, 1:]).all()
    t.testing.assert_close(found.values.double(), exact.gather(1, found.ids), rtol=0, atol=1e-4)
    t.testing.assert_close(found.values.double(), largest(exact, 10)[0], rtol=0, atol=1e-4)


def test_memory_bounds_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as fit are in a block, never more; a row that does not fit is refused."""
    table = whole_numbers(10, 2000, t.float32)
    sizes: list[int] = []

    class Counts:
        def begin(self, table: FactoredMap) -> None:
            pass

        def take(self, block: Block) -> None:
            sizes.append(len(block.entries))

    told: list[tuple[int, int]] = []
    scan(
        table,
        Counts(),
        memory=little(t.float32, rows=3),
        tell=lambda done, of: told.append((done, of)),
    )
    assert sizes == [3, 3, 3, 1]
    assert told == [(3, 10), (6, 10), (9, 10), (10, 10)]
    with pytest.raises(PvmlError, match="2,000 entries takes 155,648 bytes .* memory of 155,647"):
        scan(table, Counts(), memory=155_647)
    sizes.clear()
    scan(whole_numbers(100, 2000, t.float32), Counts(), memory=little(t.float32, rows=37) + 8191)
    assert sizes == [37, 37, 26]
    monkeypatch.setattr(blocks, "_ROWS", 4)
    sizes.clear()
    scan(table, Counts())
    assert sizes == [4, 4, 2]


def test_vocabulary_500_with_ties() -> None:
    """A real head's circuit of 500 tokens, many of them twins: dense answers, bit for bit."""
    rng = t.Generator().manual_seed(5)
    left, right = t.randn(500, 8, generator=rng), t.randn(8, 500, generator=rng)
    twins = t.arange(500) // 3  # three tokens each share a row and a column
    table = FactoredMap(left[twins], right[:, twins])
    row_top, top, diagonal, histogram = RowTop(10), Top(500), Diagonal(), Histogram(n_bins=999)
    quantiles = RowQuantiles((0.0, 0.25, 0.9, 1.0))
    seen = Seen()
    scan(table, seen, row_top, top, diagonal, quantiles, histogram)
    dense = t.cat(seen.blocks)
    t.testing.assert_close(dense, table.dense())

    values, ids = largest(dense, 10)
    assert t.equal(row_top.values, values) and t.equal(row_top.ids, ids)
    assert (values[:, 0] == values[:, 2]).all() and (ids[:, 1] == ids[:, 0] + 1).all()
    values, places = largest(dense.flatten(), 500)
    assert t.equal(top.values, values) and t.equal(top.rows * 500 + top.columns, places)
    own = dense.diagonal()
    assert t.equal(diagonal.values, own)
    assert t.equal(diagonal.ranks, (dense > own[:, None]).sum(1))
    for number, share in enumerate(quantiles.shares):
        t.testing.assert_close(quantiles.values[:, number], dense.quantile(share, dim=1))
    exact = float(dense.flatten().sort().values[-(dense.numel() // 10) - 1])
    assert abs(histogram.quantile(0.9) - exact) <= histogram.resolution


class Seen:
    """A statistic that keeps everything."""

    def begin(self, table: FactoredMap) -> None:
        self.blocks: list[Tensor] = []

    def take(self, block: Block) -> None:
        self.blocks.append(block.entries.clone())


EVERYTHING = "(RowTop(10), Top(10), Diagonal(), Histogram(), RowQuantiles((0.5,)))"


@pytest.mark.parametrize(
    ("statistics", "rows", "mib"), [(EVERYTHING, 400, 64), ("(RowTop(10),)", 2100, 150)]
)
def test_vocabulary_50257_in_bounded_memory(
    root: Path, statistics: str, rows: int, mib: int
) -> None:
    """Of a slice of GPT-2's vocabulary: no more than was allowed, whichever way it is read."""
    script = f"""
import torch as t
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.streamed import *


def kib(name):
    with open("/proc/self/status") as status:
        return int(status.read().partition(name)[2].split()[0])


t.set_num_threads(1)
rng = t.Generator().manual_seed(0)
asked = lambda: {statistics}
small = FactoredMap(t.randn(300, 4, generator=rng), t.randn(4, 300, generator=rng))
scan(small, *asked())  # what libraries take once
table = FactoredMap(t.randn({rows}, 4, generator=rng), t.randn(4, 50257, generator=rng))
before = kib("VmRSS:")
scan(table, *asked(), memory={mib} << 20)
print((kib("VmHWM:") - before) >> 10)
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc/self/status, which is not here")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    # the whole tables would be 77 and 403 MiB, and the whole circuit 10 GB
    assert 10 < int(done.stdout) <= mib


def test_what_cannot_be_asked() -> None:
    """Shares outside 0 to 1, no bins, no entries; nothing comes of an empty table."""
    table = whole_numbers(3, 5, t.float32)
    for top in (RowTop(0), Top(-1)):
        with pytest.raises(PvmlError, match="k must be at least 1 entry, got"):
            scan(table, top)
    for shape in ((0, 5), (5, 0)):
        row_top = RowTop(3)
        scan(FactoredMap(t.zeros(shape[0], 2), t.zeros(2, shape[1])), row_top)
        assert row_top.ids.numel() == 0
    with pytest.raises(PvmlError, match=r"quantiles lie between 0 and 1, got \(1.5,\)"):
        scan(table, RowQuantiles((1.5,)))
    with pytest.raises(PvmlError, match="at least 1 bin, got 0"):
        scan(table, Histogram(0))
    histogram = Histogram(4)
    scan(table, histogram)
    with pytest.raises(PvmlError, match="between 0 and 1, got -0.1"):
        histogram.quantile(-0.1)


@pytest.mark.parametrize("statistic", [RowTop(3), Top(2), Diagonal(), RowQuantiles((0.5,))])
def test_an_entry_that_overflows_is_refused(statistic: Any) -> None:
    """Of finite factors, too, whether it is infinite or NaN; what fits is answered."""
    left, right = t.full((2, 2), 1e30), t.full((2, 70), 1e30)
    for signs in ([1.0, 1.0], [1.0, -1.0]):
        with pytest.raises(PvmlError, match="too large for torch.float32"):
            scan(FactoredMap(left * t.tensor(signs), right), statistic)
    scan(FactoredMap(left, right * 1e-22), statistic)
    assert float(statistic.values.max()) == pytest.approx(2e38)
