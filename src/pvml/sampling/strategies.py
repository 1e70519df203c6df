"""From logits to a token. Each function takes one row of logits or a batch of rows, unchanged.

A strategy is filters in a row (`filters.py`, `penalties.py`), which leave an exact distribution,
and a draw. Which tokens the model sees, and when to stop, is in `sampler.py`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.filters import (
    apply_logit_bias,
    apply_temperature,
    ban_tokens,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    require_usable,
)
from pvml.sampling.penalties import (
    apply_frequency_penalty,
    apply_repetition_penalty,
    ban_repeated_ngrams,
)

__all__ = [
    "Stage",
    "apply_frequency_penalty",
    "apply_logit_bias",
    "apply_repetition_penalty",
    "apply_temperature",
    "ban_repeated_ngrams",
    "ban_tokens",
    "greedy_search",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "next_token",
    "sample_basic",
    "sample_min_p",
    "sample_top_k",
    "sample_top_p",
    "stages",
]

Generators = t.Generator | Sequence[t.Generator] | None
"""One for all rows, one for each row, or torch's global one."""


def greedy_search(logits: Float[Tensor, "*batch d_vocab"]) -> Int[Tensor, "*batch"]:
    """The likeliest token of each row; among equals, the lowest id.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf.
    """
    require_usable(logits)
    known = logits.detach().cpu()
    if known.dtype not in (t.float32, t.float64):
        known = known.float()
    # NumPy's argmax promises the first among equals, torch's does not
    return t.from_numpy(np.asarray(known.numpy().argmax(-1))).to(logits.device)


def sample_basic(
    logits: Float[Tensor, "*batch d_vocab"], generator: Generators = None
) -> Int[Tensor, "*batch"]:
    """One token a row, each with its softmax probability, taken in float64.

    generator: a CPU generator, whatever the logits' device, or one for each row: a row then gets
    the very token that it gets alone. Unset, torch's global one.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf; for generators that
    are not as many as the rows.
    """
    require_usable(logits)
    # on the CPU, so that a seed gives one text on every device (and MPS has no float64)
    rows = logits.detach().cpu().double().reshape(-1, logits.shape[-1])
    if not (generator is None or isinstance(generator, t.Generator)):
        drawn = _drawn_by_their_own(rows, generator)
    elif len(rows):
        drawn = _drawn(rows, generator)
    else:
        drawn = t.empty(0, dtype=t.long)
    return drawn.reshape(logits.shape[:-1]).to(logits.device)


def sample_top_k(
    logits: Float[Tensor, "*batch d_vocab"], k: int, generator: Generators = None
) -> Int[Tensor, "*batch"]:
    """One token a row, drawn from its k likeliest as `keep_top_k` leaves them.

    generator: as for `sample_basic`.

    Raises: PvmlError as `keep_top_k` does.
    """
    return sample_basic(keep_top_k(logits, k), generator)


def sample_top_p(
    logits: Float[Tensor, "*batch d_vocab"], p: float, generator: Generators = None
) -> Int[Tensor, "*batch"]:
    """One token a row, drawn from the smallest set that reaches p as `keep_top_p` leaves it.

    With p 1, the very tokens of `sample_basic`. generator: as for it.

    Raises: PvmlError as `keep_top_p` does.
    """
    return sample_basic(keep_top_p(logits, p), generator)


def sample_min_p(
    logits: Float[Tensor, "*batch d_vocab"], min_p: float, generator: Generators = None
) -> Int[Tensor, "*batch"]:
    """One token a row, drawn from those that `keep_min_p` leaves.

    generator: as for `sample_basic`.

    Raises: PvmlError as `keep_min_p` does.
    """
    return sample_basic(keep_min_p(logits, min_p), generator)


class Stage(NamedTuple):
    """One step on the way from the model's logits to the distribution that is drawn from."""

    name: str
    """model, logit bias, bans, repetition penalty, ...: `stages` has them in order."""
    logits: Float[Tensor, "*batch d_vocab"]
    """What the step gave, in float64 on the CPU; its softmax is the distribution so far."""


def stages(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    args: SamplingArgs,
) -> Iterator[Stage]:
    """What happens to the logits before the draw, step by step; steps that are off are left out.

    The order: model (the logits as they came), logit bias, bans, repetition penalty, frequency
    penalty, n-gram ban, greedy (at temperature 0, and nothing after it), temperature, then one of
    top-k, top-p and min-p. input_ids: as for `next_token`.

    Raises: PvmlError as `next_token` does.
    """
    wide = logits
    for stage in _corrected(input_ids, logits, args):
        wide = stage.logits
        yield stage
    if args.temperature == 0:
        yield Stage("greedy", keep_top_k(wide, 1))
        return
    if args.temperature != 1:
        # with the largest at 0, even a tiny temperature leaves one finite logit
        wide = apply_temperature(wide - wide.amax(-1, keepdim=True), args.temperature)
        yield Stage("temperature", wide)
    if args.top_k:
        yield Stage("top-k", keep_top_k(wide, args.top_k))
    elif args.top_p:
        yield Stage("top-p", keep_top_p(wide, args.top_p))
    elif args.min_p:
        yield Stage("min-p", keep_min_p(wide, args.min_p))


def next_token(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    args: SamplingArgs,
    generator: Generators = None,
) -> Int[Tensor, "*batch"]:
    """The token that follows each sequence: greedy at temperature 0, drawn otherwise.

    What comes before the draw, and in which order: see `stages`. input_ids: the whole sequences so
    far, also what the model no longer sees; ids below 0 are padding. generator: as for
    `sample_basic`.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf, also after a ban;
    for an id outside the vocabulary.
    """
    if args.temperature == 0:
        if not _corrects(args):
            return greedy_search(logits)
        *_, last = _corrected(input_ids, logits, args)
        return greedy_search(last.logits).to(logits.device)
    *_, last = stages(input_ids, logits, args)
    return sample_basic(last.logits, generator).to(logits.device)


def _corrected(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    args: SamplingArgs,
) -> Iterator[Stage]:
    """The stages that greedy search has, too: the model's own, and what corrects it."""
    require_usable(logits)
    wide = logits.detach().cpu().double()
    yield Stage("model", wide)
    for stage in _corrections(input_ids.cpu(), wide, args):
        require_usable(stage.logits, f" after the {stage.name}")
        yield stage


def _corrects(args: SamplingArgs) -> bool:
    """Whether `_corrections` has anything to do."""
    given = args.logit_bias or args.banned_tokens or args.frequency_penalty
    return bool(given or args.repetition_penalty != 1 or args.no_repeat_ngram_size)


def _corrections(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    args: SamplingArgs,
) -> Iterator[Stage]:
    """What is done to the raw logits, each step to what the last one gave; also before greedy."""
    if args.logit_bias:
        logits = apply_logit_bias(logits, dict(args.logit_bias))
        yield Stage("logit bias", logits)
    if args.banned_tokens:
        logits = ban_tokens(logits, args.banned_tokens)
        yield Stage("bans", logits)
    if args.repetition_penalty != 1:
        logits = apply_repetition_penalty(input_ids, logits, args.repetition_penalty)
        yield Stage("repetition penalty", logits)
    if args.frequency_penalty:
        logits = apply_frequency_penalty(input_ids, logits, args.frequency_penalty)
        yield Stage("frequency penalty", logits)
    if args.no_repeat_ngram_size:
        logits = ban_repeated_ngrams(input_ids, logits, args.no_repeat_ngram_size)
        yield Stage("n-gram ban", logits)


def _drawn(
    rows: Float[Tensor, "row d_vocab"], generator: t.Generator | None
) -> Int[Tensor, " row"]:
    possible, ids = _possible(rows)
    place = t.multinomial(possible.softmax(-1), 1, generator=generator)
    return ids.gather(-1, place)[:, 0]


def _drawn_by_their_own(
    rows: Float[Tensor, "row d_vocab"], generators: Sequence[t.Generator]
) -> Int[Tensor, " row"]:
    if len(generators) != len(rows):
        raise PvmlError(
            f"give one generator, or one for each row: got {len(generators)} for {len(rows)} rows"
        )
    if not len(rows):
        return t.empty(0, dtype=t.long)
    # each by itself: what a row's generator gives must not depend on the other rows
    pairs = zip(rows, generators, strict=True)
    return t.cat([_drawn(row[None], generator) for row, generator in pairs])


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


if __name__ == "__main__":
    from pvml.demos.strategies import main

    main()
