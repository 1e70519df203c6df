"""A beam search as it went: what was considered at every step, and what was found.

Nothing here imports torch. `beam_tree.py` draws it.
"""

from dataclasses import dataclass, field
from typing import Literal

from pvml.sampling.beam_args import BeamArgs

Fate = Literal["kept", "dropped", "ended", "cut"]
"""Goes on, ranked too low, ended by end-of-text, or complete because no more tokens are allowed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate:
    """A text that a search considered, as its last token and what that follows."""

    token: int
    logprob_sum: float
    """Of all new tokens up to this one (nats)."""
    length: int
    """New tokens up to this one, end-of-text included: the step, counted from 1."""
    fate: Fate
    parent: "Candidate | None" = field(repr=False)
    """The text without its last token; None where that is the prompt."""

    @property
    def logprob(self) -> float:
        """Of the last token after the others (nats)."""
        return self.logprob_sum - (self.parent.logprob_sum if self.parent else 0.0)

    @property
    def line(self) -> "list[Candidate]":
        """From the first new token to this one."""
        found, here = [self], self.parent
        while here is not None:
            found.append(here)
            here = here.parent
        return found[::-1]

    @property
    def ids(self) -> tuple[int, ...]:
        """All new tokens."""
        return tuple(candidate.token for candidate in self.line)


@dataclass(frozen=True, eq=False, kw_only=True)
class Search:
    """Everything that a beam search considered, and what it found."""

    prompt: tuple[int, ...]
    """Token ids, BOS included where there is one."""
    args: BeamArgs
    steps: tuple[tuple[Candidate, ...], ...]
    """For each new token, what was considered, largest sum first: each beam's best tokens."""
    complete: tuple[Candidate, ...]
    """Texts that ended or were cut, best score first: num_beams, unless fewer are possible."""

    @property
    def results(self) -> tuple[Candidate, ...]:
        """The complete texts that were asked for, best score first."""
        return self.complete[: self.args.num_return_sequences]

    def score(self, candidate: Candidate) -> float:
        """What complete texts are compared by (nats over a power of tokens)."""
        return score(candidate.logprob_sum, candidate.length, self.args.length_penalty)


def score(logprob_sum: float, length: int, length_penalty: float) -> float:
    """`logprob_sum / length ** length_penalty`; length: new tokens, end-of-text included.

    Source: Hugging Face transformers' `length_penalty`; Wu et al. 2016, arXiv:1609.08144, section
    7, divide by ((5 + length) / 6) ** alpha instead.
    """
    return float(logprob_sum / length**length_penalty)
