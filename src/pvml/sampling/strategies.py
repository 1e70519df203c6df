"""From logits to a token. Each function takes one row of logits or a batch of rows, unchanged.

Which tokens the model sees, and when to stop, is in `sampler.py`.
"""

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs


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


def sample_basic(
    logits: Float[Tensor, "*batch d_vocab"], generator: t.Generator | None = None
) -> Int[Tensor, "*batch"]:
    """One token a row, each with its softmax probability, taken in float64.

    generator: a CPU generator, whatever the logits' device; unset, torch's global one.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf.
    """
    _require_usable(logits)
    # on the CPU, so that a seed gives one text on every device (and MPS has no float64)
    rows = logits.detach().cpu().double().softmax(-1).reshape(-1, logits.shape[-1])
    if not len(rows):
        return logits.new_empty(logits.shape[:-1], dtype=t.long)
    drawn = t.multinomial(rows, 1, generator=generator)
    return drawn.reshape(logits.shape[:-1]).to(logits.device)


def next_token(
    input_ids: Int[Tensor, "*batch posn"],
    logits: Float[Tensor, "*batch d_vocab"],
    args: SamplingArgs,
    generator: t.Generator | None = None,
) -> Int[Tensor, "*batch"]:
    """The token that follows each sequence: greedy at temperature 0, drawn otherwise.

    input_ids: the whole sequences so far, also what the model no longer sees; no strategy here
    looks back at them. generator: as for `sample_basic`.

    Raises: PvmlError naming a row that holds NaN or +inf, or nothing but -inf.
    """
    if args.temperature == 0:
        return greedy_search(logits)
    _require_usable(logits)
    wide = logits.detach().cpu().double()
    # with the largest at 0, even a tiny temperature leaves one finite logit
    below_best = wide - wide.amax(-1, keepdim=True)
    return sample_basic(apply_temperature(below_best, args.temperature), generator).to(
        logits.device
    )


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
