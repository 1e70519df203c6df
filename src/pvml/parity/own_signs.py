"""A reader's class that no known mistake explains: what it does tells, where its numbers do not.

Where NaN or infinity begins; whether positions read later ones; where a smaller type is used.
"""

import linecache
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch as t
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pvml.parity.check import array_of, compare, rounding_allowed
from pvml.parity.own_code import OwnError
from pvml.parity.own_pass import Own, call, inputs_of
from pvml.parity.own_trials import READS_OTHERS

_LITTLE = 1e-3
"""Up to this share of a result may hang on later positions where the mask is there, but leaks."""
_ROUNDINGS = 100
"""In units of the type's eps, what moves with later positions by rounding alone, at most."""
_OVERFLOWING = ("exp", "exp2", "expm1", "sinh", "cosh")
_IN_BOTH = (
    "in a softmax, subtract the row's maximum first, as torch.softmax does; in a GELU, torch.tanh "
    "does not overflow"
)
_INSTEAD = {
    "attn": "subtract the row's maximum first, as torch.softmax does",
    "mlp": "torch.tanh and torch.sigmoid do not",
    "block": _IN_BOTH,
    "transformer": _IN_BOTH,
}


def signs(own: Own, shown: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """The likely cause as a sentence, if what the module does tells one; else nothing.

    shown: what a pass gave, by name. The trials before have passed.
    """
    result = shown[own.result]
    if result.shape != own.case.named[own.result].shape:
        return ()
    watch = _Watch(own)
    try:
        with t.no_grad(), watch:
            call(own, inputs_of(own))
        if not np.isfinite(result).all():
            found = watch.not_finite
        else:
            found = (
                _reads_padding(own, result)
                or _reads_later(own, result)
                or _in_smaller_type(own, shown, watch)
            )
    except OwnError:  # on a trial's own input it would have been told; on another it is no matter
        return ()
    return (found,) if found else ()


def _reads_later(own: Own, result: np.ndarray) -> str:
    """What is to be said if the first half changes with the second; empty: it does not."""
    half = result.shape[1] // 2
    if own.kind not in READS_OTHERS or not half:
        return ""
    inputs = inputs_of(own)
    later = inputs["x"][:, half:]
    inputs["x"][:, half:] = (
        -later if later.is_floating_point() else own.case.cfg.d_vocab - 1 - later
    )
    with t.no_grad():
        changed = array_of(call(own, inputs).out)
    off = np.abs(changed - result)
    if own.case.judged is not None:
        off[~own.case.judged] = 0
    by = float(off[:, :half].max()) / (float(np.abs(result).max()) or 1.0)
    if not by > _ROUNDINGS * t.finfo(own.dtype).eps:
        return ""
    if own.case.large or by < _LITTLE:
        how = " where scores are large" if own.case.large else ", a little"
        return (
            f"positions read later ones{how}: the mask puts a number there that is not small "
            f"enough, where -inf belongs"
        )
    return (
        "positions read later ones: the mask does not hide all of them, or comes too late; tap "
        "what is on the way, self.tap.at(NAME, tensor), to see what is wrong first"
    )


def _reads_padding(own: Own, result: np.ndarray) -> str:
    """What is to be said if real positions change with padding; empty: they do not."""
    real = own.case.judged
    if real is None:
        return ""
    inputs = inputs_of(own)
    inputs["x"][~t.from_numpy(real)] *= -1
    with t.no_grad():
        changed = array_of(call(own, inputs).out)
    by = float(np.abs(changed - result)[real].max()) / (float(np.abs(result).max()) or 1.0)
    if not by > _ROUNDINGS * t.finfo(own.dtype).eps:
        return ""
    return (
        "real positions read padding: its scores are not hidden, or by a number that is not small "
        "enough, where -inf belongs"
    )


def _in_smaller_type(own: Own, shown: Mapping[str, np.ndarray], watch: "_Watch") -> str:
    """Where a smaller type is computed in, if the numbers are right but for its rounding."""
    if own.dtype != t.float64:
        return ""
    dtype, said = watch.smaller or (t.float32, "")
    case = own.case
    truth = case.counted({name: case.named[name] for name in shown})
    rounded = case.counted({name: case.rounded[name] for name in truth})
    allowed = rounding_allowed(truth, rounded, dtype)
    if not all(row.ok for row in compare(case.counted(shown), truth, allowed)):
        return ""
    return said or (
        "all is right but for float32's rounding: something computes in float32 inside, or a "
        "constant is written with too few digits"
    )


class _Watch(TorchFunctionMode):
    """Keeps, while it is open, the first call that makes NaN or infinity, or a smaller type.

    Each as a sentence. -inf, which masks are made of, is let pass.
    """

    def __init__(self, own: Own) -> None:
        super().__init__()
        self.own = own
        self.not_finite = ""
        self.smaller: tuple[t.dtype, str] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        read = list(_tensors((args, kwargs)))
        # looked at now, since the call may change them in place
        sound = bool(read) and not any(_broken(x) for x in read)
        hidden = any(bool((x == -t.inf).all(-1).any()) for x in read if x.ndim)
        out = func(*args, **kwargs)
        made = list(_tensors(out))
        name = getattr(func, "__name__", str(func)).strip("_")
        if not self.not_finite and sound and any(_broken(x) for x in made):
            self.not_finite = self._with_line(self._why(name, hidden))
        self._keep_smaller(name, read, made)
        return out

    def _why(self, name: str, hidden: bool) -> str:
        if name in _OVERFLOWING and self.own.kind in _INSTEAD:
            return f"{name} overflows: {_INSTEAD[self.own.kind]}"
        if "softmax" in name and hidden:
            return "a row of scores is -inf throughout: the mask leaves a position nothing to read"
        return f"NaN or infinity begins here, with {name}"

    def _keep_smaller(self, name: str, read: list[Tensor], made: list[Tensor]) -> None:
        mine = self.own.dtype
        small = [x.dtype for x in made if x.dtype.itemsize < mine.itemsize]
        if small and self.smaller is None and any(x.dtype == mine for x in read):
            plain = str(small[0]).removeprefix("torch.")
            told = self._with_line(f"something computes in {plain} inside: leave the type as it is")
            self.smaller = small[0], told

    def _with_line(self, said: str) -> str:
        """The sentence with the line of the reader's file that is being run."""
        file = self.own.origin.file
        frame = sys._getframe()
        while frame.f_code.co_filename != str(file):
            if frame.f_back is None:
                return said
            frame = frame.f_back
        linecache.checkcache(str(file))  # it may have been another text when a line was last told
        line = linecache.getline(str(file), frame.f_lineno).strip()
        return f"{file.name}, line {frame.f_lineno}: {said}\n    {line}"


def _tensors(held: Any) -> Iterator[Tensor]:
    """The floating-point tensors in an argument or a result, lists and dicts looked through."""
    if isinstance(held, Tensor):
        if held.is_floating_point():
            yield held
    elif isinstance(held, dict):
        yield from _tensors(list(held.values()))
    elif isinstance(held, list | tuple):
        for each in held:
            yield from _tensors(each)


def _broken(x: Tensor) -> bool:
    """Whether NaN or +infinity is in it."""
    return bool((x.isnan() | (x == t.inf)).any())
