"""One pass of a reader's module: its result, the tensors that it shows, and its manners."""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch as t
from torch import Tensor, nn

from pvml.parity.check import array_of
from pvml.parity.own_code import OwnClass, OwnError, told
from pvml.parity.own_names import names_called, places_of, taps, unknown_names
from pvml.parity.own_parameters import FROZEN
from pvml.parity.own_trials import Case
from pvml.parity.steps import INPUTS
from pvml.trace.tap import Listener, attached

_KEPT = 1e-9
"""Up to this share of a result, what another call gives may differ from it by rounding."""

_ANOTHER_WAY = 1e-5
"""The same of float32 as well."""


@dataclass(frozen=True)
class Own:
    """A module that has been given the numbers of a case."""

    origin: OwnClass
    module: nn.Module
    kind: str
    case: Case
    dtype: t.dtype

    @property
    def result(self) -> str:
        """The name of what the module gives."""
        return list(self.case.named)[-1]


@dataclass(frozen=True)
class Seen:
    """What one call gave."""

    out: Tensor
    """The result."""
    shown: dict[str, Tensor]
    """All that was tapped or returned by a name that is known, the result included."""
    unknown: tuple[str, ...] = ()
    """What was tapped or returned by another name, and is compared with nothing."""
    notes: tuple[str, ...] = ()
    """How the result was found among others."""


def watch(own: Own) -> tuple[list[str], Seen]:
    """What the module did that no module must do, and what it gave and showed.

    Raises: OwnError for what it raised, or if its result is no tensor.
    """
    inputs = inputs_of(own)
    before = {name: x.detach().clone() for name, x in _held_by(own.module).items()}
    with t.no_grad():
        seen = call(own, inputs)
        problems = _unsteady(own, seen.out)
        if problems:
            own.module.eval()
            seen = call(own, inputs)
        else:
            problems = _otherwise_in_eval(own, seen.out)
    for name, untouched in inputs_of(own).items():
        if not _same(inputs[name], untouched):
            which = "its input" if name == "x" else f"its argument {name}"
            problems.append(
                f"forward changes {which} in place, which others still read: write x = x + y, not "
                f"x += y"
            )
    after = _held_by(own.module)
    changed = [name for name, x in before.items() if name in after and not _same(after[name], x)]
    if changed:
        problems.append(f"forward changes the module itself: {', '.join(changed)}")
    return problems, seen


def kept_from_before(own: Own, fresh: nn.Module) -> str:
    """What is to be said of a module that is right and not by itself; empty: nothing.

    A call on the first half of the positions must give the first half, whatever was called before:
    no position reads a later one. So must one on sequences in another order give these. fresh:
    another module with the same numbers, never called.
    """
    whole = own.case.x.shape[1]
    half = whole // 2
    if half < 2:
        return ""
    for module in (own.module, fresh):
        for n, turned in ((half, 0), (half + 1, 0), (whole, 0), (whole, 1)):
            wrong, *code = _wrong_at(replace(own, module=module), n, turned).splitlines() or [""]
            if wrong:
                which = "with fewer positions" if n == half else "after a shorter one"
                which = "on other sequences of the same shape" if turned else which
                told = f"a call {which} {wrong}: is something kept from the first call, as a mask?"
                return "\n".join([told, *code])
    return ""


def _wrong_at(own: Own, n: int, turned: int) -> str:
    """What is wrong with a call on the first n positions, lines of code after it; or nothing.

    turned: by how many the sequences of the batch move on.
    """
    inputs = {name: x[:, :n].roll(turned, 0).contiguous() for name, x in inputs_of(own).items()}
    truth = np.roll(own.case.named[own.result][:, :n], turned, 0)
    seen = np.ones(truth.shape[:2], bool)
    if own.case.judged is not None:
        seen = np.roll(own.case.judged[:, :n], turned, 0)
    try:
        with t.no_grad():
            out = array_of(call(own, inputs).out)
    except OwnError as error:
        return f"raises\n{error}"
    if out.shape == truth.shape:
        off = float(np.abs(out - truth)[seen].max(initial=0.0))
        if off <= _KEPT * float(np.abs(truth).max()):
            return ""
    return "gives something else than it should"


def _held_by(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _unsteady(own: Own, first: Tensor) -> list[str]:
    """Whether a second call on the same numbers gives something else."""
    if _same(first, call(own, inputs_of(own)).out):
        return []
    own.module.eval()
    steady = _same(*(call(own, inputs_of(own)).out for _ in range(2)))
    return [
        "two calls on the same input give different outputs"
        + (
            ", except after .eval(): there is dropout in it, which these models do not have"
            if steady
            else ": is dropout on (F.dropout is, unless training=False), or is memory read that "
            "torch.empty did not fill?"
        )
    ]


def _otherwise_in_eval(own: Own, in_training: Tensor) -> list[str]:
    """What is to be said if the module gives something else after `.eval()`."""
    own.module.eval()
    try:
        out = call(own, inputs_of(own)).out
        if out.shape == in_training.shape and _near(out, in_training):
            return []
        said = "gives something else"
    except OwnError as error:
        said = f"raises an error: {error}"
    finally:
        own.module.train()
    return [
        f"after .eval() it {said}; these models have no dropout, and do the same in training and "
        f"after it"
    ]


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether they differ by no more than another order of summation, NaN with NaN."""
    size = float(other.nan_to_num(0, 0, 0).abs().max()) if other.numel() else 0.0
    return t.allclose(one, other, rtol=0, atol=_ANOTHER_WAY * size, equal_nan=True)


def misfits(own: Own, out: Tensor) -> list[str]:
    """What is wrong with a result whatever its numbers should be."""
    problems = []
    if out.dtype != own.dtype:
        problems.append(
            f"the output is of {out.dtype}, the input and the parameters of {own.dtype}: something "
            f"on the way is made in a type of its own"
        )
    truth = own.case.named[own.result]
    if out.shape == truth.shape and np.isfinite(truth).all():
        bad = (~out.isfinite()).nonzero()
        if len(bad):
            where = ", ".join(map(str, bad[0].tolist()))
            problems.append(
                f"the output has {len(bad)} of {out.numel()} numbers that are NaN or infinite, the "
                f"first at [{where}]"
            )
    return problems


def gradients(own: Own) -> tuple[list[str], dict[str, np.ndarray]]:
    """Which parameters no gradient reached, and the gradients of the others and of the inputs.

    Raises: OwnError for what forward or autograd raised.
    """
    inputs = {
        name: x.requires_grad_() if x.is_floating_point() else x
        for name, x in inputs_of(own).items()
    }
    parameters = {
        name: x for name, x in own.module.named_parameters() if name in own.case.parameters
    }
    for x in parameters.values():
        x.requires_grad_()
    with t.enable_grad():
        out = call(own, inputs).out
        if not out.requires_grad:
            raise OwnError(
                f"{own.origin.file.name}: no gradient can flow from the output: it is cut off by "
                f".detach(), .data, torch.no_grad(), torch.tensor(...) or NumPy"
            )
        d_out = t.from_numpy(own.case.d_out).to(own.dtype, copy=True)
        with _told_going_back(own, inputs):
            t.autograd.backward(out, d_out)
    qk_input = "attn.qk_input" if own.kind == "block" else "qk_input"
    names = {"x": INPUTS.get(own.kind, "embed.in"), "positions": qk_input}
    sought = {**parameters, **{names[name]: x for name, x in inputs.items() if x.requires_grad}}
    lost = [
        name
        for name, x in sought.items()
        if x.grad is None and name.rpartition(".")[2] not in FROZEN
    ]
    problems = [
        f"no gradient reaches {', '.join(lost)}: forward does not use it, or cuts it off "
        f"(.detach(), .data, torch.no_grad(), torch.tensor(...))"
    ]
    return problems if lost else [], {
        name: array_of(x.grad) for name, x in sought.items() if x.grad is not None
    }


@contextmanager
def _told_going_back(own: Own, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """What autograd raises, with the line of forward that it is about, as far as it can be told."""
    try:
        with told(own.origin.file, "going backwards"):
            yield
    except OwnError as error:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                with t.autograd.detect_anomaly():
                    out = call(own, inputs).out
                    t.autograd.backward(out, t.ones_like(out))
            except (RuntimeError, OwnError):
                pass
        traced = "\n".join(str(each.message) for each in heard)
        lines = re.findall(rf'File "{re.escape(str(own.origin.file))}", line (\d+)', traced)
        about = f"\n  it is about what line {lines[-1]} computed" if lines else ""
        raise OwnError(f"{error}{about}") from error


def inputs_of(own: Own) -> dict[str, Tensor]:
    """Fresh tensors for forward, by the names of its parameters; the first is called `x` here."""
    case = own.case
    x = t.from_numpy(case.x.copy())
    inputs = {"x": x.to(own.dtype) if x.is_floating_point() else x}
    if case.added is not None:
        inputs["positions"] = t.from_numpy(case.added.copy()).to(own.dtype)
    if case.real is not None:
        real = t.from_numpy(case.real.copy())
        if own.kind == "pos_embed":
            inputs["places"] = (real.long().cumsum(1) - 1).clamp(min=0)
        else:
            inputs["real"] = real
    return inputs


def call(own: Own, inputs: Mapping[str, Tensor]) -> Seen:
    """One call of the module, and what it showed."""
    heard: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> None:
        heard[name] = x.detach().clone()

    x, *others = inputs.items()
    doing, forward = f"running forward on {tuple(x[1].shape)}", type(own.module).forward
    found = taps(own.module)
    with (
        names_called(found) as called,
        attached(places_of(found), Listener(keep)),
        told(own.origin.file, doing, forward),
    ):
        answer = own.module(x[1], **dict(others))
    out = _result(own, answer)
    returned = {}
    if isinstance(answer, dict):
        returned = {str(k): x for k, x in answer.items() if x is not None}
    known = list(own.case.named)
    named = {name: x for name, x in {**heard, **returned}.items() if name in known}
    named[own.result] = out
    for name, x in named.items():
        if not _is_plain(x):
            raise OwnError(
                f"{own.origin.file.name}: {name} is no dense tensor of real numbers on the CPU, as "
                f"x is"
            )
    notes = []
    if isinstance(answer, tuple | list):
        notes.append(
            f"forward gives a {type(answer).__name__} of {len(answer)}: the first is taken for "
            f"{own.result}, and what follows is compared with nothing"
        )
    return Seen(
        out,
        {name: x.detach().clone() for name, x in named.items()},
        unknown=(
            *unknown_names("tapped", called, known),
            *unknown_names("returned", returned, known),
        ),
        notes=tuple(notes),
    )


def _result(own: Own, answer: object) -> Tensor:
    """The result among what forward gave: alone, first of several, or by its name."""
    found = answer
    if isinstance(answer, tuple | list) and answer:
        found = answer[0]
    if isinstance(answer, dict):
        found = answer.get(own.result)
        if found is None:
            raise OwnError(
                f"{own.origin.file.name}: forward gave a dict without {own.result!r}, its result: "
                f"it has {', '.join(map(str, answer)) or 'nothing'}"
            )
    if not isinstance(found, Tensor):
        missing = ": is a return missing?" if found is None else ""
        raise OwnError(
            f"{own.origin.file.name}: forward gave {type(found).__name__}, not a tensor{missing}"
        )
    if not found.is_floating_point():
        raise OwnError(
            f"{own.origin.file.name}: forward gave numbers of {found.dtype}, where {own.result} is "
            f"of {own.dtype}"
        )
    return found


def _is_plain(x: object) -> bool:
    if not isinstance(x, Tensor) or x.is_nested or x.is_quantized or x.is_complex():
        return False
    return x.layout == t.strided and x.device.type == "cpu"


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether every number is the same, NaN the same as NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
