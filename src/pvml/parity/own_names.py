"""The names by which a reader's module shows and takes tensors: which are none here.

A tap hands on what it is given under any name, so that a misspelt one would be compared with
nothing, unsaid.
"""

import difflib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from pvml.parity.own_code import OwnError
from pvml.trace.points import POINTS, full_name
from pvml.trace.tap import Place, Tap

_CLOSE = 0.5
"""How alike two names must be, of 1, for one to be meant by the other."""


class _Asked(dict[str, Any]):
    """A tap's listeners, which remember under what names the tap was called."""

    def __init__(self, path: str, kind: str, listeners: dict[str, Any]) -> None:
        super().__init__(listeners)
        self.path = path
        self.now_and_then = {point.name for point in POINTS[kind] if point.when}
        self.names: list[str] = []

    def get(self, name: Any, default: Any = None) -> Any:
        if name not in self.now_and_then:
            self.names.append(full_name(self.path, str(name)))
        return super().get(name, default)


def taps(module: nn.Module) -> list[tuple[str, Tap]]:
    """Every tap in a module, and the path of what has it.

    Raises: OwnError for one of a kind that is none.
    """
    found = []
    for path, part in module.named_modules():
        tap = getattr(part, "tap", None)
        if not isinstance(tap, Tap):
            continue
        if tap.kind not in POINTS:
            raise OwnError(f"there is no Tap({tap.kind!r}): it is one of {', '.join(POINTS)}")
        found.append((path, tap))
    return found


def places_of(found: Iterable[tuple[str, Tap]]) -> list[Place]:
    """Every name that these taps may call, by its name within the module."""
    return [
        Place(full_name(path, name), "", tap, point)
        for path, tap in found
        for name, point in {point.name: point for point in POINTS[tap.kind]}.items()
    ]


@contextmanager
def names_called(found: Sequence[tuple[str, Tap]]) -> Iterator[list[str]]:
    """A list that holds, once it is left, under what names the taps were called while listened to.

    Names that exist in some settings only are left out.
    """
    called: list[str] = []
    before = [(tap, tap.listeners) for _, tap in found]
    asked = [_Asked(path, tap.kind, tap.listeners) for path, tap in found]
    for (_, tap), listeners in zip(found, asked, strict=True):
        tap.listeners = listeners
    try:
        yield called
    finally:
        for tap, listeners_then in reversed(before):
            tap.listeners = listeners_then
        called += [name for each in asked for name in each.names]


def names_taken(cls: type[nn.Module]) -> list[str]:
    """The names of forward's parameters after what the module reads; not *args and **kwargs."""
    others = list(inspect.signature(cls.forward).parameters.values())[2:]
    return [one.name for one in others if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def untaken(taken: Sequence[str], tried: Sequence[str]) -> str:
    """What is to be said of those of forward's parameters that are not given; empty: there is none.

    tried: the names of those that are given where they are taken.
    """
    others = [name for name in taken if name not in tried]
    if not others:
        return ""
    only = f" (only {' and '.join(tried)} {'are' if tried[1:] else 'is'})" if tried else ""
    return f"not tried: forward's {', '.join(others)}{only}"


def unknown_names(how: str, names: Iterable[str], known: Sequence[str]) -> list[str]:
    """A sentence for each of the names that is not known, with what may be meant.

    how: what was done with the name, such as "tapped".
    """
    return [
        f"{how} {name!r}, no name here: {_meant(name, known)}"
        for name in dict.fromkeys(names)
        if name not in known
    ]


def _meant(name: str, known: Sequence[str]) -> str:
    tail = name.rpartition(".")[2].removeprefix("hook_")
    lens = {
        point.lens.rpartition("hook_")[2]: point.name
        for points in POINTS.values()
        for point in points
        if point.lens
    }
    path = name.rpartition(".")[0]
    for own in (tail, lens.get(tail)):
        there = [one for one in known if one.rpartition(".")[2] == own]
        close = difflib.get_close_matches(f"{path}.{own}", there, n=1, cutoff=0.0)
        if close:
            return f"did you mean {close[0]}?"
    # by its last part alone, where the path is another: a model's, as in blocks.0.attn.q
    close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE) or [
        *difflib.get_close_matches(tail, known, n=1, cutoff=_CLOSE)
    ]
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
