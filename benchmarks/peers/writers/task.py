"""What a writer is asked to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

How = Literal["greedy", "beams", "no cache", "exact window", "blocks", "read weights", "logits"]


@dataclass(frozen=True)
class Task:
    """Write on from prompts of one length; or add up the weights (read weights) so many times.

    logits: write nothing, and tell the scores after each prompt.
    """

    how: How
    prompts: list[list[int]]
    """Token ids, the first of each BOS."""
    n_new: int
    """Tokens for each prompt."""
    beams: int = 1


Writer = Callable[[Task], list[list[int]] | list[list[float]]]
"""The new ids for each prompt; of a beam search, the best text's. Empty for reading weights."""
