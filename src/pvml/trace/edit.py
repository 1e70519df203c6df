"""Listeners that change what passes: replace it, ablate it, freeze attention patterns."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch as t
from torch import Tensor, nn

from pvml.errors import PvmlError
from pvml.trace.points import full_name
from pvml.trace.tap import Names, listen, matching


@contextmanager
def replace(root: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it, each named tensor is the given one, whatever the model computes.

    Raises: PvmlError for an unknown name, another shape, or a replacement that was never reached.
    """
    places = {name: matching(root, name) for name in values}
    for name, found in places.items():
        if len(found) != 1:
            raise PvmlError(f"replace takes names of one tensor each; {name!r} picks {len(found)}")
    own = {found[0].name: values[name] for name, found in places.items()}
    if not own:
        raise PvmlError("replace was given no tensors")
    if len(own) < len(values):
        raise PvmlError(f"replace was given two tensors for one name, among {', '.join(values)}")
    for name, new in own.items():
        if not isinstance(new, Tensor):
            raise PvmlError(f"replace takes tensors, got {type(new).__name__} for {name}")

    def put(name: str, x: Tensor) -> Tensor:
        new = own[name]
        return new.to(x) if new.shape == x.shape else new

    with listen(root, list(own), put, edits=True, overrides=True):
        yield


@contextmanager
def ablate(
    root: nn.Module,
    names: Names,
    *,
    head: int | None = None,
    value: float | Mapping[str, Tensor] = 0.0,
) -> Iterator[None]:
    """Within it, the picked tensors hold `value` instead: a number, or a tensor for each name.

    `head`: of a tensor with a head axis (q, k, v, z, the grids), only this head, counted from 0.

    Raises: PvmlError for names that pick nothing, a head the tensor does not have, a value whose
        shape cannot be spread over the tensor, or an ablation that was never reached.
    """
    axes = {place.name: place.point.axes.split() for place in matching(root, names)}
    for name, words in axes.items():
        if head is not None and "n_heads" not in words:
            raise PvmlError(f"head={head} was given, but {name} has no head axis: {words}")

    def silence(name: str, x: Tensor) -> Tensor:
        new = x.clone()
        part = new if head is None else _one_head(new, name, axes[name].index("n_heads"), head)
        filling = _value_for(name, value) if isinstance(value, Mapping) else value
        try:
            part.copy_(t.as_tensor(filling, dtype=x.dtype, device=x.device))
        except RuntimeError as problem:
            raise PvmlError(
                f"the value for {name} cannot be spread over {tuple(part.shape)}: {problem}"
            ) from problem
        return new

    with listen(root, names, silence, edits=True, overrides=head is None):
        yield


def _one_head(x: Tensor, name: str, axis: int, head: int) -> Tensor:
    if not 0 <= head < x.shape[axis]:
        raise PvmlError(f"{name} has heads 0 to {x.shape[axis] - 1}, got head={head}")
    return x.select(axis, head)


def _value_for(name: str, values: Mapping[str, Tensor]) -> Tensor:
    if name not in values:
        raise PvmlError(f"ablate was given no value for {name}")
    return values[name]


@contextmanager
def freeze_patterns(root: nn.Module, patterns: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it, each attention layer under `root` uses its given pattern, whatever it reads.

    `patterns` is a cache, or a mapping from `blocks.0.attn.attn_pattern` and so on to tensors.

    Raises: PvmlError where a layer's pattern is missing, has another shape, or is never reached.
    """
    layers = [place.name for place in matching(root, full_name("*", "attn_pattern"))]
    missing = [name for name in layers if name not in patterns]
    if missing:
        raise PvmlError(f"no pattern was given for {', '.join(missing)}")
    with replace(root, {name: patterns[name] for name in layers}):
        yield
