"""Row tops by bfloat16: those of float32 to the last id, whatever the table; or float32 itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.weights import coarse
from pvml.circuits.weights.blocks import GROUP, Block, Product
from pvml.circuits.weights.coarse import CoarseProduct, multiplies_bfloat16, pays
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.streamed import Diagonal, RowTop, blocks_for, scan

ROWS, COLUMNS, RANK = 300, 4000, 24


def factors(seed: int = 0, rank: int = RANK) -> tuple[Tensor, Tensor]:
    draw = t.Generator().manual_seed(seed)
    return t.randn(ROWS, rank, generator=draw), t.randn(rank, COLUMNS, generator=draw)


def row_top(table: FactoredMap, k: int) -> tuple[Tensor, Tensor, int]:
    """Ids and values of every row, and how many blocks were in vain."""
    product, found = CoarseProduct(table), RowTop(k)
    found.begin(table)
    for block in product.blocks():
        found.take(block)
    return found.ids, found.values, product.in_vain


def exact(table: FactoredMap, k: int) -> tuple[Tensor, Tensor]:
    """In float64, of equal ones the first; and what these are."""
    dense = table.left.double() @ table.right.double()
    ordered = dense.sort(dim=-1, descending=True, stable=True)
    return ordered.indices[:, :k], ordered.values[:, :k]


def uneven(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of very different lengths, as a vocabulary's rare words have."""
    return left * t.logspace(-3, 3, ROWS)[:, None], right * t.logspace(-2, 1, COLUMNS)


def off_centre(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """A large common part: what tells entries apart is small beside them."""
    return left + 3, right + 1


def all_below_zero(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return left.abs(), -right.abs() - 0.1


def two_large(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Nearly all weight in one direction, so that products cancel."""
    return left + t.tensor([1e3, -1e3] + [0.0] * (RANK - 2)), right + right[:1] * 50


SHAPES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "even": lambda left, right: (left, right),
    "uneven": uneven,
    "off centre": off_centre,
    "all below zero": all_below_zero,
    "cancelling": two_large,
    "tiny": lambda left, right: (left * 1e-15, right * 1e-17),
    "large": lambda left, right: (left * 1e4, right * 1e4),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [1, 10, 62])
def test_the_ids_are_those_of_float32(shape: str, k: int) -> None:
    """Every row's k largest, in order, but for neighbours that float32 itself cannot tell apart."""
    table = FactoredMap(*SHAPES[shape](*factors()))
    ids, values, _ = row_top(table, k)
    wanted, truth = exact(table, k)

    here = (table.left.double() @ table.right.double()).gather(1, ids)
    lengths = table.left.double().norm(dim=1, keepdim=True) * table.right.double().norm(dim=0).max()
    rounding = 1e-6 * lengths
    assert ((here - truth).abs() <= rounding).all()
    assert ((values.double() - here).abs() <= rounding).all()
    assert (ids == wanted).float().mean() > 0.99
    assert (values[:, :-1] >= values[:, 1:]).all()


def test_even_tables_are_read_this_way() -> None:
    """Not a block of a random table is in vain: float32's product is never made."""
    table = FactoredMap(*factors())
    assert row_top(table, 10)[2] == 0


def test_ties_are_those_of_the_dense_table() -> None:
    """Whole numbers, exact in bfloat16 and full of ties: the lower ids come first."""
    draw = t.Generator().manual_seed(1)
    left = t.randint(-9, 10, (ROWS, 8), generator=draw).float()
    right = t.randint(-9, 10, (8, COLUMNS), generator=draw).float()
    twins = t.arange(COLUMNS) // 3
    table = FactoredMap(left, right[:, twins])
    for k in (1, 5, 10):
        ids, values, _ = row_top(table, k)
        wanted, truth = exact(table, k)
        assert t.equal(ids, wanted) and t.equal(values.double(), truth)


HOPELESS = {
    "all alike": lambda left, right: (left, right[:, :1].expand(-1, COLUMNS)),
    "no entry above 0": lambda left, right: (left.abs(), -right.abs()),
    "zeros": lambda left, right: (left * 0, right),
}


@pytest.mark.parametrize("shape", HOPELESS)
def test_what_cannot_be_told_apart_is_read_in_float32(shape: str) -> None:
    """Too many candidates: the block is multiplied out, and soon all that follow are at once."""
    left, right = factors()
    table = FactoredMap(*HOPELESS[shape](left.repeat(4, 1), right))
    ids, values, in_vain = row_top(table, 10)
    wanted = [block.row_top(10) for block in Product(table).blocks()]
    assert t.equal(ids, t.cat([one for one, _ in wanted]))
    assert t.equal(values, t.cat([one for _, one in wanted]))
    assert in_vain == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_no_entry_is_further_off_than_its_bound(shape: str) -> None:
    """And bounds are tight enough to be of use: somewhere a tenth of one is reached."""
    table = FactoredMap(*SHAPES[shape](*factors()))
    block = CoarseProduct(table).block(0)
    n = len(block.entries)
    entries = block.entries[:, :COLUMNS].double()
    bound = block.off(block.entries.view(n, -1, GROUP).float(), block.error[..., None])
    off = (entries - table.left[:n].double() @ table.right.double()).abs()
    share = off / bound.view(n, -1)[:, :COLUMNS].double()
    assert share.max() <= 1
    assert share.max() > (0.1 if shape != "tiny" else -1)


def test_factors_with_gradients_leave_no_graph() -> None:
    """A model's own weights, which want gradients: what is found wants none."""
    left, right = factors()
    _, values, _ = row_top(FactoredMap(left.requires_grad_(), right.requires_grad_()), 10)
    assert not values.requires_grad


def test_candidates_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again in float32 comes in pieces, and is the same."""
    table = FactoredMap(*factors())
    whole = row_top(table, 10)
    monkeypatch.setattr(coarse, "_AT_ONCE", 100 * RANK)
    pieces = row_top(table, 10)
    assert t.equal(whole[0], pieces[0]) and t.equal(whole[1], pieces[1])


def large(**changes: Any) -> FactoredMap:
    shape = {"rows": coarse.LEAST_ROWS, "columns": coarse.LEAST_COLUMNS, "rank": 4, **changes}
    left = t.ones(shape["rows"], shape["rank"])
    return FactoredMap(left, t.ones(shape["rank"], shape["columns"]))


def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tables in float32 of ordinary numbers, where there is room and the processor can."""
    monkeypatch.setattr(coarse, "multiplies_bfloat16", lambda: True)
    assert pays(large())
    assert not pays(large(), memory=16 << 20)
    assert not pays(large(rows=coarse.LEAST_ROWS - 1))
    assert not pays(large(columns=coarse.LEAST_COLUMNS - 1))
    assert not pays(large().double())
    assert not pays(FactoredMap(large().left * 1e6, large().right))
    with monkeypatch.context() as without:
        without.setattr(t.backends.mkldnn, "enabled", False)
        assert not pays(large())
    monkeypatch.setattr(coarse, "multiplies_bfloat16", lambda: False)
    assert not pays(large())


def test_a_processor_that_breaks_the_bounds_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that are off by more than the bound are found out; who cannot is not asked."""
    monkeypatch.setattr(t.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert multiplies_bfloat16.__wrapped__()
    monkeypatch.setattr(coarse, "_ABOUT", 0.01)
    assert not multiplies_bfloat16.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(t.cpu, "get_capabilities", lambda: {}, raising=False)
    assert not multiplies_bfloat16.__wrapped__()


def test_scans_take_it_where_nothing_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan for row tops alone; with a diagonal, whose ranks need all entries, it is float32's."""
    monkeypatch.setattr(coarse, "multiplies_bfloat16", lambda: True)
    draw = t.Generator().manual_seed(2)
    table = FactoredMap(
        t.randn(coarse.LEAST_ROWS, 8, generator=draw),
        t.randn(8, coarse.LEAST_COLUMNS, generator=draw),
    )
    with_diagonal = RowTop(10), Diagonal()
    assert isinstance(next(blocks_for(with_diagonal, table)), Block)
    assert not isinstance(next(blocks_for(with_diagonal[:1], table)), Block)

    alone, told = RowTop(10), []
    scan(table, alone, tell=lambda done, of: told.append((done, of)))
    scan(table, *with_diagonal)
    assert told[-1] == (coarse.LEAST_ROWS, coarse.LEAST_ROWS) and len(told) > 1
    assert (alone.ids == with_diagonal[0].ids).float().mean() > 0.999
    t.testing.assert_close(alone.values, with_diagonal[0].values)
