"""Where a named tensor passes, and how to listen there.

A module says `q = self.tap.at("q", q)`. Nobody listening: the tap hands its argument on and that is
all. Two laws hold, and are tested: watching never changes the answer, bit for bit; an edit is
never ignored. What listeners do with a tensor lives in `printer.py`, `capture.py` and `edit.py`.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from pvml.errors import PvmlError
from pvml.trace.points import POINTS, Point, full_name, lens_name, points_of

Names = str | Iterable[str] | Callable[[str], bool]
"""Which tensors: a name or glob (`"blocks.*.attn.z"`), several of them, or a test of a name."""
Heard = Callable[[str, Tensor], Any]
HEAD_RESULTS = "cache['result', layer] computes each head's own output from z"
"""What is told of TransformerLens's hook_result, which no pass makes."""


@dataclass(eq=False)
class Listener:
    """One pair of ears: what it calls, whether it may change what it hears, whether it ever did."""

    fn: Heard
    edits: bool = False
    overrides: bool = False
    """What it answers does not depend on what it hears."""
    must_act: bool = False
    """Where its answer could make no difference, listening is an error."""
    fired: bool = False

    def hear(self, name: str, x: Tensor) -> Tensor:
        """What the pass goes on with after `fn(name, x)`: a new object only if it changed."""
        self.fired = True
        before = x.clone() if x.is_inference() else x._version
        answer = self.fn(name, x)
        changed_in_place = (
            not _same(x, before) if isinstance(before, Tensor) else x._version != before
        )
        if not self.edits:
            if changed_in_place:
                raise PvmlError(
                    f"a watcher changed {name} in place: watching must not change the answer; "
                    f"work on a clone, or listen with edits=True"
                )
            return x
        if answer is None or answer is x:
            return x.view_as(x) if changed_in_place else x
        _require_like(name, x, answer)
        return answer  # type: ignore[no-any-return]  # _require_like has seen a Tensor


def _same(x: Tensor, before: Tensor) -> bool:
    """Whether every number is what it was; NaN, which equals nothing, is the same as NaN."""
    return bool((x.eq(before) | (x.ne(x) & before.ne(before))).all())


def _require_like(name: str, x: Tensor, answer: object) -> None:
    if not isinstance(answer, Tensor):
        raise PvmlError(
            f"an edit of {name} must return a tensor or None, got {type(answer).__name__}"
        )
    for what in ("shape", "dtype", "device"):
        wanted, given = getattr(x, what), getattr(answer, what)
        if wanted != given:
            wanted, given = (tuple(s) if what == "shape" else s for s in (wanted, given))
            raise PvmlError(
                f"an edit of {name} must keep its {what}: expected {wanted}, got {given}"
            )


@dataclass(eq=False, slots=True)
class Tap:
    """A place where a module's named tensors pass. Identity until something listens.

    A plain object, not a module: it is in no state_dict and copies with its module.
    """

    kind: str
    """The module's kind, a key of POINTS. Also its tag when it is listened to on its own."""
    settings: dict[str, object] = field(default_factory=dict)
    listeners: dict[str, tuple[tuple[str, Listener], ...]] = field(default_factory=dict)

    def at(self, name: str, x: Tensor) -> Tensor:
        """What the pass goes on with at this name: `x` itself, unless an editor answered."""
        # a method, not __call__: calling an instance costs twice as much, at every tensor
        if not self.listeners:
            return x
        for heard_as, listener in self.listeners.get(name, ()):
            heard, x = x, listener.hear(heard_as, x)
            if x is not heard:
                self._require_editable(name, heard_as)
        return x

    def wants(self, *names: str) -> bool:
        """Whether anyone listens to one of these: hidden tensors are computed only then."""
        return bool(self.listeners) and any(name in self.listeners for name in names)

    def edits(self, *names: str) -> bool:
        """Whether anyone who may change what passes listens to one of these."""
        return any(ear.edits for name in names for _, ear in self.listeners.get(name, ()))

    def _require_editable(self, name: str, heard_as: str) -> None:
        for point in POINTS[self.kind]:
            if point.name == name and point.fixed:
                raise PvmlError(f"an edit of {heard_as} cannot act: {point.fixed}")

    @property
    def points(self) -> tuple[Point, ...]:
        return points_of(self.kind, **self.settings)

    def __deepcopy__(self, memo: object) -> "Tap":
        """A copy that nobody listens to: listeners belong to the model they were given."""
        return Tap(self.kind, dict(self.settings))


@dataclass(frozen=True)
class Place:
    """A named tensor of a particular module tree."""

    name: str
    lens: str
    tap: Tap
    point: Point


def places(root: nn.Module) -> list[Place]:
    """Every named tensor under `root`, named relative to it, in the order of the tree.

    Alone, a module goes by its own tag: `attn.q`, `ln.out`, `block.resid_mid`.
    """
    found = []
    for path, module in root.named_modules():
        tap = getattr(module, "tap", None)
        if isinstance(tap, Tap):
            path = path or tap.kind
            found += [
                Place(full_name(path, p.name), lens_name(path, p), tap, p) for p in tap.points
            ]
    return found


def matching(root: nn.Module, names: Names) -> list[Place]:
    """The places under `root` that `names` picks, by PvML's name or by TransformerLens's.

    Raises: PvmlError for a name or pattern that picks nothing; it suggests what was meant.
    """
    everywhere = places(root)
    if callable(names):
        picked = [p for p in everywhere if names(p.name) or (p.lens and names(p.lens))]
        if not picked:
            raise PvmlError("the names filter accepts none of the model's named tensors")
        return picked
    patterns = [names] if isinstance(names, str) else _patterns(names)
    if not patterns:
        raise PvmlError("an empty list of names listens to nothing: give a name or a pattern")
    chosen: set[str] = set()
    for pattern in patterns:
        fitting = {place.name for place in everywhere if _fits(place, pattern)}
        if not fitting:
            no_mlps = without_mlps(root, pattern)
            told = f"nothing here is called {pattern!r}: {no_mlps}" if no_mlps else ""
            raise PvmlError(told or _nothing_is_called(pattern, everywhere))
        chosen |= fitting
    return [place for place in everywhere if place.name in chosen]


def without_mlps(root: object, name: str) -> str:
    """Why a model lacks a tensor that only blocks with an MLP have; empty for any other."""
    needs = ".mlp." in name or ".ln2." in name or name.endswith(("mlp_out", "resid_mid"))
    lacks = needs and getattr(getattr(root, "cfg", None), "attn_only", False)
    return "this model is attention-only: it has no MLPs" if lacks else ""


def _patterns(names: object) -> list[str]:
    given = list(names) if isinstance(names, Iterable) else [names]
    patterns = [pattern for pattern in given if isinstance(pattern, str)]
    if len(patterns) < len(given):
        raise PvmlError(
            f"names are given as a text, several texts or a function of a name, got {names!r}"
        )
    return patterns


def _fits(place: Place, pattern: str) -> bool:
    names = (place.name, place.lens) if place.lens else (place.name,)
    if not any(sign in pattern for sign in "*?["):
        return pattern in names
    return any(fnmatchcase(name, pattern) for name in names)


def _nothing_is_called(pattern: str, everywhere: list[Place]) -> str:
    if pattern.endswith("hook_result"):
        return f"{pattern!r} is not a tensor of the pass: {HEAD_RESULTS}, and hooks act on z"
    names = [n for place in everywhere for n in (place.name, place.lens) if n]
    close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.5)
    tails = {name.rpartition(".")[2] for name in names}
    tail = difflib.get_close_matches(pattern.rpartition(".")[2], sorted(tails), n=1, cutoff=0.5)
    meant = f"*.{tail[0]}" if "*" in pattern and tail else close[0] if close else ""
    hint = f"did you mean {meant!r}?" if meant else "`pvml trace` lists every name"
    return f"nothing here is called {pattern!r}: {hint}"


@contextmanager
def listen(
    root: nn.Module, names: Names, fn: Heard, *, edits: bool = False, overrides: bool = False
) -> Iterator[None]:
    """Call `fn(name, tensor)` wherever a tensor under `root` that `names` picks passes.

    Names are relative to `root`. A watcher (`edits=False`) gets the live tensor and its answer is
    ignored. An editor's answer replaces the tensor; None leaves it, with what was done in place.
    `overrides=True` declares that the answer does not depend on the tensor. What is written through
    `.data` or a NumPy view goes past torch's own count of writes and cannot be seen: do not.

    Raises: PvmlError, before the pass: a name that picks nothing, an edit where none can act, or
        what is no function. At the point: an edit of another shape, dtype or device, a watcher that
        writes in place. On leaving: an edit that was never reached. Whatever is raised, no listener
        stays behind.
    """
    require_function(fn)
    listener = Listener(fn, edits=edits, overrides=overrides, must_act=edits)
    with attached(matching(root, names), listener):
        yield
    if edits and not listener.fired:
        raise PvmlError(f"the edit of {names!r} never acted: no pass reached it while it listened")


def require_function(fn: object) -> None:
    """Nothing, if this can be called: else every later pass would die of it, deep in a module.

    Raises: PvmlError that shows what was given.
    """
    if not callable(fn):
        raise PvmlError(f"a tensor is heard by a function, got {type(fn).__name__} {fn!r:.60}")


@contextmanager
def attached(picked: list[Place], listener: Listener) -> Iterator[None]:
    """`listener` on every picked place; off again whatever happens."""
    try:
        attach(picked, listener)
        yield
    finally:
        for place in picked:
            detach(place.tap, place.point.name, listener)


def attach(picked: list[Place], listener: Listener) -> None:
    """`listener` on every picked place, for good.

    Raises: PvmlError for an edit that could not act there.
    """
    for place in picked:
        if listener.must_act and place.point.fixed:
            raise PvmlError(f"an edit of {place.name} cannot act: {place.point.fixed}")
        before = place.tap.listeners.get(place.point.name, ())
        place.tap.listeners[place.point.name] = (*before, (place.name, listener))
    for place in picked:
        _require_every_edit_can_act(place.tap)


def detach(tap: Tap, name: str, listener: Listener) -> None:
    """Take one listener off; anybody else's stay, in their order."""
    left = tuple(entry for entry in tap.listeners.get(name, ()) if entry[1] is not listener)
    if left:
        tap.listeners[name] = left
    else:
        tap.listeners.pop(name, None)


def _require_every_edit_can_act(tap: Tap) -> None:
    feeds = {point.name: point.feeds for point in POINTS[tap.kind]}
    for name, entries in tap.listeners.items():
        after = feeds[name]
        while after:
            if any(ear.overrides for _, ear in tap.listeners.get(after, ())):
                for heard_as, ear in entries:
                    if ear.must_act:
                        raise PvmlError(
                            f"an edit of {heard_as} can no longer act: {after}, the only tensor "
                            f"made from it, is replaced"
                        )
            after = feeds[after]
