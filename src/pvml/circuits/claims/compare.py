"""Whether what a claim says is what was measured: its figures and its words beside another's.

The two are of the same weights, rows, settings and seeds, so they differ by rounding alone: other
numbers of threads and other devices add in another order.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from pvml.circuits.chance import told_p
from pvml.circuits.claims.claim import Claim, Figure, Null
from pvml.circuits.claims.sentence import sentence

ROUNDING = 1e-4
"""Largest change of a figure (as a share of it, if it is above 1) that float32 may make: less than
is told of any."""
_P_ROUNDING = 0.1
"""Largest change of ln p, and a tenth of it for each unit of ln p: far out in a tail a little of
the score is much of p."""
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def differences(claim: Claim, again: Claim) -> tuple[str, ...]:
    """What a claim has otherwise than the same claim measured again, in words; empty if nothing."""
    found = list(_of_figures(claim, again))
    if claim.scores:
        says = sentence(claim.kind, claim.heads, claim.edge, claim.scores[0], claim.inputs.made)
        if claim.says != says:
            found.append(f"it says {claim.says!r}, and its own figures say {says!r}")
    for ours, measured in zip_longest(claim.notes, again.notes):
        if ours is None or measured is None or not _same_words(ours, measured):
            found.append(f"it notes {_quoted(ours)}, and measured is {_quoted(measured)}")
    return tuple(found)


def _of_figures(claim: Claim, again: Claim) -> Iterator[str]:
    groups = ((claim.scores, again.scores), (claim.effects, again.effects))
    for ours, measured in groups:
        if [figure.what for figure in ours] != [figure.what for figure in measured]:
            yield f"it has the figures {_named(ours)}, and measured are {_named(measured)}"
            continue
        for one, other in zip(ours, measured, strict=True):
            yield from _of_figure(one, other)


def _of_figure(ours: Figure, measured: Figure) -> Iterator[str]:
    what = ours.what
    if not same_value(ours.value, measured.value):
        yield f"{what}: it has {_told(ours.value)}, measured is {_told(measured.value)}"
    if ours.unit != measured.unit:
        yield f"{what}: it is in {ours.unit!r}, measured in {measured.unit!r}"
    if [null.what for null in ours.nulls] != [null.what for null in measured.nulls]:
        yield f"{what}: it stands beside other nulls than were measured"
        return
    for null, again in zip(ours.nulls, measured.nulls, strict=True):
        yield from _of_null(f"{what}, {null.what}", null, again)
    if ours.beyond != measured.beyond and not _tied(measured):
        yield f"{what}: whether it is beyond its nulls is not what was measured"


def _of_null(what: str, ours: Null, measured: Null) -> Iterator[str]:
    for name in ("mean", "spread", "most"):
        one, other = getattr(ours, name), getattr(measured, name)
        if not same_value(one, other):
            yield f"{what}: it has a {name} of {_told(one)}, measured is {_told(other)}"
    if not _same_p(ours.p, measured.p):
        one, other = ("no p" if p is None else told_p(p) for p in (ours.p, measured.p))
        # two that are told alike are told apart
        apart = "" if one != other else f" ({ours.p:.2g} and {measured.p:.2g})"
        yield f"{what}: it has {one}, measured is {other}{apart}"


def same_value(one: float | None, other: float | None) -> bool:
    """Whether two values of a figure are the same but for rounding."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)


def _same_p(one: float | None, other: float | None) -> bool:
    if one is None or other is None or min(one, other) <= 0:
        return one == other
    apart = abs(math.log(one) - math.log(other))
    return apart <= _P_ROUNDING * (1 + abs(math.log(other)) / 10)


def _tied(figure: Figure) -> bool:
    """Whether a figure is as large as the largest of its null, so that rounding decides."""
    return any(
        null.most is not None and same_value(figure.value, null.most) for null in figure.nulls
    )


def _same_words(one: str, other: str) -> bool:
    """Whether two notes are the same but for the last place of their numbers with a point."""
    ours, theirs = _NUMBER.split(one), _NUMBER.split(other)
    return ours[::2] == theirs[::2] and all(
        "." in b and abs(float(a) - float(b)) <= 1.01 * 10.0 ** -len(b.partition(".")[2])
        for a, b in zip(ours[1::2], theirs[1::2], strict=True)
        if a != b
    )


def _named(figures: Sequence[Figure]) -> str:
    return "; ".join(figure.what for figure in figures) or "none"


def _told(value: float | None) -> str:
    return "none" if value is None else f"{value:z.6g}"


def _quoted(note: str | None) -> str:
    return "nothing" if note is None else repr(note)
