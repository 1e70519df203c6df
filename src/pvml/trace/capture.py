"""A listener that keeps what passes, by name: snapshots, never views of live tensors."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as t
from torch import Tensor, nn

from pvml.errors import PvmlError
from pvml.trace.act_names import RESULT, get_act_name
from pvml.trace.stacks import Stacks, writes_to
from pvml.trace.tap import (
    HEAD_RESULTS,
    Listener,
    Names,
    attached,
    matching,
    places,
    without_mlps,
)

_GRAD = "_grad"
"""What TransformerLens adds to the name of a tensor for that of its gradient."""


class ActivationCache(Stacks):
    """Tensors kept from a pass, found by PvML's name or by TransformerLens's.

    Every read hands out a fresh copy: nothing that is done to it reaches the cache or the model.
    A name that passed more than once while the cache was open holds its latest tensor. A tuple is a
    short name of TransformerLens's (see `get_act_name`): `cache["pattern", 0]`; layers may be
    counted from the end. `cache["result", 0]` is computed, from z. A name that ends in `_grad` is
    read in `grads`.
    """

    def __init__(
        self,
        kept: dict[str, Tensor],
        other_names: dict[str, str],
        model: Any = None,
        has_batch_dim: bool = True,
        of: str = "",
    ) -> None:
        """of: what its tensors are of those named, for messages."""
        self._kept = kept
        self._other_names = other_names
        self.model = model
        """What was run."""
        self.weight_writes = writes_to(model)
        self.has_batch_dim = has_batch_dim
        self._of = of
        self._gradients: dict[str, Tensor] = {}

    @property
    def grads(self) -> "ActivationCache":
        """Gradients, under the same names; filled by `backward()` where they were asked for."""
        return ActivationCache(
            self._gradients, self._other_names, self.model, self.has_batch_dim, "the gradient of "
        )

    def __getitem__(self, name: str | tuple[Any, ...]) -> Tensor:
        if isinstance(name, str) and name.endswith(_GRAD):
            return self.grads[name.removesuffix(_GRAD)]
        if isinstance(name, tuple):
            short, layer, *part = self._counted_from_0(*name)
            if short == RESULT:
                return self.head_results(layer)
            name = get_act_name(short, layer, *part)
        own = self._own_name(name)
        if own not in self._kept:
            raise KeyError(self._not_kept(name))
        return self._kept[own].clone()

    def _own_name(self, name: object) -> str:
        own = self._other_names.get(str(name), str(name))
        if own in self._kept or "." in own:
            return own
        try:
            full = get_act_name(own)
        except PvmlError:
            return own
        return self._other_names.get(full, full)

    def _counted_from_0(
        self, name: str, layer: int | str | None = None, *part: str | None
    ) -> tuple[Any, ...]:
        """A short name whose layer, if negative, was counted from the end.

        Raises: PvmlError for a layer that is not there.
        """
        if not isinstance(layer, int):
            return name, layer, *part
        n_layers: int = self._model.cfg.n_layers
        if not -n_layers <= layer < n_layers:
            raise PvmlError(f"this model has {n_layers} layers, counted from 0: no layer {layer}")
        return name, layer % n_layers, *part

    def _not_kept(self, name: object) -> str:
        names = [
            *self._kept,
            *(lens for lens, own in self._other_names.items() if own in self._kept),
        ]
        told = f"{self._of}{name!r} was not kept"
        if str(name).endswith("hook_result"):
            return f"{told}: {HEAD_RESULTS}"
        if no_mlps := without_mlps(self.model, str(name)):
            return f"{told}: {no_mlps}"
        holds = f"this cache holds {', '.join(names[:6]) or 'nothing yet'}, ..."
        everywhere = places(self.model) if isinstance(self.model, nn.Module) else []
        if self._kept and any(name in (place.name, place.lens) for place in everywhere):
            return f"{told}: {holds} Let names_filter pick it, too"
        tails = {each.rpartition(".")[2] for each in names}
        tail = difflib.get_close_matches(str(name).rpartition(".")[2], sorted(tails), n=1)
        fitting = [each for each in names if each.rpartition(".")[2] in tail]
        close = difflib.get_close_matches(str(name), fitting, n=1)
        return f"{told}: did you mean {close[0]!r}?" if close else f"{told}: {holds}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name.endswith(_GRAD):
            return name.removesuffix(_GRAD) in self.grads
        return isinstance(name, str) and self._own_name(name) in self._kept

    def remove_batch_dim(self) -> "ActivationCache":
        """This cache, its tensors without their batch axis from now on, for a batch of one.

        Raises: PvmlError when the pass had another batch size.
        """
        if not self.has_batch_dim:
            return self
        for tensors in (self._kept, self._gradients):
            tensors |= {name: _only(name, tensor) for name, tensor in tensors.items()}
        self.has_batch_dim = False
        return self


def _only(name: str, tensor: Tensor) -> Tensor:
    """A tensor of a batch of one without its batch axis, if it has one.

    Raises: PvmlError for another batch size.
    """
    if name.endswith((".mask", ".sliced")):
        return tensor
    if tensor.shape[0] != 1:
        raise PvmlError(f"remove_batch_dim needs a batch of 1, but {name} is {tuple(tensor.shape)}")
    return tensor[0]


@contextmanager
def capture(
    root: nn.Module,
    names: Names = "*",
    *,
    grads: bool = False,
    device: str | t.device | None = None,
) -> Iterator[ActivationCache]:
    """A cache that fills, while it is open, with the tensors under `root` that `names` picks.

    `grads=True` also keeps each tensor's gradient, once `backward()` runs on something computed
    from this pass. The pass must then go through hidden tensors (attention's grid, LayerNorm's
    statistics) instead of beside them, which moves its result by rounding. `device` is where the
    copies are kept (default: where they were made).

    Raises: PvmlError for names that pick nothing, or gradients asked of a pass that records none.
    """
    picked = matching(root, names)
    cache = ActivationCache({}, {place.lens: place.name for place in picked if place.lens}, root)

    def keep(name: str, x: Tensor) -> Tensor | None:
        cache._kept[name] = x.detach().to(device, copy=True)
        wanted = grads and x.is_floating_point()
        return _with_gradient_kept(cache, name, x, device) if wanted else None

    # a tensor whose gradient is kept must lie on the pass's way: an edit that changes nothing
    with attached(picked, Listener(keep, edits=grads)):
        yield cache


def _with_gradient_kept(
    cache: ActivationCache, name: str, x: Tensor, device: str | t.device | None
) -> Tensor:
    if not x.requires_grad:
        raise PvmlError(
            f"the gradient of {name} was asked for, but this pass records none: leave "
            f"torch.no_grad() and let the parameters require gradients"
        )
    through = x.view_as(x)

    def keep(gradient: Tensor) -> None:
        own = gradient.detach().to(device, copy=True)
        cache._gradients[name] = own if cache.has_batch_dim else _only(name, own)

    through.register_hook(keep)  # type: ignore[no-untyped-call]
    return through
