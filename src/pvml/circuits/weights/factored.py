"""A linear map as two thin factors, `left @ right`: a head's circuit without its huge matrix.

A QK or OV circuit over a vocabulary is a matrix of d_vocab x d_vocab (10 GB for GPT-2) whose rank
is at most d_head. What is asked of it comes from the factors and from matrices of rank x rank.
Source of the eigenvalues' short cut (the nonzero ones of A B are those of B A): Horn, Johnson,
"Matrix Analysis", theorem 1.3.22.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch as t
from jaxtyping import Complex, Float, Int
from torch import Tensor

from pvml.circuits.held import require_no_overflow
from pvml.errors import PvmlError
from pvml.finite import all_finite

Ids = Int[Tensor, " n"] | Sequence[int] | range

DENSE_BYTES = 1 << 28
"""The largest matrix that `dense` writes out (bytes)."""


@dataclass(frozen=True, eq=False, repr=False)
class FactoredMap:
    """The map `left @ right`, which is never multiplied out. Row vectors: x goes to `x @ map`.

    Raises: PvmlError for factors that do not fit together, or that hold NaN or infinity.
    """

    left: Float[Tensor, "rows rank"]
    right: Float[Tensor, "rank columns"]

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            factor = getattr(self, name)
            if not isinstance(factor, Tensor) or factor.ndim != 2:
                given = tuple(factor.shape) if isinstance(factor, Tensor) else type(factor).__name__
                raise PvmlError(f"{name} must be a matrix (a tensor with 2 axes), got {given}")
        if self.left.shape[1] != self.right.shape[0]:
            raise PvmlError(
                f"left {tuple(self.left.shape)} and right {tuple(self.right.shape)} do not fit "
                f"together: left's columns must be as many as right's rows"
            )
        for what in ("dtype", "device"):
            one, other = getattr(self.left, what), getattr(self.right, what)
            if one != other:
                raise PvmlError(
                    f"left's {what} is {one} and right's is {other}: give both the same"
                )
        for name in ("left", "right"):
            factor = getattr(self, name)
            if not all_finite(factor):
                at = tuple((~factor.isfinite()).nonzero()[0].tolist())
                raise PvmlError(
                    f"{name} holds {factor[at]:g} at {at}: a map's "
                    f"factors must be finite. Are the weights that they come from, and are "
                    f"these not too large to be multiplied?"
                )

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<map {rows:,} x {columns:,} of rank {self.rank:,} at most, {self.dtype}>"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        return self.left.shape[0], self.right.shape[1]

    @property
    def rank(self) -> int:
        """What its rank is at most: the width between the factors."""
        return self.left.shape[1]

    @property
    def dtype(self) -> t.dtype:
        return self.left.dtype

    @property
    def device(self) -> t.device:
        return self.left.device

    @property
    def T(self) -> "FactoredMap":
        """The transposed map."""
        return FactoredMap(self.right.T, self.left.T)

    def double(self) -> "FactoredMap":
        """The same map with factors in float64."""
        return FactoredMap(self.left.double(), self.right.double())

    def __matmul__(self, other: Any) -> "FactoredMap":
        """This map and then the other, a map or a matrix; the narrower width is kept.

        Raises: PvmlError where columns and rows differ.
        """
        matrix = other.left if isinstance(other, FactoredMap) else other
        if not isinstance(matrix, Tensor) or matrix.ndim != 2:
            raise PvmlError(f"a map is composed with a map or a matrix, got {matrix!r:.60}")
        if self.shape[1] != matrix.shape[0]:
            raise PvmlError(
                f"a map of shape {self.shape} ends in {self.shape[1]:,} numbers and what follows "
                f"begins with {matrix.shape[0]:,}"
            )
        if not isinstance(other, FactoredMap):
            return FactoredMap(self.left, self.right @ other)
        between = self.right @ other.left
        if self.rank <= other.rank:
            return FactoredMap(self.left, between @ other.right)
        return FactoredMap(self.left @ between, other.right)

    def __rmatmul__(self, matrix: Tensor) -> "FactoredMap":
        """A matrix and then this map.

        Raises: PvmlError where columns and rows differ.
        """
        return (self.T @ matrix.T).T

    def rows(self, ids: Ids) -> Float[Tensor, "n columns"]:
        """Some rows, written out.

        Raises: PvmlError for a row that is not there.
        """
        return _finite(self.left[self._checked(ids, 0)] @ self.right)

    def columns(self, ids: Ids) -> Float[Tensor, "rows n"]:
        """Some columns, written out.

        Raises: PvmlError for a column that is not there.
        """
        return _finite(self.left @ self.right[:, self._checked(ids, 1)])

    def entries(self, rows: Ids, columns: Ids) -> Float[Tensor, " n"]:
        """The entries at (rows[0], columns[0]), (rows[1], columns[1]), ...

        Raises: PvmlError for a place that is not there, or lists of different lengths.
        """
        at, to = self._checked(rows, 0), self._checked(columns, 1)
        if at.shape != to.shape:
            raise PvmlError(f"{len(at):,} rows and {len(to):,} columns make no pairs")
        return _finite((self.left[at] * self.right[:, to].T).sum(-1))

    def diagonal(self) -> Float[Tensor, " n"]:
        """The entries at (0, 0), (1, 1), ..."""
        n = min(self.shape)
        return _finite((self.left[:n] * self.right[:, :n].T).sum(-1))

    def dense(self, most_bytes: int = DENSE_BYTES) -> Float[Tensor, "rows columns"]:
        """The whole matrix.

        Raises: PvmlError if it has more than most_bytes.
        """
        size = self.shape[0] * self.shape[1] * self.left.element_size()
        if size > most_bytes:
            raise PvmlError(
                f"the whole matrix of {self.shape[0]:,} x {self.shape[1]:,} would take "
                f"{size / 2**30:,.2f} GiB, over the limit of {most_bytes / 2**30:,.2f}: ask for "
                f"rows, columns or entries, or raise most_bytes"
            )
        return _finite(self.left @ self.right)

    def trace(self) -> float:
        """The sum of the diagonal, which is also that of the eigenvalues.

        Raises: PvmlError if the map is not square.
        """
        self._require_square("a trace")
        return float(_finite((self.left.double() * self.right.double().T).sum()))

    def eigenvalues(self) -> Complex[Tensor, " rank"]:
        """Its eigenvalues, the largest absolute value first; all further ones are 0.

        As many as `rank`, or as the map has rows if these are fewer. In float64, from the
        rank x rank product of the factors the other way round.

        Raises: PvmlError if the map is not square.
        """
        self._require_square("eigenvalues")
        left, right = self.left.double(), self.right.double()
        small = right @ left if self.rank <= self.shape[0] else left @ right
        values: Tensor = t.linalg.eigvals(_finite(small))
        return values[values.abs().argsort(descending=True, stable=True)]

    def svd(
        self,
    ) -> tuple[Float[Tensor, "rows k"], Float[Tensor, " k"], Float[Tensor, "k columns"]]:
        """U, S and Vh with `map = U diag(S) Vh`: singular vectors and values, the largest first.

        k is the least of rank, rows and columns; all further singular values are 0. In float64,
        from a QR decomposition of each factor.
        """
        q_left, r_left = t.linalg.qr(self.left.double())
        q_right, r_right = t.linalg.qr(self.right.double().T)
        u, s, vh = t.linalg.svd(_finite(r_left @ r_right.T), full_matrices=False)
        return q_left @ u, s, vh @ q_right.T

    def singular_values(self) -> Float[Tensor, " k"]:
        """The singular values alone, the largest first (float64)."""
        r_left = t.linalg.qr(self.left.double(), mode="r").R
        r_right = t.linalg.qr(self.right.double().T, mode="r").R
        values: Tensor = t.linalg.svdvals(_finite(r_left @ r_right.T))
        return values

    def norm(self) -> float:
        """The Frobenius norm: the root of the sum of all squared entries."""
        return float(t.linalg.vector_norm(self.singular_values()))

    def _require_square(self, what: str) -> None:
        if self.shape[0] != self.shape[1]:
            raise PvmlError(f"only a square map has {what}, and this one is {self.shape}")

    def _checked(self, ids: Ids, axis: int) -> Int[Tensor, " n"]:
        what, size = ("row", "column")[axis], self.shape[axis]
        given = ids if isinstance(ids, Tensor) else t.tensor(list(ids))
        if given.numel() and (given.is_floating_point() or given.dtype == t.bool):
            raise PvmlError(f"{what} ids must be whole numbers, got {given.flatten()[0].item()}")
        given = given.long().to(self.device)
        if given.numel() and not 0 <= int(given.min()) <= int(given.max()) < size:
            raise PvmlError(
                f"{what} ids run from 0 to {size - 1:,}, got "
                f"{int(given.min()):,} to {int(given.max()):,}"
            )
        return given


def _finite(x: Tensor) -> Tensor:
    """What finite factors multiply to, if that is finite, too."""
    require_no_overflow(x, "this map")
    return x
