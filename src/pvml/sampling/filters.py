"""What may change a row of logits by itself. Each takes one row or a batch of rows, unchanged.

The softmax of what a filter gives is the exact distribution that is left: only the draw, in
`strategies.py`, is random. What looks back at the sequence is in `penalties.py`.
"""

from collections.abc import Mapping, Sequence

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.plain import is_finite, is_whole, plain

_SLACK = 1e-6
"""How far below p a sum may stay and still reach it: rounding must not add or cut a token."""
_MOSTLY_ENOUGH = 1024
"""Tokens among which the set of top-p is looked for first."""


def apply_logit_bias(
    logits: Float[Tensor, "*batch d_vocab"], bias: Mapping[int, float]
) -> Float[Tensor, "*batch d_vocab"]:
    """Logits with a number added to some tokens'; what was at -inf stays there.

    bias: from ids to what is added (nats), negative to make a token less likely.

    Raises: PvmlError for an id outside the vocabulary, or a bias that is not finite; naming a row
    that holds NaN or +inf, or nothing but -inf.
    """
    require_usable(logits)
    for token, value in bias.items():
        if not is_finite(plain(value)):
            raise PvmlError(
                f"the bias of token {token} must be finite, got {value}: ban_tokens rules one out"
            )
    biased = logits.clone()
    ids = known_ids(list(bias), logits)
    biased[..., ids] += t.tensor(list(bias.values()), dtype=logits.dtype, device=logits.device)
    return biased


def ban_tokens(
    logits: Float[Tensor, "*batch d_vocab"], banned: Sequence[int]
) -> Float[Tensor, "*batch d_vocab"]:
    """Logits with those of the banned ids at -inf, the others as they are.

    Raises: PvmlError for an id outside the vocabulary; naming a row that holds NaN or +inf, or
    nothing but -inf.
    """
    require_usable(logits)
    return logits.index_fill(-1, known_ids(banned, logits), -t.inf)


def apply_temperature(
    logits: Float[Tensor, "*batch d_vocab"], temperature: float
) -> Float[Tensor, "*batch d_vocab"]:
    """Logits divided by a temperature above 0: differences grow below 1 and shrink above it.

    A tiny one makes them larger than the dtype holds: take each row's largest off first, as
    `next_token` does.

    Raises: PvmlError for a temperature that is not above 0 and finite (`greedy_search` is the limit
    at 0); naming a row that holds NaN or +inf, or nothing but -inf.
    """
    require_usable(logits)
    if not is_finite(temperature := plain(temperature), 0.0) or not temperature:
        raise PvmlError(
            f"temperature must be above 0 and finite to divide by, got {temperature!r}: use "
            f"greedy_search for 0"
        )
    return logits / temperature


def keep_top_k(logits: Float[Tensor, "*batch d_vocab"], k: int) -> Float[Tensor, "*batch d_vocab"]:
    """Each row's k largest logits as they are, and the others at -inf.

    Exactly k stay: among equals, the lowest ids. k: 0, or no less than d_vocab, keeps all. What was
    at -inf stays there, so fewer than k tokens can be possible. The softmax of the result is the
    exact distribution of `sample_top_k`.

    Raises: PvmlError for a k below 0, or naming a row that holds NaN or +inf, or nothing but -inf.
    """
    require_usable(logits)
    if not is_whole(k := plain(k), 0):
        raise PvmlError(f"k must be a whole number of at least 0 (0 keeps all), got {k!r}")
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
    require_usable(logits)
    if not is_finite(p := plain(p), 0.0, 1.0):
        raise PvmlError(f"p must be a probability from 0 to 1 (both keep all), got {p!r}")
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


def keep_min_p(
    logits: Float[Tensor, "*batch d_vocab"], min_p: float
) -> Float[Tensor, "*batch d_vocab"]:
    """Each row's tokens at least min_p times as likely as its likeliest; the others at -inf.

    A token that falls short by no more than a millionth of that stays, and so do all equals. min_p:
    0 keeps all, 1 only the likeliest. The softmax of the result is the exact distribution of
    `sample_min_p`. Source: Nguyen et al. 2024, arXiv:2407.01082, section 3.

    Raises: PvmlError for a min_p that is no share, or naming a row that holds NaN or +inf, or
    nothing but -inf.
    """
    require_usable(logits)
    if not is_finite(min_p := plain(min_p), 0.0, 1.0):
        raise PvmlError(f"min_p must be a share from 0 to 1 (0 keeps all), got {min_p!r}")
    wide = logits.detach().cpu().double()
    share = (wide - wide.amax(-1, keepdim=True)).exp()
    return logits.masked_fill((share < min_p * (1 - _SLACK)).to(logits.device), -t.inf)


def _keep_best(
    logits: Float[Tensor, "*batch d_vocab"],
    last: Float[Tensor, "*batch 1"],
    n: Int[Tensor, "*batch 1"],
) -> Float[Tensor, "*batch d_vocab"]:
    """Each row's n best, others at -inf; last: the n-th largest value, which several may share."""
    better, equal = logits > last, logits == last
    room = n - better.sum(-1, keepdim=True)
    return logits.masked_fill(~(better | (equal & (equal.cumsum(-1) <= room))), -t.inf)


def require_usable(logits: Float[Tensor, "*batch d_vocab"], where: str = "") -> None:
    """Nothing, if every row has a distribution: no NaN, no +inf, and something above -inf.

    where: what messages add to "the logits", such as " after top-k".

    Raises: PvmlError naming the row; for what is no row of floating-point numbers.
    """
    if not isinstance(logits, Tensor):
        raise PvmlError(f"logits must be a tensor, got {type(logits).__name__} {logits!r:.60}")
    if not logits.ndim or not logits.is_floating_point():
        raise PvmlError(
            f"logits must be floating-point numbers in rows of d_vocab, got {logits.dtype} of "
            f"shape {tuple(logits.shape)}"
        )
    if not logits.shape[-1]:
        raise PvmlError(f"there is no token to choose: the logits' shape is {tuple(logits.shape)}")
    # the largest of a row is NaN, +inf or -inf if the row has any of these faults
    if bool(logits.amax(-1).isfinite().all()):
        return
    faults = {
        "holds NaN": logits.isnan().any(-1),
        "holds +inf": logits.isposinf().any(-1),
        "holds nothing but -inf, so no token is possible": logits.isneginf().all(-1),
    }
    for fault, found in faults.items():
        if found.any():
            raise PvmlError(f"{row_name(found)} of the logits{where} {fault}")


def row_name(found: Tensor) -> str:
    """The first row where `found` is true, in words."""
    where = found.nonzero()[0].tolist()
    return f"row {where[0] if len(where) == 1 else tuple(where)}" if where else "row 0"


def known_ids(ids: Sequence[int], logits: Float[Tensor, "*batch d_vocab"]) -> Int[Tensor, " ids"]:
    """The ids as a tensor beside the logits.

    Raises: PvmlError naming the first that is no id of the vocabulary.
    """
    size, known = logits.shape[-1], [plain(token) for token in ids]
    for token in known:
        if not is_whole(token, 0, size - 1):
            raise PvmlError(
                f"token id {token!r} is outside the vocabulary: ids are whole numbers from 0 to "
                f"{size - 1}"
            )
    return t.tensor(known, dtype=t.long, device=logits.device)
