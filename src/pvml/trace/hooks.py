"""TransformerLens's ways of looking: `run_with_cache`, `run_with_hooks`, `hooks`, for notebooks.

They are a thin layer over `listen` and `capture`; hook functions get `(tensor, hook=...)` as there.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch as t
from torch import Tensor, nn

from pvml.errors import PvmlError
from pvml.trace.capture import ActivationCache, capture
from pvml.trace.tap import Listener, Names, Place, attached, matching


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
        **options: Any,
    ) -> tuple[Tensor, ActivationCache]:
        """The pass's result, and a cache of its named tensors (default: all of them).

        `incl_bwd`: also keep gradients, in `cache.grads`, when `backward()` is called on something
        computed from the result; see `capture` for what that costs.

        Raises: PvmlError for a filter that picks nothing.
        """
        names = "*" if names_filter is None else names_filter
        with capture(self, names, grads=incl_bwd, device=device) as cache:
            result = self(*inputs, **options)
        return result, cache.remove_batch_dim() if remove_batch_dim else cache

    def run_with_hooks(
        self, *inputs: Any, fwd_hooks: Hooks = (), bwd_hooks: Hooks = (), **options: Any
    ) -> Tensor:
        """The pass's result with these hooks on for its duration.

        `bwd_hooks` act on gradients of a `backward()` called later on the result.
        """
        with self.hooks(fwd_hooks, bwd_hooks):
            result: Tensor = self(*inputs, **options)
        return result

    @contextmanager
    def hooks(self, fwd_hooks: Hooks = (), bwd_hooks: Hooks = ()) -> Iterator[None]:
        """Hooks on, within it. A forward hook's answer replaces the tensor; None leaves it.

        Raises: PvmlError for a name that picks nothing, or an answer of another shape or dtype.
        """
        with ExitStack() as stack:
            for wrap, pairs in ((_forward, fwd_hooks), (_backward, bwd_hooks)):
                for names, fn in pairs:
                    picked = matching(self, names)
                    listener = Listener(wrap(fn, picked), edits=True)
                    stack.enter_context(attached(picked, listener))
            yield


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
