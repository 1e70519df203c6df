"""Weights copied into the order in which one row times a matrix reads them: writing alone needs it.

A token at a time, a model does nothing but read its weights. PyTorch's matrix products for a single
row read them at half of what memory gives. Its `embedding_bag` (a weighted sum of a table's rows,
whose kernel keeps the sums in registers and fetches rows ahead) reads nearly at that rate, if the
matrix is laid out as one table for each few hundred outputs. It also takes tables of 8-bit numbers.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch as t
from torch import Tensor, nn

from pvml.errors import PvmlError

Kind = Literal["float32", "int8"]
"""What packed weights are: what they were, or 8-bit numbers, 384 with a scale and an offset."""

AsMatrix = Callable[[Tensor], Tensor]
"""Gives a view of a weight as (wide, out)."""

SMALLEST = 1 << 17
"""Numbers in a matrix. Smaller ones stay in the processor's caches, and gain nothing."""
_MOST_COLUMNS = 384
"""Outputs of a table: more sums than that do not fit into the registers."""
_MOST_INT8_ROWS = 4
"""Rows of x that are multiplied one by one. For more it is faster to unpack the matrix."""

_in_use: ContextVar["PackedWeights | None"] = ContextVar("packed weights", default=None)


def in_use() -> "PackedWeights | None":
    """The packed weights that products are to take, if any."""
    return _in_use.get()


@functools.cache
def packing_pays() -> bool:
    """Whether this PyTorch has the kernels (FBGEMM, for x86) that make packed weights fast."""
    return "fbgemm" in t.backends.quantized.supported_engines


class PackedWeights:
    """The packed copies of the matrices that were multiplied by while these were in use.

    Each is made when it is first needed, and costs as much memory as the matrix (int8: a quarter)
    and as much time as some ten tokens. Only matrices on the CPU in float32 are packed, and small
    ones are not. int8 is another model: all products take the rounded weights, whatever the number
    of rows, which for more than a few is slower than float32.

    Raises: PvmlError for another kind.
    """

    def __init__(self, kind: Kind = "float32") -> None:
        if kind not in get_args(Kind):
            raise PvmlError(f"packed weights are float32 or int8, got {kind!r}")
        self.kind = kind
        self._matrices: dict[int, _Packed] = {}
        """By the address of the matrix."""

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
        if n_rows != 1 and (self.kind == "float32" or n_rows == 0):
            return None
        if not x.dtype == W.dtype == t.float32 or not W.is_cpu:
            if self.kind == "int8":
                raise PvmlError(
                    f"int8 weights multiply float32 on a CPU, and here {x.dtype} meets {W.dtype} "
                    f"on {W.device}"
                )
            return None
        # asked for every product of every token: cheap questions first
        packed = self._matrices.get(W.data_ptr())
        if packed is None or packed.versions != [W._version for W in (*Ws, *bs)]:
            if W.numel() < SMALLEST:
                return None
            packed = (_Float32 if self.kind == "float32" else _Int8)(Ws, bs, as_matrix)
            self._matrices[W.data_ptr()] = packed
        packed.read = True
        return packed.times(x) if n_rows == 1 else packed.times_rows(x)


def packed_for(model: nn.Module, kind: Kind) -> PackedWeights | None:
    """Packed weights for a model to write with; None where float32 ones would not be faster.

    Raises: PvmlError for int8 where the model is not in float32 on a CPU, or has no large matrix.
    """
    packed = PackedWeights(kind)
    fits = [p.is_cpu and p.dtype == t.float32 for p in model.parameters()]
    if kind == "int8":
        if not all(fits):
            raise PvmlError("int8 weights are for a model in float32 on a CPU: model.float().cpu()")
        if not any(p.numel() >= SMALLEST for p in model.parameters()):
            raise PvmlError(
                f"int8 weights are for matrices of at least {SMALLEST:,} numbers, and this model "
                f"has none"
            )
    return packed if kind == "int8" or (all(fits) and packing_pays()) else None


class _Packed(ABC):
    """Matrices of one shape as tables of a few hundred columns each, one below the other.

    A table's last row holds the biases: it is taken once, the others as often as x says.
    """

    def __init__(
        self, Ws: tuple[Tensor, ...], bs: tuple[Tensor, ...], as_matrix: AsMatrix | None
    ) -> None:
        self.versions = [W._version for W in (*Ws, *bs)]
        self.Ws = [W.detach() if as_matrix is None else as_matrix(W.detach()) for W in Ws]
        self.bs = [b.detach().flatten() for b in bs]
        self.read = True
        """Since the last refresh."""
        width, self.out = self.Ws[0].shape
        per_thread = -(-self.out // t.get_num_threads())
        self.columns = min(_MOST_COLUMNS, -(-per_thread // 16) * 16)
        self.n_tables = len(Ws) * -(-self.out // self.columns)
        n_rows = self.n_tables * (width + 1)
        self.tables = self.Ws[0].new_zeros(self.n_tables, width + 1, self.columns)
        for place, original in self._pairs(self.tables):
            place.copy_(original)
        self.row_numbers, self.first_rows = t.arange(n_rows), t.arange(0, n_rows, width + 1)
        self.once = self.Ws[0].new_ones(1)

    def _pairs(self, tables: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of tables, and what of the matrices and biases each is a copy of."""
        n = 0
        for W, b in zip(self.Ws, self.bs, strict=True):
            pieces = zip(t.split(W, self.columns, dim=1), t.split(b, self.columns), strict=True)
            for columns, biases in pieces:
                yield tables[n, :-1, : len(biases)], columns
                yield tables[n, -1, : len(biases)], biases
                n += 1

    def times(self, x: Tensor) -> list[Tensor]:
        """`x W + b` with each W and b, for an x of one row, in (batch, posn, out)."""
        how_often = t.cat([x.view(-1), self.once] * self.n_tables)
        sums = self._sums_of_rows(how_often).view(len(self.Ws), 1, 1, -1)
        if sums.shape[3] != self.out:
            sums = sums[:, :, :, : self.out]
        return list(sums.unbind())

    def times_rows(self, x: Tensor) -> list[Tensor]:
        """The same for an x of several rows."""
        rows = [self.times(row) for row in x.reshape(-1, 1, 1, x.shape[-1])]
        return [t.cat(y).view(*x.shape[:2], -1) for y in zip(*rows, strict=True)]

    @abstractmethod
    def _sums_of_rows(self, how_often: Tensor) -> Tensor:
        """The sum of each table's rows, each of them so many times."""

    @abstractmethod
    def is_current(self) -> bool:
        """Whether matrices and biases are still what was copied."""


class _Float32(_Packed):
    def __init__(
        self, Ws: tuple[Tensor, ...], bs: tuple[Tensor, ...], as_matrix: AsMatrix | None
    ) -> None:
        super().__init__(Ws, bs, as_matrix)
        self.rows = self.tables.flatten(0, 1)

    def is_current(self) -> bool:
        return all(t.equal(*pair) for pair in self._pairs(self.tables))

    def _sums_of_rows(self, how_often: Tensor) -> Tensor:
        bag = t.embedding_bag
        return bag(self.rows, self.row_numbers, self.first_rows, False, 0, False, how_often)[0]


class _Int8(_Packed):
    def __init__(
        self, Ws: tuple[Tensor, ...], bs: tuple[Tensor, ...], as_matrix: AsMatrix | None
    ) -> None:
        super().__init__(Ws, bs, as_matrix)
        self.sums = self._sums()
        # biases are not rounded, but added: one large number would be the step of all its table's
        self.tables[:, -1] = 0
        # PyTorch's own format: 8-bit numbers, and behind them their scale and offset in float32
        self.tables = t.ops.quantized.embedding_bag_byte_prepack(self.tables.flatten(0, 1))

    def _sums(self) -> list[Tensor]:
        return [W.sum(dim) for W in self.Ws for dim in (0, 1)]

    def times(self, x: Tensor) -> list[Tensor]:
        return [y.add_(b) for y, b in zip(super().times(x), self.bs, strict=True)]

    def times_rows(self, x: Tensor) -> list[Tensor]:
        if x.shape[0] * x.shape[1] <= _MOST_INT8_ROWS:
            return super().times_rows(x)
        return [x @ W + b for W, b in zip(self._rounded(), self.bs, strict=True)]

    def is_current(self) -> bool:
        # every change of a number moves a sum, but for what float32 rounds off
        return all(map(t.equal, self.sums, self._sums()))

    def _sums_of_rows(self, how_often: Tensor) -> Tensor:
        bag = t.ops.quantized.embedding_bag_byte_rowwise_offsets
        sums: Tensor = bag(
            self.tables, self.row_numbers, self.first_rows, False, 0, False, how_often
        )
        return sums

    def _rounded(self) -> Sequence[Tensor]:
        """The matrices that rows are multiplied by."""
        numbers: Tensor = t.ops.quantized.embedding_bag_byte_unpack(self.tables)
        tables = numbers.view(len(self.Ws), -1, len(self.Ws[0]) + 1, self.columns)[:, :, :-1]
        return [each.transpose(0, 1).flatten(1)[:, : self.out] for each in tables]
