"""Where the k largest of many numbers are, of equal ones the first: exact, without sorting them."""

import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

_FEW = 8


def first_largest(x: Float[Tensor, "n m"], k: int) -> Int[Tensor, "n k"]:
    """Where each row's k largest are, the largest first, of equal ones the lower places first."""
    n, m = x.shape
    # `topk` is quick for few numbers, and for so many that it stops sorting them all
    if 2 * _FEW * k < m < 64 * (k + 1):
        padded = F.pad(x, (0, -m % _FEW), value=-t.inf).contiguous()
        return largest_in_groups(padded, padded.view(n, -1, _FEW).amax(-1), k)
    found = x.topk(min(k + 1, m), dim=-1)
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
    equal ones those that come first: each group before it holds an entry before this one.
    """
    n, n_groups = maxima.shape
    size = x.shape[1] // n_groups
    groups = first_largest(maxima, min(k, n_groups)).sort(-1).values
    of_all = groups + n_groups * t.arange(n, device=x.device)[:, None]
    candidates = x.view(-1, size).index_select(0, of_all.flatten()).view(n, -1)
    places = first_largest(candidates, k)
    return groups.gather(1, places // size) * size + places % size
