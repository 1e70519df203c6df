"""One mistake: a sentence that tells it, and what it computes in place of the right thing.

A mistake that is not among these is still found by the comparison; it is only not named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from numpy import ndarray as Array

from pvml.parity.steps import Step


@dataclass(frozen=True)
class Mistake:
    """What is to be said of it, and what it computes in place of which steps or parameters."""

    says: str
    changes: Mapping[str, Step]


Mistakes = Iterator[Mistake]


def left_out(*names: str) -> Mistakes:
    """Each of these parameters on its own, and all of them, taken as 0."""
    zeros: dict[str, Step] = {name: _zero(name) for name in names}
    for name, zero in zeros.items():
        yield Mistake(f"{name} is left out", {name: zero})
    if len(names) > 1:
        yield Mistake(f"{', '.join(names[:-1])} and {names[-1]} are left out", zeros)


def always(x: Array) -> Step:
    """The step that gives this, whatever came before."""
    return lambda s: x


def _zero(name: str) -> Step:
    return lambda s: 0 * s[name]
