"""What may change from one sampled text to the next. Nothing here imports torch."""

import math
from dataclasses import dataclass

from pvml.errors import PvmlError

_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingArgs:
    """How tokens are chosen, and how many.

    Raises: PvmlError at construction for a value that cannot be used, naming field and value.
    """

    max_new_tokens: int = 50
    """Stop after so many new tokens; end-of-text stops earlier."""
    temperature: float = 1.0
    """Logits are divided by it: below 1 bolder, above 1 wilder, 0 always the likeliest token."""
    top_k: int = 0
    """Only the k likeliest tokens can be drawn. 0: no limit."""
    top_p: float = 0.0
    """Only the fewest tokens whose probabilities add up to p can be drawn. 0: no limit."""
    seed: int | None = None
    """The same seed gives the same text. Unset: a new text every time."""
    prepend_bos: bool = True
    """Begin with the BOS token, as every training row does; it is not part of the text."""

    def __post_init__(self) -> None:
        if not _whole(self.max_new_tokens) or self.max_new_tokens < 1:
            raise PvmlError(
                f"max_new_tokens must be a whole number of at least 1, got {self.max_new_tokens!r}"
            )
        if not _finite(self.temperature) or self.temperature < 0:
            raise PvmlError(
                f"temperature must be a finite number of at least 0 (0 is greedy), "
                f"got {self.temperature!r}"
            )
        if not _whole(self.top_k) or self.top_k < 0:
            raise PvmlError(
                f"top_k must be a whole number of at least 0 (0 is no limit), got {self.top_k!r}"
            )
        if not _finite(self.top_p) or not 0 <= self.top_p <= 1:
            raise PvmlError(
                f"top_p must be a probability from 0 to 1 (0 is no limit), got {self.top_p!r}"
            )
        if self.top_k and self.top_p:
            raise PvmlError(
                f"set at most one of top_k and top_p, and the other to 0: got "
                f"top_k={self.top_k} and top_p={self.top_p}"
            )
        if self.seed is not None and not (_whole(self.seed) and 0 <= self.seed <= _LARGEST_SEED):
            raise PvmlError(
                f"seed must be a whole number from 0 to 2**63 - 1, or None for a new text every "
                f"time, got {self.seed!r}"
            )
        if not isinstance(self.prepend_bos, bool):
            raise PvmlError(f"prepend_bos must be True or False, got {self.prepend_bos!r}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
