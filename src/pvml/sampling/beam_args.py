"""What may change from one beam search to the next. Nothing here imports torch."""

from dataclasses import dataclass
from typing import Literal

from pvml.errors import PvmlError
from pvml.plain import is_finite, is_whole, make_plain

_LARGEST_PENALTY = 10.0
MOST_BEAMS = 512
"""A search remembers what it has considered: up to the square of them, at each token."""


@dataclass(frozen=True, kw_only=True)
class BeamArgs:
    """How wide a beam search is, how long its texts may get, and how they are compared.

    Raises: PvmlError at construction for a value that cannot be used, naming field and value.
    """

    max_new_tokens: int = 50
    """Texts are cut after so many new tokens; end-of-text ends them earlier."""
    num_beams: int = 3
    """Texts carried forward together, up to 512. 1 is greedy."""
    num_return_sequences: int | None = None
    """Most texts given back, best first. Unset: num_beams."""
    length_penalty: float = 0.0
    """The score is the sum of log-probabilities over length to this power. 1: their mean."""
    early_stopping: bool | Literal["never"] = False
    """When num_beams texts are complete: True stops; False goes on while the best unfinished text,
    scored at its present length, beats the worst complete one; "never" at its best length."""
    no_repeat_ngram_size: int = 0
    """No run of so many tokens comes twice in a text, the prompt and BOS included. 0: no ban."""
    prepend_bos: bool = True
    """Begin with the BOS token, as every training row does; it is not part of the text."""

    def __post_init__(self) -> None:
        make_plain(self)
        for name, least in (("max_new_tokens", 1), ("num_beams", 1), ("no_repeat_ngram_size", 0)):
            _require_whole(name, getattr(self, name), least)
        if self.num_beams > MOST_BEAMS:
            raise PvmlError(f"num_beams must be at most {MOST_BEAMS}, got {self.num_beams}")
        if self.num_return_sequences is not None:
            _require_whole("num_return_sequences", self.num_return_sequences, 1)
            if self.num_return_sequences > self.num_beams:
                raise PvmlError(
                    f"num_return_sequences must be at most num_beams, because no more texts are "
                    f"kept: got {self.num_return_sequences} and num_beams {self.num_beams}"
                )
        penalty = self.length_penalty
        if not is_finite(penalty, -_LARGEST_PENALTY, _LARGEST_PENALTY):
            raise PvmlError(
                f"length_penalty must be a number from {-_LARGEST_PENALTY:g} to "
                f"{_LARGEST_PENALTY:g} (0 compares sums, 1 means), got {penalty!r}"
            )
        # `in` would let 0 and 1 pass for False and True
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise PvmlError(
                f'early_stopping must be True, False or "never", got {self.early_stopping!r}'
            )
        if not isinstance(self.prepend_bos, bool):
            raise PvmlError(f"prepend_bos must be True or False, got {self.prepend_bos!r}")


def _require_whole(name: str, value: object, least: int) -> None:
    if not is_whole(value, least):
        raise PvmlError(f"{name} must be a whole number of at least {least}, got {value!r}")
