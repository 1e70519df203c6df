"""How a claim about runs is judged: seed by seed, and never on less than there is.

What is claimed is in `findings.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from outcomes import Outcome

Verdict = Literal["held", "did not hold", "open"]
Runs = Mapping[str, Mapping[int, Outcome]]
"""Finished runs of one kind, by experiment and seed."""

SURE_SEEDS = 3
"""Seeds that must agree before a small difference counts."""
CLEAR = 0.05
"""Bits per byte: a difference of so much counts with fewer seeds."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim, what the notes say of it, and what came out here."""

    claim: str
    notes: str
    verdict: Verdict
    found: str


@dataclass(frozen=True)
class Gap:
    """How much lower one experiment's bits per byte are than another's, for each common seed."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def judged(self) -> Verdict:
        """Whether the first is better.

        From three seeds on all must agree, however little they differ. One or two seeds must
        differ by CLEAR. Anything else is open.
        """
        gaps = list(self.by_seed.values())
        least = 0.0 if len(gaps) >= SURE_SEEDS else CLEAR
        if gaps and min(gaps) > least:
            return "held"
        return "did not hold" if gaps and max(gaps) < -least else "open"

    def __str__(self) -> str:
        """As `0.042 better (seed 0 alone)` or `0.042 better (seed by seed 0.039, 0.040, 0.047)`."""
        gaps = list(self.by_seed.values())
        size = f"{abs(self.mean):.3f} {'better' if self.mean >= 0 else 'worse'}"
        if len(gaps) == 1:
            return f"{size} (seed {next(iter(self.by_seed))} alone)"
        sign = 1 if self.mean >= 0 else -1
        each = ", ".join(f"{sign * gap:.3f}" for gap in gaps)
        return f"{size} (seed by seed {each})"


def gap(runs: Runs, better: str, worse: str) -> Gap:
    """Bits per byte of `worse` minus those of `better`, for every seed that both have."""
    first, second = runs.get(better, {}), runs.get(worse, {})
    return Gap({s: second[s].bits_per_byte - first[s].bits_per_byte for s in first if s in second})


def finding_of(
    runs: Runs,
    claim: str,
    notes: str,
    needed: Sequence[str],
    tell: Callable[[Runs], tuple[Verdict, str]],
) -> Finding:
    """The claim as `tell` judges it, or open if no seed has run all the needed experiments.

    tell: from the runs of those seeds that all the needed experiments have, and no others, to the
    verdict and a sentence.
    """
    seeds = [set(runs.get(name, {})) for name in needed]
    common = set.intersection(*seeds)
    if common:
        shared = {
            name: {seed: by_seed[seed] for seed in sorted(common)}
            for name, by_seed in runs.items()
            if common <= by_seed.keys()
        }
        verdict, found = tell(shared)
        return Finding(claim=claim, notes=notes, verdict=verdict, found=found)
    lacking = [name for name, there in zip(needed, seeds, strict=True) if not there]
    found = f"Not run yet: {', '.join(lacking)}." if lacking else "The runs share no seed."
    return Finding(claim=claim, notes=notes, verdict="open", found=found)


def bits_of(runs: Runs, name: str) -> str:
    """An experiment's bits per byte, the mean over its seeds."""
    return f"{mean_of(runs, name, lambda run: run.bits_per_byte):.3f}"


def mean_of(runs: Runs, name: str, of: Callable[[Outcome], float]) -> float:
    """A figure of an experiment, the mean over its seeds."""
    return fmean(of(run) for run in runs[name].values())


def against(runs: Runs, first: str, second: str) -> str:
    """The sentence about two experiments' bits per byte."""
    bits = [bits_of(runs, name) for name in (first, second)]
    return (
        f"{first} reaches {bits[0]} bits per byte and {second} {bits[1]}: "
        f"{gap(runs, first, second)}."
    )
