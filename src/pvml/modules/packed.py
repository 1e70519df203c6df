"""Weights copied into the order in which the kernels read them: writing alone needs it.

A token at a time, a model does nothing but read its weights. oneDNN, which multiplies them, first
brings a matrix into an order of its own, for each product anew, which takes longer than the product
of a few rows. Done once, several rows are multiplied at nearly the rate of memory. For a single row
`embedding_bag` (a weighted sum of a table's rows) comes nearer to it still, if the matrix is laid
out as one table for each few hundred outputs. It also takes tables of 8-bit numbers.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch as t
from torch import Tensor, nn

from pvml.errors import PvmlError

Kind = Literal["float32", "int8"]
"""What packed weights are: the model's own numbers (bfloat16's too), or 8-bit numbers, of which 384
have a scale and an offset."""

AsMatrix = Callable[[Tensor], Tensor]
"""Gives a view of a weight as (wide, out)."""

SMALLEST = 1 << 17
"""Numbers in a matrix. Smaller ones stay in the processor's caches, and gain nothing."""
SMALLEST_FOR_A_ROW = 1 << 13
"""The same where a single row is multiplied, for which the usual product is slow."""
_ROWS = 64
"""Of x, for which oneDNN chooses its order; others do as well by it."""
_MOST_COLUMNS = 384
"""Outputs of a table: more sums than that do not fit into the registers."""
_PARTS = 8
"""Of a matrix's rows, which are summed up side by side by several threads."""
_MOST_INT8_ROWS = 4
"""Rows of x that are multiplied one by one. For more it is faster to unpack the matrix."""

_in_use: ContextVar["PackedWeights | None"] = ContextVar("packed weights", default=None)


def in_use() -> "PackedWeights | None":
    """The packed weights that products are to take, if any."""
    return _in_use.get()


@functools.cache
def can_pack(dtype: t.dtype) -> bool:
    """Whether oneDNN, where this PyTorch has it, multiplies packed matrices of this type rightly.

    Tried out, once: the operators are PyTorch's own, for its compiler, and promised to nobody.
    """
    if dtype not in _ROUNDING:
        return False
    generator = t.Generator().manual_seed(0)
    x, W, b = (t.randn(shape, generator=generator) for shape in ((3, 128), (128, 96), (96,)))
    x, W, b = x.to(dtype), W.to(dtype), b.to(dtype)
    try:
        y = _multiplied(x, _in_its_order(W), b)
    except (AttributeError, RuntimeError):  # another version, or a build without oneDNN
        return False
    truth = x.double() @ W.double() + b.double()
    return float((y.double() - truth).abs().max() / truth.abs().max()) < _ROUNDING[dtype]


@functools.cache
def has_fast_sums() -> bool:
    """Whether this PyTorch has the kernels (FBGEMM, for x86) that sum a table's rows fast."""
    return "fbgemm" in t.backends.quantized.supported_engines


_ROUNDING = {t.float32: 2e-6, t.bfloat16: 1e-2}
"""How far a product may be off, relative to the largest entry."""


def _in_its_order(W: Tensor) -> Tensor:
    """A matrix (wide, out) in oneDNN's own order, which only oneDNN can read."""
    reordered: Tensor = t.ops.mkldnn._reorder_linear_weight(W.T, _ROWS)
    return reordered


def _multiplied(x: Tensor, reordered: Tensor, b: Tensor) -> Tensor:
    y: Tensor = t.ops.mkldnn._linear_pointwise(x, reordered, b, "none", [], "")
    return y


class PackedWeights:
    """The packed copies of the matrices that were multiplied by while these were in use.

    Each is made when it is first needed, for one row or for several, and costs as much memory as
    the matrix (int8: a quarter) and as much time as some ten tokens. Only matrices on the CPU are
    packed, in float32 or bfloat16, and small ones are not. int8 is another model: all products take
    the rounded weights, whatever the number of rows, which for more than a few is slower than
    float32.

    Raises: PvmlError for another kind.
    """

    def __init__(self, kind: Kind = "float32") -> None:
        if kind not in get_args(Kind):
            raise PvmlError(f"packed weights are float32 or int8, got {kind!r}")
        self.kind = kind
        self._matrices: dict[tuple[int, type[_Packed]], _Packed] = {}
        """By the address of the matrix, and the order it is in."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within it, products take the packed copies."""
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)

    def refresh(self) -> None:
        """Forget every copy whose matrix has changed, however that was done, or is not read now.

        A change that PyTorch counts (an optimizer's, or `W += 1`) is seen at the next product
        without it; one through `.data` or NumPy is not.
        """
        kept = {at: packed for at, packed in self._matrices.items() if packed.read}
        self._matrices = {at: packed for at, packed in kept.items() if packed.is_current()}
        for packed in self._matrices.values():
            packed.read = False

    def products(
        self,
        x: Tensor,
        Ws: tuple[Tensor, ...],
        bs: tuple[Tensor, ...],
        as_matrix: AsMatrix | None = None,
    ) -> list[Tensor] | None:
        """`x W + b` for each W and b, by a packed copy of all; None: to be done the usual way."""
        W = Ws[0]
        n_rows = x.shape[0] * x.shape[1]
        fits = x.dtype == W.dtype and W.is_cpu
        if self.kind == "int8" and n_rows and not (fits and W.dtype == t.float32):
            raise PvmlError(
                f"int8 weights multiply float32 on a CPU, and here {x.dtype} meets {W.dtype} "
                f"on {W.device}"
            )
        if not n_rows or not fits:
            return None
        # asked for every product of every token: cheap questions first
        order = self._order(W.dtype, n_rows)
        if order is None:
            return None
        packed = self._matrices.get((W.data_ptr(), order))
        if packed is None or packed.versions != [W._version for W in (*Ws, *bs)]:
            if W.numel() < (SMALLEST_FOR_A_ROW if order is _Tables else SMALLEST):
                return None
            packed = order(Ws, bs, as_matrix)
            self._matrices[W.data_ptr(), order] = packed
        packed.read = True
        return packed.times(x)

    def _order(self, dtype: t.dtype, n_rows: int) -> "type[_Packed] | None":
        """The fastest that there is for so many rows; None: matrices stay as they are."""
        if self.kind == "int8":
            return _Int8Tables
        if n_rows == 1 and dtype == t.float32 and has_fast_sums():
            return _Tables
        return _Reordered if can_pack(dtype) else None


def packed_for(model: nn.Module, kind: Kind) -> PackedWeights | None:
    """Packed weights for a model to write with; None where they would not be faster.

    A model has one of each kind, which all who write with it share.

    Raises: PvmlError for int8 where the model is not in float32 on a CPU, or has no large matrix.
    """
    packed = PackedWeights(kind)
    here = {(p.is_cpu, p.dtype) for p in model.parameters()}
    if kind == "int8":
        if here != {(True, t.float32)}:
            raise PvmlError("int8 weights are for a model in float32 on a CPU: model.float().cpu()")
        if not any(p.numel() >= SMALLEST for p in model.parameters()):
            raise PvmlError(
                f"int8 weights are for matrices of at least {SMALLEST:,} numbers, and this model "
                f"has none"
            )
    elif not any(is_cpu and packed._order(dtype, 1) for is_cpu, dtype in here):
        return None
    return _of_models.setdefault(model, {}).setdefault(kind, packed)


_of_models: WeakKeyDictionary[nn.Module, dict[Kind, PackedWeights]] = WeakKeyDictionary()


def _telling_sums(W: Tensor) -> list[Tensor]:
    """Sums of a matrix that every change moves, wherever numbers go, in one reading where possible.

    No products, which other routes round otherwise.
    """
    if W.dtype != t.float32 or not W.is_contiguous() or not has_fast_sums():
        return [W.sum(dim, dtype=t.float32) for dim in (0, 1)]
    n = len(W)
    parts = t.arange(0, n, -(-n // _PARTS), dtype=t.int32)
    how_often = t.linspace(1, 2, n)  # each row otherwise, or rows could change places
    rows = t.arange(n, dtype=t.int32)
    return [t.embedding_bag(W, rows, parts, False, 0, False, how_often)[0]]


class _Packed(ABC):
    """Matrices of one shape, and their biases, as they were when they were copied."""

    def __init__(
        self, Ws: tuple[Tensor, ...], bs: tuple[Tensor, ...], as_matrix: AsMatrix | None
    ) -> None:
        self.versions = [W._version for W in (*Ws, *bs)]
        self.Ws = [W.detach() if as_matrix is None else as_matrix(W.detach()) for W in Ws]
        self.bs = [b.detach().flatten() for b in bs]
        self.biases = t.cat(self.bs)
        self.read = True
        """Since the last refresh."""
        self.sums = self._sums()

    def _sums(self) -> list[Tensor]:
        return [each for W in self.Ws for each in _telling_sums(W)]

    def is_current(self) -> bool:
        """Whether all is still what was copied, but for what a sum rounds off."""
        return t.equal(self.biases, t.cat(self.bs)) and all(map(t.equal, self.sums, self._sums()))

    @abstractmethod
    def times(self, x: Tensor) -> list[Tensor]:
        """`x W + b` with each W and b, for x in (batch, posn, wide)."""


class _Reordered(_Packed):
    """Side by side, in oneDNN's own order."""

    def __init__(
        self, Ws: tuple[Tensor, ...], bs: tuple[Tensor, ...], as_matrix: AsMatrix | None
    ) -> None:
        super().__init__(Ws, bs, as_matrix)
        self.out = self.Ws[0].shape[1]
        self.reordered = _in_its_order(t.cat(self.Ws, 1) if len(Ws) > 1 else self.Ws[0])

    def times(self, x: Tensor) -> list[Tensor]:
        return list(t.split(_multiplied(x, self.reordered, self.biases), self.out, dim=-1))


class _Tables(_Packed):
    """As tables of a few hundred columns each, one below the other.

    A product is the sum of each table's rows, each of them as often as x says.
    """

    def __init__(
        self, Ws: tuple[Tensor, ...], bs: tuple[Tensor, ...], as_matrix: AsMatrix | None
    ) -> None:
        super().__init__(Ws, bs, as_matrix)
        self.wide, self.out = self.Ws[0].shape
        per_thread = -(-self.out // t.get_num_threads())
        self.columns = min(_MOST_COLUMNS, -(-per_thread // 16) * 16)
        pieces = [piece for W in self.Ws for piece in t.split(W, self.columns, dim=1)]
        tables = self.Ws[0].new_zeros(len(pieces), self.wide, self.columns)
        for table, piece in zip(tables, pieces, strict=True):
            table[:, : piece.shape[1]] = piece
        self.tables = self._stored(tables.flatten(0, 1))
        self.n_tables = len(pieces)
        n_rows = self.n_tables * self.wide
        self.row_numbers = t.arange(n_rows, dtype=t.int32)
        self.first_rows = t.arange(0, n_rows, self.wide, dtype=t.int32)

    def times(self, x: Tensor) -> list[Tensor]:
        return list(self._row(x).unbind())

    def _row(self, x: Tensor) -> Tensor:
        """A row times each matrix, plus its bias, as (matrix, 1, 1, out)."""
        sums = self._sums_of_rows(t.cat([x.reshape(-1)] * self.n_tables))
        ys = sums.view(len(self.Ws), 1, 1, -1)
        ys = ys if ys.shape[-1] == self.out else ys[..., : self.out]
        return ys.add_(self.biases.view(ys.shape))

    def _stored(self, tables: Tensor) -> Tensor:
        return tables

    def _sums_of_rows(self, how_often: Tensor) -> Tensor:
        """The sum of each table's rows, each of them so many times."""
        bag = t.embedding_bag
        return bag(self.tables, self.row_numbers, self.first_rows, False, 0, False, how_often)[0]


class _Int8Tables(_Tables):
    """The same in PyTorch's own format: 8-bit numbers, and behind them their scale and offset.

    Biases are not rounded: one large number would be the step of all its table's.
    """

    def times(self, x: Tensor) -> list[Tensor]:
        batch, posn, _ = x.shape
        if batch * posn > _MOST_INT8_ROWS:
            return [x @ W + b for W, b in zip(self._rounded(), self.bs, strict=True)]
        rows = [self._row(row) for row in x.reshape(batch * posn, self.wide)]
        return [y.view(batch, posn, self.out) for y in t.stack(rows, 1).unbind()]

    def _stored(self, tables: Tensor) -> Tensor:
        prepacked: Tensor = t.ops.quantized.embedding_bag_byte_prepack(tables)
        return prepacked

    def _sums_of_rows(self, how_often: Tensor) -> Tensor:
        bag = t.ops.quantized.embedding_bag_byte_rowwise_offsets
        sums: Tensor = bag(
            self.tables, self.row_numbers, self.first_rows, False, 0, False, how_often
        )
        return sums

    def _rounded(self) -> Sequence[Tensor]:
        """The matrices that rows are multiplied by."""
        numbers: Tensor = t.ops.quantized.embedding_bag_byte_unpack(self.tables)
        tables = numbers.view(len(self.Ws), -1, self.wide, self.columns)
        return [each.transpose(0, 1).flatten(1)[:, : self.out] for each in tables]
