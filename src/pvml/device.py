"""The one place that asks what hardware there is, and that turns words into devices and dtypes."""

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch as t

from pvml.errors import PvmlError

DTYPES: dict[str, t.dtype] = {
    "float64": t.float64,
    "float32": t.float32,
    "bfloat16": t.bfloat16,
    "float16": t.float16,
}


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


def attention_arithmetic(device: t.device) -> AbstractContextManager[object]:
    """Within it, attention's grid is computed in the type that is fast there under autocast.

    On the CPU that is float32: backwards, the kernel takes twice as long in bfloat16.
    """
    if device.type == "cpu" and t.is_autocast_enabled("cpu"):
        return t.autocast("cpu", enabled=False)
    return nullcontext()
