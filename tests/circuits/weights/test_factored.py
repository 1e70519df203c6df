"""Factored maps: every answer is that of the matrix they never write out."""

import subprocess
import sys

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.weights.factored import FactoredMap
from pvml.errors import PvmlError

SHAPES = [(9, 3, 9), (7, 2, 11), (11, 4, 7), (3, 5, 3), (6, 1, 6), (4, 4, 4), (1, 1, 1)]


def drawn(rows: int, rank: int, columns: int, seed: int = 0) -> FactoredMap:
    rng = t.Generator().manual_seed(seed)
    left, right = (
        t.randn(shape, generator=rng, dtype=t.float64) for shape in ((rows, rank), (rank, columns))
    )
    return FactoredMap(left, right)


def by_size(values: Tensor) -> Tensor:
    """Complex numbers in an order that two equal multisets share."""
    pairs = sorted((round(v.real, 9), round(v.imag, 9)) for v in values.tolist())
    return t.tensor(pairs, dtype=t.float64)


def test_by_hand() -> None:
    """[[1], [2]] [[3, 4]] is [[3, 4], [6, 8]]: trace and eigenvalue 11, norm sqrt(125)."""
    outer = FactoredMap(t.tensor([[1.0], [2.0]]), t.tensor([[3.0, 4.0]]))

    assert outer.dense().tolist() == [[3.0, 4.0], [6.0, 8.0]]
    assert outer.trace() == 11.0 and outer.eigenvalues().tolist() == [11.0]
    assert outer.norm() == pytest.approx(125**0.5, rel=1e-14)
    assert outer.diagonal().tolist() == [3.0, 8.0]
    assert outer.entries([1, 0], [0, 1]).tolist() == [6.0, 4.0]


def test_a_nilpotent_map_has_no_eigenvalue_but_zero() -> None:
    """Everything from the first axis to the second: a matrix of norm 1 whose square is 0."""
    shift = FactoredMap(t.tensor([[1.0], [0.0]]), t.tensor([[0.0, 1.0]]))

    assert shift.eigenvalues().tolist() == [0.0] and shift.singular_values().tolist() == [1.0]
    assert (shift @ shift).norm() == 0.0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_answers_are_the_dense_ones(shape: tuple[int, int, int]) -> None:
    """Entries, rows, columns, diagonal, singular values and vectors, norm."""
    factored = drawn(*shape)
    dense = factored.left @ factored.right
    rows, columns = dense.shape
    u, s, vh = factored.svd()

    assert factored.shape == dense.shape and factored.rank == shape[1]
    for got, wanted in (
        (factored.dense(), dense),
        (factored.rows(range(rows)), dense),
        (factored.columns([columns - 1, 0]), dense[:, [columns - 1, 0]]),
        (factored.entries([0, rows - 1], [columns - 1, 0]), dense[[0, -1], [-1, 0]]),
        (factored.diagonal(), dense.diagonal()),
        (factored.T.dense(), dense.T),
        (u @ s.diag() @ vh, dense),
        (u.T @ u, t.eye(len(s), dtype=t.float64)),
        (vh @ vh.T, t.eye(len(s), dtype=t.float64)),
        (s, t.linalg.svdvals(dense)[: len(s)]),
        (factored.singular_values(), s),
    ):
        t.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    assert factored.norm() == pytest.approx(float(dense.norm()), rel=1e-12)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] == shape[2]], ids=str)
def test_eigenvalues_are_the_dense_ones(shape: tuple[int, int, int]) -> None:
    """Beside zeros; their sum is the trace; the largest absolute value comes first."""
    factored = drawn(*shape)
    values = factored.eigenvalues()
    zeros = t.zeros(max(0, shape[0] - len(values)), dtype=values.dtype)

    dense = t.linalg.eigvals(factored.dense())
    t.testing.assert_close(by_size(t.cat([values, zeros])), by_size(dense), rtol=0, atol=1e-8)
    assert float(values.sum().real) == pytest.approx(factored.trace(), abs=1e-10)
    sizes = values.abs()
    assert (sizes[:-1] >= sizes[1:]).all()


@pytest.mark.parametrize("ranks", [(2, 5), (5, 2), (3, 3)], ids=str)
def test_composition_is_the_product(ranks: tuple[int, int]) -> None:
    """Of maps in either order of widths, and of a map with a matrix on either side."""
    one, two = drawn(8, ranks[0], 6), drawn(6, ranks[1], 7, seed=1)
    matrix = drawn(6, 4, 3, seed=2).dense()
    both = one @ two

    assert both.rank == min(ranks)
    t.testing.assert_close(both.dense(), one.dense() @ two.dense(), rtol=0, atol=1e-12)
    t.testing.assert_close((one @ matrix).dense(), one.dense() @ matrix, rtol=0, atol=1e-12)
    t.testing.assert_close((matrix.T @ two).dense(), matrix.T @ two.dense(), rtol=0, atol=1e-12)


def test_a_whole_matrix_is_written_only_if_it_is_small() -> None:
    """50,257 tokens take 10 GB; the message says so, and what to ask for instead."""
    huge = FactoredMap(t.ones(50_257, 2), t.ones(2, 50_257))

    with pytest.raises(PvmlError, match=r"50,257 x 50,257 would take 9.41 GiB.* rows, columns"):
        huge.dense()
    assert huge.rows([50_256]).shape == (1, 50_257) and huge.trace() == 2 * 50_257


def test_faults_are_told() -> None:
    """Where nothing checks annotations, each is an error that says what was given and expected."""
    wrong = {
        "FactoredMap(ones(2), ones(2, 2))": "left must be a matrix (a tensor with 2 axes), got (2",
        "FactoredMap(ones(2, 2), 3)": "right must be a matrix (a tensor with 2 axes), got int",
        "FactoredMap(ones(2, 3), ones(2, 2))": "left (2, 3) and right (2, 2) do not fit together",
        "FactoredMap(ones(2, 2), ones(2, 2).double())": "left's dtype is torch.float32 and right's",
        "FactoredMap(ones(2, 2) * t.nan, ones(2, 2))": "left holds nan at (0, 0)",
        "FactoredMap(ones(2, 2), ones(2, 2) / 0)": "right holds inf at (0, 0)",
        "oblong.eigenvalues()": "only a square map has eigenvalues, and this one is (3, 4)",
        "oblong.trace()": "only a square map has a trace",
        "oblong @ oblong": "ends in 4 numbers and what follows begins with 3",
        "oblong @ 'x'": "a map is composed with a map or a matrix, got 'x'",
        "oblong.rows([3])": "row ids run from 0 to 2, got 3 to 3",
        "oblong.columns([-1])": "column ids run from 0 to 3, got -1 to -1",
        "oblong.rows([0.5])": "row ids must be whole numbers, got 0.5",
        "oblong.entries([0, 1], [0])": "2 rows and 1 columns make no pairs",
    }
    code = f"""
import torch as t
from torch import ones
from pvml.circuits.weights.factored import FactoredMap
from pvml.errors import PvmlError
oblong = FactoredMap(ones(3, 2), ones(2, 4))
for wrong in {list(wrong)!r}:
    try:
        print(eval(wrong))
    except PvmlError as problem:
        print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for line, told in zip(done.stdout.splitlines(), wrong.values(), strict=True):
        assert told in line


def test_an_entry_that_overflows_is_no_answer() -> None:
    """Finite factors whose product is not: refused by whatever is asked, right in float64."""
    table = FactoredMap(t.full((2, 2), 1e30), t.full((2, 2), 1e30))
    asked = {
        "rows": lambda: table.rows([0]),
        "columns": lambda: table.columns([0]),
        "entries": lambda: table.entries([0], [1]),
        "diagonal": table.diagonal,
        "dense": table.dense,
    }
    for name, ask in asked.items():
        with pytest.raises(PvmlError, match="too large for torch.float32"):
            print(name, ask())
    assert table.double().dense()[0, 0].item() == pytest.approx(2e60)
    assert table.trace() == pytest.approx(4e60) and table.norm() == pytest.approx(4e60)
    huge = FactoredMap(t.full((2, 2), 1e200, dtype=t.float64), table.right.double() * 1e150)
    for ask in (huge.trace, huge.eigenvalues, huge.norm, huge.svd):
        with pytest.raises(PvmlError, match="too large for torch.float64"):
            ask()
