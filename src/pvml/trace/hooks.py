"""TransformerLens's ways of looking: `run_with_cache`, `run_with_hooks`, `hooks`, for notebooks.

They are a thin layer over `listen` and `capture`; hook functions get `(tensor, hook=...)` as there.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch as t
from torch import Tensor, nn

from pvml.errors import PvmlError
from pvml.trace.capture import ActivationCache, capture
from pvml.trace.tap import (
    Listener,
    Names,
    Place,
    attach,
    attached,
    detach,
    matching,
    places,
    require_function,
)


@dataclass(frozen=True)
class HookPoint:
    """What a hook function is told about where it is."""

    name: str
    """TransformerLens's name of the tensor, or PvML's where it has none there."""

    def layer(self) -> int:
        """The block that the tensor is in, counted from 0.

        Raises: PvmlError for a tensor outside the blocks.
        """
        found = re.match(r"blocks\.(\d+)\.", self.name)
        if not found:
            raise PvmlError(f"{self.name} is not inside a block, so it has no layer")
        return int(found[1])


Hook = Callable[..., Any]
Hooks = Sequence[tuple[Names, Hook]]


class Hooked(nn.Module):
    """A module that can be run with a cache or with hooks."""

    def run_with_cache(
        self,
        *inputs: Any,
        names_filter: Names | None = None,
        incl_bwd: bool = False,
        remove_batch_dim: bool = False,
        device: str | t.device | None = None,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **options: Any,
    ) -> tuple[Any, ActivationCache]:
        """The pass's result, and a cache of its named tensors (default: all of them).

        `options` are for the model, `return_type` among them. `incl_bwd`: also call `backward()` on
        the result, which must be one number, and keep gradients in `cache.grads`; parameters' are
        added to theirs. `capture` takes another loss, and tells what gradients cost. The last two
        are taken for notebooks, as in `hooks`.

        Raises: PvmlError for a filter that picks nothing, or a result that has no gradient.
        """
        _require_end(reset_hooks_end)
        names = "*" if names_filter is None else names_filter
        with capture(self, names, grads=incl_bwd, device=device) as cache:
            result = self(*inputs, **options)
            if incl_bwd:
                _one_number(result).backward()
        return result, cache.remove_batch_dim() if remove_batch_dim else cache

    def run_with_hooks(
        self,
        *inputs: Any,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **options: Any,
    ) -> Any:
        """The pass's result with these hooks on for its duration.

        `bwd_hooks` act on gradients of a `backward()` called later on the result. The rest is for
        notebooks, as in `hooks`.
        """
        with self.hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            return self(*inputs, **options)

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[None]:
        """Hooks on, within it. A forward hook's answer replaces the tensor; None leaves it.

        reset_hooks_end: they always end with it. clear_contexts: a HookPoint has no context, so
        that there is nothing to clear.

        Raises: PvmlError for a name that picks nothing, a hook that is no function, an answer of
            another shape or dtype, or hooks that are to stay.
        """
        _require_end(reset_hooks_end)
        with ExitStack() as stack:
            for wrap, pairs in ((_forward, fwd_hooks), (_backward, bwd_hooks)):
                for names, fn in pairs:
                    require_function(fn)
                    picked = matching(self, names)
                    listener = Listener(wrap(fn, picked), edits=True)
                    stack.enter_context(attached(picked, listener))
            yield

    def add_hook(self, names: Names, hook: Hook, dir: Literal["fwd", "bwd"] = "fwd") -> None:
        """A hook on until `reset_hooks`; `hooks` takes its own off by itself.

        Raises: PvmlError for a name that picks nothing, a hook that is no function, or another
            direction than fwd and bwd.
        """
        require_function(hook)
        if dir not in ("fwd", "bwd"):
            raise PvmlError(f"dir must be fwd or bwd, got {dir!r}")
        picked = matching(self, names)
        wrap = _forward if dir == "fwd" else _backward
        attach(picked, _AddedHook(wrap(hook, picked), edits=True))

    def reset_hooks(self, clear_contexts: bool = True, including_permanent: bool = False) -> None:
        """Take off every hook that `add_hook` put on; whoever else listens stays.

        The arguments are taken for notebooks: no hook has a context, and none is permanent.
        """
        for place in places(self):
            for _, listener in place.tap.listeners.get(place.point.name, ()):
                if isinstance(listener, _AddedHook):
                    detach(place.tap, place.point.name, listener)


class _AddedHook(Listener):
    """A hook that nobody takes off but `reset_hooks`."""


def _one_number(result: object) -> Any:
    """Raises: PvmlError if there is nothing to call `backward()` on."""
    if isinstance(result, Tensor) and result.numel() == 1:
        return result
    shape = f" of shape {tuple(result.shape)}" if isinstance(result, Tensor) else ""
    raise PvmlError(
        f"incl_bwd=True calls backward() on the result, which must be one number, got "
        f"{type(result).__name__}{shape}: give return_type='loss'; or, for a number of your own, "
        f"run the model within capture(model, grads=True) (from pvml.trace.capture) and call "
        f"backward() on it"
    )


def _require_end(reset_hooks_end: bool) -> None:
    """Raises: PvmlError if hooks are to stay on."""
    if not reset_hooks_end:
        raise PvmlError(
            "reset_hooks_end=False: hooks of one pass end with it. One that is to stay is put on "
            "with add_hook, until reset_hooks"
        )


def _hook_points(picked: list[Place]) -> dict[str, HookPoint]:
    return {place.name: HookPoint(place.lens or place.name) for place in picked}


def _forward(fn: Hook, picked: list[Place]) -> Callable[[str, Tensor], Any]:
    points = _hook_points(picked)
    return lambda name, x: fn(x, hook=points[name])


def _backward(fn: Hook, picked: list[Place]) -> Callable[[str, Tensor], Tensor]:
    points = _hook_points(picked)

    def on_the_way(name: str, x: Tensor) -> Tensor:
        if not x.requires_grad:
            raise PvmlError(f"a backward hook on {name} would never run: this pass records none")
        through = x.view_as(x)

        def on_the_way_back(gradient: Tensor) -> Tensor | None:
            answer = fn(gradient, hook=points[name])
            replaced: Tensor | None = answer[0] if isinstance(answer, tuple) else answer
            return replaced

        through.register_hook(on_the_way_back)  # type: ignore[no-untyped-call]
        return through

    return on_the_way
