"""All that decides what is written after a prompt, and how that reads. Nothing here imports torch.

A command's flags and the lines of a REPL both end up as `Settings`.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Literal

from pvml.errors import PvmlError
from pvml.plain import is_whole
from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_args import MOST_BEAMS, BeamArgs

_SHARED_BY_BEAMS = ("max_new_tokens", "no_repeat_ngram_size", "prepend_bos")
"""The fields of SamplingArgs that a beam search has, too."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How tokens are chosen or texts searched for, and what is told beside them.

    Raises: PvmlError at construction for a value that cannot be used, naming field and value.
    """

    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    """How tokens are chosen, and how many."""
    beams: int = 0
    """Search for the likeliest text with so many beams, and draw nothing. 0: draw."""
    n_best: int = 1
    """Of a beam search: texts that are printed, best first, with their scores if several."""
    length_penalty: float = 0.0
    """Of a beam search: the score is the sum of log-probabilities over length to this power."""
    early_stopping: Literal["no", "yes", "never"] = "no"
    """Of a beam search: whether it stops once --beams texts are complete; never is more patient."""
    explain: bool = False
    """Print, too, how each token came to be chosen: a table; of a beam search, its tree."""

    def __post_init__(self) -> None:
        if not is_whole(self.beams, 0, MOST_BEAMS):
            raise PvmlError(
                f"beams must be a whole number from 0 to {MOST_BEAMS} (0 draws), got {self.beams!r}"
            )
        if not self.beams:
            given = [f.name for f in fields(self) if f.name in _OF_BEAMS]
            given = [name for name in given if getattr(self, name) != getattr(Settings, name)]
            if given:
                raise PvmlError(
                    f"{' and '.join(given)} {'belongs' if len(given) == 1 else 'belong'} to a beam "
                    f"search: give beams, too, or leave that out"
                )
            return
        if not 1 <= self.n_best <= self.beams:
            raise PvmlError(
                f"n_best must be from 1 to beams, which is {self.beams}, got {self.n_best!r}"
            )
        self.beam_args()

    def beam_args(self) -> BeamArgs:
        """What a beam search takes of them."""
        return BeamArgs(
            num_beams=self.beams,
            num_return_sequences=self.n_best,
            length_penalty=self.length_penalty,
            early_stopping={"no": False, "yes": True}.get(self.early_stopping, "never"),
            **{name: getattr(self.sampling, name) for name in _SHARED_BY_BEAMS},
        )

    def with_beams(self, beams: int) -> "Settings":
        """These with another number of beams; 0 forgets what belongs to a search.

        Raises: PvmlError for a number that cannot be.
        """
        if not beams:
            return Settings(sampling=self.sampling, explain=self.explain)
        return replace(self, beams=beams, n_best=max(1, min(self.n_best, beams)))

    def idle_in_a_search(self) -> list[str]:
        """The fields of `sampling` that are set, although a beam search has no use for them."""
        names = [f.name for f in fields(SamplingArgs) if f.name not in _SHARED_BY_BEAMS]
        return [n for n in names if getattr(self.sampling, n) != getattr(SamplingArgs, n)]

    def told(self) -> str:
        """What is in force, in a line: `temp 0.7, top_p 0.95, 50 tokens`."""
        args, told = self.sampling, []
        if self.beams:
            told += [counted(self.beams, "beam")]
            told += [f"best {self.n_best}"] if self.n_best > 1 else []
            told += [f"length penalty {number(self.length_penalty)}"] if self.length_penalty else []
            told += {"no": [], "yes": ["early stopping"]}.get(
                self.early_stopping, ["early stopping never"]
            )
        elif args.temperature == 0:
            told += ["greedy"]
        else:
            told += [f"temp {number(args.temperature)}"]
            limits = {name: getattr(args, name) for name in ("top_k", "top_p", "min_p")}
            told += [f"{name} {number(value)}" for name, value in limits.items() if value]
        if not self.beams:
            told += [f"penalty {number(args.frequency_penalty)}"] if args.frequency_penalty else []
            if args.repetition_penalty != 1:
                told += [f"repetition penalty {number(args.repetition_penalty)}"]
            told += [counted(len(args.logit_bias), "biased token")] if args.logit_bias else []
            banned = args.banned_tokens
            told += [counted(len(banned), "banned token")] if banned else []
        if args.no_repeat_ngram_size:
            told += [f"no {counted(args.no_repeat_ngram_size, 'token')} twice"]
        told += [counted(args.max_new_tokens, "token")]
        if not self.beams:
            told += [f"seed {args.seed}"] if args.seed is not None and args.temperature else []
            told += [f"stop {text!r}" for text in args.stop]
        told += [] if args.prepend_bos else ["no BOS"]
        return ", ".join(told + ["explained"] * self.explain)


_OF_BEAMS = ("n_best", "length_penalty", "early_stopping")


def number(value: float | int) -> str:
    """A number as it was typed: 0.7, 40, 1."""
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def counted(n: int, what: str) -> str:
    """`1 token`, `50 tokens`, `1,000 tokens`."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"
