"""How a prediction is graded: the log-probability that it gave to the token that came next.

The table that `python -m pvml.training.losses` prints is in `pvml.demos.losses`.
"""

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError


def get_log_probs(
    logits: Float[Tensor, "batch posn d_vocab"], tokens: Int[Tensor, "batch posn"]
) -> Float[Tensor, "batch posn-1"]:
    """Log-probability, in nats, that each position gave to the token after it.

    The last position has nothing after it to be graded on, and nothing predicts the first token:
    one number fewer than tokens. The loss of a batch is `-get_log_probs(logits, tokens).mean()`.

    Raises: PvmlError if the shapes disagree, if a row has fewer than 2 tokens, or for an id that
    has no logit.
    """
    require_gradable(logits, tokens)
    # the last position is graded on a token of no meaning, then dropped: cutting it off before
    # would copy all the logits, the largest tensor of a training step, here and in the gradient
    return log_prob_of(logits, tokens.roll(-1, dims=1))[:, :-1]


def log_prob_of(
    logits: Float[Tensor, "*places d_vocab"], targets: Int[Tensor, "*places"]
) -> Float[Tensor, "*places"]:
    """Log-probability, in nats, of each target under the logits at the same place."""
    # a half type resolves 10 nats no better than to 0.01 or 0.1
    wide = t.promote_types(logits.dtype, t.float32)
    log_probs = logits.log_softmax(-1, dtype=wide)
    return log_probs.gather(-1, targets.long()[..., None])[..., 0]


def require_gradable(logits: Tensor, tokens: Tensor) -> None:
    """Nothing, if these logits can be graded on these tokens.

    Raises: PvmlError that shows the shapes, or an id that has no logit.
    """
    if logits.shape[:2] != tokens.shape:
        raise PvmlError(
            f"logits {tuple(logits.shape)} and tokens {tuple(tokens.shape)} do not belong "
            f"together: expected (batch, posn, d_vocab) and (batch, posn)"
        )
    if tokens.shape[1] < 2:
        raise PvmlError(
            f"tokens of shape {tuple(tokens.shape)} leave nothing to grade: a row needs at least "
            f"2 tokens, the first is predicted by none"
        )
    if tokens.numel():
        low, high = (int(extreme) for extreme in tokens.aminmax())
        if low < 0 or high >= logits.shape[-1]:
            raise PvmlError(
                f"token id {low if low < 0 else high} has no logit: ids run from 0 to "
                f"{logits.shape[-1] - 1}"
            )


if __name__ == "__main__":
    from pvml.demos.losses import main

    main()
