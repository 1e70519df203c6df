"""From logits to a token. Each function takes one row of logits or a batch of rows, unchanged.

Which tokens the model sees, and when to stop, is in `sampler.py`.
"""

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs

_SLACK = 1e-6
"""How far below p a sum may stay and still reach it: rounding must not add a token."""
_MOSTLY_ENOUGH = 1024
"""Tokens among which the set of top-p is looked for first."""


def greedy_search(logits: Float[Tensor, "*batch d_vocab"]) -> Int[Tensor, "*batch"]:
    """The likeliest token of each row; among equals, the lowest id.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf.
    """
    _require_usable(logits)
    best = logits == logits.amax(-1, keepdim=True)
    ids = t.arange(logits.shape[-1], device=logits.device)
    # argmax promises no order among equals
    return t.where(best, ids, logits.shape[-1]).amin(-1)


def apply_temperature(
    logits: Float[Tensor, "*batch d_vocab"], temperature: float
) -> Float[Tensor, "*batch d_vocab"]:
    """Logits divided by a temperature above 0: differences grow below 1 and shrink above it.

    Raises: PvmlError for a temperature of 0 or less; `greedy_search` is the limit at 0.
    """
    if not temperature > 0:
        raise PvmlError(
            f"temperature must be above 0 to divide by, got {temperature}: use greedy_search for 0"
        )
    return logits / temperature


def keep_top_k(logits: Float[Tensor, "*batch d_vocab"], k: int) -> Float[Tensor, "*batch d_vocab"]:
    """Each row's k largest logits as they are, and the others at -inf.

    Exactly k stay: among equals, the lowest ids. k: 0, or no less than d_vocab, keeps all. What was
    at -inf stays there, so fewer than k tokens can be possible. The softmax of the result is the
    exact distribution of `sample_top_k`.

    Raises: PvmlError for a k below 0, or naming a row that holds NaN or +inf, or nothing but -inf.
    """
    _require_usable(logits)
    if k < 0:
        raise PvmlError(f"k must be a whole number of at least 0 (0 keeps all), got {k}")
    if not 0 < k < logits.shape[-1]:
        return logits.clone()
    kth = logits.topk(k).values[..., -1:]
    return _keep_best(logits, kth, t.full_like(kth, k, dtype=t.long))


def keep_top_p(
    logits: Float[Tensor, "*batch d_vocab"], p: float
) -> Float[Tensor, "*batch d_vocab"]:
    """Each row's smallest set of tokens whose probability reaches p, and the others at -inf.

    The likeliest come first, among equals the lowest ids. A set reaches p when its sum, in float64,
    is at least p - 1e-6; it has one token at least. p: 1 keeps all, and so does 0. The softmax of
    the result is the exact distribution of `sample_top_p`. Source: Holtzman et al. 2019,
    arXiv:1904.09751, section 3.1.

    Raises: PvmlError for a p that is no probability, or naming a row that holds NaN or +inf, or
    nothing but -inf.
    """
    _require_usable(logits)
    if not 0 <= p <= 1:
        raise PvmlError(f"p must be a probability from 0 to 1 (both keep all), got {p}")
    if p in (0, 1):
        return logits.clone()
    wide = logits.detach().cpu().double()
    probs = wide.softmax(-1)
    # the set is mostly small, and finding the few best is much faster than sorting them all
    for width in (min(_MOSTLY_ENOUGH, wide.shape[-1]), wide.shape[-1]):
        best, ids = wide.topk(width)
        reached = probs.gather(-1, ids).cumsum(-1) >= p - _SLACK
        if reached[..., -1].all():
            break
    n_kept = (~reached).sum(-1, keepdim=True) + 1
    last = best.gather(-1, n_kept - 1)
    return _keep_best(logits, last.to(logits), n_kept.to(logits.device))


def sample_basic(
    logits: Float[Tensor, "*batch d_vocab"], generator: t.Generator | None = None
) -> Int[Tensor, "*batch"]:
    """One token a row, each with its softmax probability, taken in float64.

    generator: a CPU generator, whatever the logits' device; unset, torch's global one.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf.
    """
    _require_usable(logits)
    # on the CPU, so that a seed gives one text on every device (and MPS has no float64)
    rows = logits.detach().cpu().double().reshape(-1, logits.shape[-1])
    if not len(rows):
        return logits.new_empty(logits.shape[:-1], dtype=t.long)
    possible, ids = _possible(rows)
    drawn = t.multinomial(possible.softmax(-1), 1, generator=generator)
    return ids.gather(-1, drawn).reshape(logits.shape[:-1]).to(logits.device)


def sample_top_k(
    logits: Float[Tensor, "*batch d_vocab"], k: int, generator: t.Generator | None = None
) -> Int[Tensor, "*batch"]:
    """One token a row, drawn from its k likeliest as `keep_top_k` leaves them.

    generator: as for `sample_basic`.

    Raises: PvmlError as `keep_top_k` does.
    """
    return sample_basic(keep_top_k(logits, k), generator)


def sample_top_p(
    logits: Float[Tensor, "*batch d_vocab"], p: float, generator: t.Generator | None = None
) -> Int[Tensor, "*batch"]:
    """One token a row, drawn from the smallest set that reaches p as `keep_top_p` leaves it.

    With p 1, the very tokens of `sample_basic`. generator: as for it.

    Raises: PvmlError as `keep_top_p` does.
    """
    return sample_basic(keep_top_p(logits, p), generator)


def next_token(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    args: SamplingArgs,
    generator: t.Generator | None = None,
) -> Int[Tensor, "*batch"]:
    """The token that follows each sequence: greedy at temperature 0, drawn otherwise.

    The order is temperature, then top-k or top-p, then the draw. input_ids: the whole sequences so
    far, also what the model no longer sees; no strategy here looks back at them. generator: as for
    `sample_basic`.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf.
    """
    if args.temperature == 0:
        return greedy_search(logits)
    _require_usable(logits)
    wide = logits.detach().cpu().double()
    # with the largest at 0, even a tiny temperature leaves one finite logit
    below_best = wide - wide.amax(-1, keepdim=True)
    cooled = apply_temperature(below_best, args.temperature)
    if args.top_k:
        drawn = sample_top_k(cooled, args.top_k, generator)
    elif args.top_p:
        drawn = sample_top_p(cooled, args.top_p, generator)
    else:
        drawn = sample_basic(cooled, generator)
    return drawn.to(logits.device)


def _keep_best(
    logits: Float[Tensor, "*batch d_vocab"],
    last: Float[Tensor, "*batch 1"],
    n: Int[Tensor, "*batch 1"],
) -> Float[Tensor, "*batch d_vocab"]:
    """Each row's n best, others at -inf; last: the n-th largest value, which several may share."""
    better, equal = logits > last, logits == last
    room = n - better.sum(-1, keepdim=True)
    return logits.masked_fill(~(better | (equal & (equal.cumsum(-1) <= room))), -t.inf)


def _possible(
    rows: Float[Tensor, "row d_vocab"],
) -> tuple[Float[Tensor, "row n"], Int[Tensor, "row n"]]:
    """The logits above -inf and their ids, in order of ids; short rows are filled with -inf.

    A draw costs a random number for each entry, and after a filter few are left.
    """
    found = ~rows.isneginf()
    n = int(found.sum(-1).max())
    if n == rows.shape[-1]:
        return rows, t.arange(n).expand_as(rows)
    row, token = found.nonzero(as_tuple=True)
    place = (found.cumsum(-1) - 1)[row, token]
    possible = rows.new_full((len(rows), n), -t.inf)
    ids = t.zeros(len(rows), n, dtype=t.long)
    possible[row, place], ids[row, place] = rows[row, token], token
    return possible, ids


def _require_usable(logits: Float[Tensor, "*batch d_vocab"]) -> None:
    if not logits.shape[-1]:
        raise PvmlError(f"there is no token to choose: the logits' shape is {tuple(logits.shape)}")
    faults = {
        "holds NaN": logits.isnan().any(-1),
        "holds +inf": logits.isposinf().any(-1),
        "holds nothing but -inf, so no token is possible": logits.isneginf().all(-1),
    }
    for fault, found in faults.items():
        if found.any():
            where = found.nonzero()[0].tolist()
            row = f"row {where[0] if len(where) == 1 else tuple(where)}" if where else "row 0"
            raise PvmlError(f"{row} of the logits {fault}")
