"""What looks back at the sequence: tokens that occurred are made less likely, or ruled out.

`input_ids` holds a row of ids for each row of logits: the whole sequence so far, also what the
model no longer sees. Rows of different length are padded with ids below 0, anywhere; padding is
passed over. BOS counts like any other token, and has the id of end-of-text: after it the end is a
token that has occurred. Each function takes one row or a batch, leaves its input unchanged and
gives logits; what was at -inf stays there.
"""

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.plain import is_finite, is_whole, plain
from pvml.sampling.filters import require_usable, row_name


def apply_frequency_penalty(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    penalty: float,
) -> Float[Tensor, "*batch d_vocab"]:
    """Logits less `penalty` for each time that the token occurs in its row of input_ids.

    penalty: nats for each occurrence; below 0, it asks for repetition. Everything counts: BOS takes
    one penalty off end-of-text. Source: the OpenAI API's frequency_penalty, there for new tokens
    only.

    Raises: PvmlError for a penalty that is not finite; for ids and logits of different batches; for
    an id outside the vocabulary, naming the row; naming a row of logits that holds NaN or +inf, or
    nothing but -inf.
    """
    require_usable(logits)
    if not is_finite(penalty := plain(penalty)):
        raise PvmlError(f"a frequency penalty must be finite, got {penalty!r}")
    counts = _counts(input_ids, logits)
    # elsewhere a penalty beyond the dtype would make 0 times infinity of it
    lower = logits - float(penalty) * counts.to(logits.dtype)
    return t.where(counts > 0, lower, logits)


def apply_repetition_penalty(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    penalty: float,
) -> Float[Tensor, "*batch d_vocab"]:
    """Logits of the tokens that occur in input_ids divided by `penalty`, or times it below 0.

    penalty: 1 changes nothing, above 1 repetition is less likely, below 1 more. How often a token
    occurs does not matter; after BOS the end occurs, so that a large penalty lets few texts end.
    Source: Keskar et al. 2019 (CTRL), arXiv:1909.05858, section 4.1, which divides whatever the
    sign; Hugging Face multiplies a logit below 0, and so does this.

    Raises: PvmlError for a penalty that is not above 0 and finite; for ids and logits of different
    batches; for an id outside the vocabulary, naming the row; naming a row of logits that holds NaN
    or +inf, or nothing but -inf.
    """
    require_usable(logits)
    penalty = plain(penalty)
    if not is_finite(penalty, 0.0) or not penalty:
        raise PvmlError(f"a repetition penalty must be above 0 and finite, got {penalty!r}")
    penalty = float(penalty)
    occurs = _counts(input_ids, logits) > 0
    return t.where(occurs, t.where(logits < 0, logits * penalty, logits / penalty), logits)


def ban_repeated_ngrams(
    input_ids: Int[Tensor, "*batch posn"], logits: Float[Tensor, "*batch d_vocab"], n: int
) -> Float[Tensor, "*batch d_vocab"]:
    """Logits with each token at -inf that would repeat n tokens in a row of its sequence.

    n: with 1, no token comes twice, so that after BOS end-of-text never comes; 0 bans nothing. A
    sequence of fewer than n tokens has nothing to repeat. A row can end up with nothing but -inf.
    Source: Paulus et al. 2017, arXiv:1705.04304, section 2.5, with n = 3 in beam search.

    Raises: PvmlError for an n below 0; for ids and logits of different batches; for an id outside
    the vocabulary, naming the row.
    """
    if not is_whole(n := plain(n), 0):
        raise PvmlError(f"n must be a whole number of at least 0 (0 bans nothing), got {n!r}")
    _require_matching(input_ids, logits)
    banned = logits.clone(memory_format=t.contiguous_format)
    n_rows, posn = input_ids.shape[:-1].numel(), input_ids.shape[-1]
    if not 0 < n <= posn:
        return banned
    ids = _padding_last(input_ids.reshape(n_rows, posn))
    tails = (ids >= 0).sum(-1, keepdim=True) - (n - 1) + t.arange(n - 1, device=ids.device)
    begun = ids.gather(-1, tails.clamp(min=0))
    ngrams = ids.unfold(-1, n, 1)
    found = (ngrams[..., :-1] == begun[:, None]).all(-1) & (ngrams[..., -1] >= 0)
    rows, _ = found.nonzero(as_tuple=True)
    flat = banned.view(n_rows, logits.shape[-1])
    flat[rows.to(flat.device), ngrams[..., -1][found].to(flat.device)] = -t.inf
    return banned


def _padding_last(ids: Int[Tensor, "row posn"]) -> Int[Tensor, "row posn"]:
    return ids.gather(-1, (ids < 0).long().argsort(dim=-1, stable=True))


def _counts(
    input_ids: Int[Tensor, "*batch posn"], logits: Float[Tensor, "*batch d_vocab"]
) -> Int[Tensor, "*batch d_vocab"]:
    """How often each token of the vocabulary occurs in each row."""
    _require_matching(input_ids, logits)
    ids = input_ids.to(logits.device, t.long)
    counts = t.zeros_like(logits, dtype=t.long)
    return counts.scatter_add_(-1, ids.clamp(min=0), (ids >= 0).long())


def _require_matching(
    input_ids: Int[Tensor, "*batch posn"], logits: Float[Tensor, "*batch d_vocab"]
) -> None:
    if input_ids.dtype == t.bool or input_ids.is_floating_point() or input_ids.is_complex():
        raise PvmlError(f"input_ids must be whole numbers, got {input_ids.dtype}")
    if input_ids.shape[:-1] != logits.shape[:-1]:
        raise PvmlError(
            f"input_ids need a row for each row of logits: got the shapes "
            f"{tuple(input_ids.shape)} and {tuple(logits.shape)}"
        )
    size = logits.shape[-1]
    beyond = input_ids >= size
    if beyond.any():
        raise PvmlError(
            f"{row_name(beyond.any(-1))} of input_ids holds token id {int(input_ids[beyond][0])}, "
            f"outside the vocabulary: ids run from 0 to {size - 1}, and below 0 is padding"
        )
