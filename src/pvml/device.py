"""The one place that asks what hardware there is, and that turns words into devices and dtypes."""

import warnings

import torch as t
from torch import Tensor

from pvml.errors import PvmlError

DTYPES: dict[str, t.dtype] = {
    "float64": t.float64,
    "float32": t.float32,
    "bfloat16": t.bfloat16,
    "float16": t.float16,
}
LONGEST_IN_PIECES = 512
"""Positions of a row, up to which training on a CPU takes attention in pieces."""


def pick_device(asked: str | t.device | None = None) -> t.device:
    """The device asked for; unset: an accelerator (CUDA, ROCm, MPS) where there is one, or the CPU.

    Raises: PvmlError for a word that names no device, or a device that this machine does not have.
    """
    if asked is None:
        return t.accelerator.current_accelerator() or t.device("cpu")
    try:
        with warnings.catch_warnings(action="ignore"):  # retired words, which are refused below
            device = t.device(asked)
    except (RuntimeError, TypeError) as problem:
        raise PvmlError(
            f"device {asked!r} is not a device: use cpu, cuda, cuda:1, mps, ..."
        ) from problem
    here = t.accelerator.current_accelerator()
    if device.type not in ("cpu", here.type if here else "cpu"):
        raise PvmlError(
            f"device {str(device)!r} was asked for, but this machine offers "
            f"{f'cpu and {here.type}' if here else 'cpu only'}"
        )
    if here and device.type == here.type and (device.index or 0) >= t.accelerator.device_count():
        raise PvmlError(
            f"device {str(device)!r} was asked for, but there are only "
            f"{t.accelerator.device_count()} of kind {here.type}"
        )
    return device


def pick_dtype(asked: str | t.dtype) -> t.dtype:
    """The floating dtype asked for, as a word (`"bfloat16"`) or as torch's own object.

    Raises: PvmlError for anything that is not one of the four floating dtypes PvML computes in.
    """
    dtype = DTYPES.get(asked) if isinstance(asked, str) else asked
    if dtype is None or dtype not in DTYPES.values():
        raise PvmlError(f"dtype must be one of {', '.join(DTYPES)}, got {asked!r}")
    return dtype


def product_dtype(x: Tensor) -> t.dtype:
    """The type in which `x` is multiplied by weights: autocast's, where that acts, or its own."""
    if x.dtype == t.float32 and t.is_autocast_enabled(x.device.type):
        return t.get_autocast_dtype(x.device.type)
    return x.dtype


def attention_kernel_dtype(x: Tensor) -> t.dtype:
    """The type in which PyTorch's attention kernel is fast on `x`.

    On a CPU under autocast that is float32: backwards, it takes twice as long in bfloat16.
    """
    on_cpu = x.device.type == "cpu" and t.is_autocast_enabled("cpu")
    return t.promote_types(x.dtype, t.float32) if on_cpu else x.dtype


def attends_in_pieces(q: Tensor) -> bool:
    """Whether attention over (batch, posn, ...) is faster piece by piece than by PyTorch's kernel.

    On a CPU it is where gradients will be asked for. Pieces keep their part of the grid for them,
    so rows that are longer go to the kernel, which does not.
    """
    differentiated = q.requires_grad and t.is_grad_enabled()
    return q.device.type == "cpu" and differentiated and 0 < q.shape[1] <= LONGEST_IN_PIECES
