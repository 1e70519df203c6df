"""The parameters of a reader's module: are they there, by name and shape, and can they be set."""

import difflib
from collections.abc import Mapping

import numpy as np
import torch as t
from torch import Tensor, nn

from pvml.config import Config
from pvml.parity.own_trials import shapes_for
from pvml.trace.points import PARAMETERS

FROZEN = ("b_U",)
"""Parameters that may be without a gradient, or buffers: GPT-2 has none there."""
_KIND_AT = {"ln1": "ln", "ln2": "ln", "ln_final": "ln"}


def problems_of_parameters(module: nn.Module, kind: str, cfg: Config) -> tuple[list[str], bool]:
    """What is wrong with them, a line each, and whether the module can be tried all the same."""
    wanted = shapes_for(kind, cfg)
    here = {**_buffers(module, wanted), **dict(module.named_parameters(remove_duplicate=False))}
    unexpected = [name for name in here if name not in wanted]
    blocking = []
    for name, shape in wanted.items():
        needs = f"{name} {shape} ({axes_of(kind, name)})"
        if name not in here:
            blocking.append(f"missing: {needs}{_instead(module, name, unexpected)}")
            continue
        x = here[name]
        if nn.parameter.is_lazy(x) or x.is_meta:
            blocking.append(f"{name} holds no numbers yet: make it of shape {shape}")
        elif tuple(x.shape) != shape:
            turned = sorted(x.shape) == sorted(shape)
            blocking.append(
                f"wrong shape: {name} is {tuple(x.shape)}, expected {needs.removeprefix(name)[1:]}"
                + (": the axes are in another order" if turned else "")
            )
        elif not x.is_floating_point():
            blocking.append(f"{name} is of {x.dtype}: a parameter holds floating-point numbers")
    blocking += _shared({name: here[name] for name in wanted if name in here})
    loose = [f"unexpected: {name} {_shape(here[name])}" for name in unexpected]
    loose += [
        f"{name} has requires_grad=False: it would never be trained"
        for name, x in here.items()
        if name in wanted and name.rpartition(".")[2] not in FROZEN and not x.requires_grad
    ]
    missing = [name for name in wanted if name not in here]
    return [*blocking, *loose, *_rewritten(missing, unexpected)], not blocking


def fill(module: nn.Module, parameters: Mapping[str, np.ndarray], dtype: t.dtype) -> None:
    """The module on the CPU and in this type, with these numbers as its parameters."""
    module.to(device="cpu", dtype=dtype)
    here = {**_buffers(module, parameters), **dict(module.named_parameters())}
    with t.no_grad():
        for name, array in parameters.items():
            here[name].copy_(t.from_numpy(array))


def axes_of(kind: str, name: str) -> str:
    """What the axes of a parameter mean, from the table of names."""
    path, _, short = name.rpartition(".")
    holder = path.rpartition(".")[2] or kind
    table = PARAMETERS[_KIND_AT.get(holder, holder)]
    return next(axes for names, (axes, _) in table.items() if short in names.split(", "))


def _buffers(module: nn.Module, wanted: Mapping[str, object]) -> dict[str, Tensor]:
    """Buffers that stand for a frozen parameter."""
    return {
        name: x
        for name, x in module.named_buffers()
        if name in wanted and name.rpartition(".")[2] in FROZEN
    }


def _rewritten(missing: list[str], unexpected: list[str]) -> list[str]:
    """How torch's own layers, whose parameters are not read, are to be written instead."""
    theirs = any(name.rpartition(".")[2] in ("weight", "bias") for name in unexpected)
    short = {name.rpartition(".")[2] for name in missing}
    hints = []
    if any(name.startswith(("W_", "b_")) for name in short):
        hints.append(
            "each matrix and bias is an nn.Parameter of its own, by this name and shape: (in, "
            "out), where nn.Linear's weight is (out, in)"
        )
    if short & {"w", "b"}:
        hints.append("a LayerNorm's weight and bias are called w and b")
    if any("attn" in name or "qkv" in name for name in unexpected):
        hints.append("what c_attn holds side by side are W_Q, W_K and W_V, a matrix per head")
    return [f"torch's own layers are not read: {'; '.join(hints)}"] if theirs and hints else []


def _instead(module: nn.Module, name: str, unexpected: list[str]) -> str:
    """What is there in place of a parameter that is missing; empty if nothing is."""
    path, _, short = name.rpartition(".")
    try:
        holder = module.get_submodule(path)
    except AttributeError:
        return f"; there is no {path}"
    found = getattr(holder, short, None)
    if isinstance(found, nn.Linear):
        return f"; {name} is an nn.Linear, whose one matrix is (out, in): use nn.Parameter"
    if isinstance(found, nn.Module):
        return f"; {name} is a module: use nn.Parameter"
    if short in holder._buffers:
        return f"; {name} is a buffer, which is never trained: use nn.Parameter"
    if isinstance(found, Tensor):
        return f"; {name} is a plain tensor, which is never trained or saved: use nn.Parameter"
    close = difflib.get_close_matches(name, unexpected, n=1)
    return f"; is it {close[0]}?" if close else ""


def _shared(here: Mapping[str, Tensor]) -> list[str]:
    seen: dict[int, str] = {}
    found = []
    for name, x in here.items():
        first = seen.setdefault(id(x), name)
        if first != name:
            found.append(f"{first} and {name} are one and the same parameter")
    return found


def _shape(x: Tensor) -> str:
    return "(lazy)" if nn.parameter.is_lazy(x) else str(tuple(x.shape))
