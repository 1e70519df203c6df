"""Options that several scripts take, and what they refuse."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import torch as t

from pvml.cli.flags import given
from pvml.cli.train import TrainFlags
from pvml.errors import PvmlError

STORIES = Path("../shared/data/tinystories")
"""Where the stories lie that the kept results are of; they do not come with the project."""
TRAIN, VALID = (str(STORIES / f"{part}.jsonl.xz") for part in ("train", "valid"))
_MOST_THREADS = 1024


def use_threads(n: int | None) -> None:
    """Compute with so many threads; None: with torch's own number.

    Raises: PvmlError for a number that cannot be used.
    """
    if n is None:
        return
    if not 1 <= n <= _MOST_THREADS:
        raise PvmlError(f"--threads must be 1 to {_MOST_THREADS:,}, got {n}")
    t.set_num_threads(n)


def require_seeds(seeds: Sequence[int]) -> None:
    """Nothing, if these can be trained and told as so many runs.

    Raises: PvmlError for none, or for one that is named twice.
    """
    if not seeds:
        raise PvmlError("--seeds names no seed: give one or more, as --seeds 0 1 2")
    twice = [str(seed) for seed, times in Counter(seeds).items() if times > 1]
    if twice:
        raise PvmlError(f"--seeds names {', '.join(twice)} twice: each seed makes one run")


def require_stories(corpora: Collection[str | None], remedy: str) -> None:
    """Nothing, if those of the corpora that are our stories are where they should be.

    remedy: what to do without them, as an ending to the message.

    Raises: PvmlError naming the file that is missing.
    """
    for corpus in (TRAIN, VALID):
        if corpus in corpora and not Path(corpus).exists():
            raise PvmlError(
                f"there is no {corpus}: these stories lie beside the project and do not come with "
                f"it. {remedy}"
            )


def further(flags: str, own: Collection[str]) -> list[str]:
    """The words of --flags.

    own: fields of `TrainFlags` that the script sets itself, or cannot use.

    Raises: PvmlError for a flag of one of these.
    """
    words = flags.split()
    if refused := sorted(given(TrainFlags, words) & set(own)):
        told = ", ".join(f"--{name.replace('_', '-')}" for name in refused)
        raise PvmlError(f"--flags cannot hold {told}: this script chooses that itself")
    return words
