"""Where the k largest of many numbers are, of equal ones the first: exact, without sorting them."""

import torch as t
from jaxtyping import Float, Int
from torch import Tensor


def first_largest(x: Float[Tensor, "n m"], k: int) -> Int[Tensor, "n k"]:
    """Where each row's k largest are, the largest first, of equal ones the lower places first."""
    found = x.topk(min(k + 1, x.shape[1]), dim=-1)
    places = found.indices[:, :k]
    # which of equal ones `topk` takes, and in what order, is its own affair
    tied = (found.values[:, 1:] == found.values[:, :-1]).any(-1)
    if tied.any():
        places[tied] = x[tied].argsort(dim=-1, descending=True, stable=True)[:, :k]
    return places


def largest_in_groups(
    x: Float[Tensor, "n m"], maxima: Float[Tensor, "n n_groups"], k: int
) -> Int[Tensor, "n k"]:
    """The same of contiguous rows whose maxima over groups of neighbours are known already.

    An entry is among the k largest only if its group is among the k with the largest maxima, of
    equal ones those that come first: each group before it holds an entry before this one. Nor are
    there fewer than k entries as large as the least of these maxima.
    """
    n, n_groups = maxima.shape
    size = x.shape[1] // n_groups
    groups = first_largest(maxima, min(k, n_groups)).sort(-1).values
    of_all = groups + n_groups * t.arange(n, device=x.device)[:, None]
    candidates = x.view(-1, size).index_select(0, of_all.flatten()).view(n, -1)
    if k < n_groups:
        least = maxima.gather(1, groups).amin(-1, keepdim=True)
        places = _largest_of_few(candidates, candidates >= least, k)
    else:
        places = first_largest(candidates, k)
    return groups.gather(1, places // size) * size + places % size


def _largest_of_few(x: Float[Tensor, "n m"], few: Tensor, k: int) -> Int[Tensor, "n k"]:
    """The same among those that are marked: at least k in each row, and not many more."""
    rows, columns = few.nonzero().unbind(1)
    return largest_of_some(rows, columns, x[rows, columns], len(x), k)[0]


def largest_of_some(
    rows: Int[Tensor, " some"],
    columns: Int[Tensor, " some"],
    values: Float[Tensor, " some"],
    n: int,
    k: int,
) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]]:
    """The columns and values of each row's k largest among these: at least k in each of n rows.

    They come in the order of rows and columns.
    """
    counts = rows.bincount(minlength=n)
    nth = t.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    among = values.new_full((n, int(counts.max())), -t.inf)
    among[rows, nth] = values
    places = columns.new_zeros(among.shape)
    places[rows, nth] = columns
    best = first_largest(among, k)
    return places.gather(1, best), among.gather(1, best)
