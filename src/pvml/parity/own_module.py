"""A reader's own module against the reference: every tensor that it shows, and every gradient.

The class has the constructor and the parameter names of ours; how it computes is its own affair.
What its code raises, and what it does that a module must not do, is told as its mistake.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch as t
from torch import nn

from pvml.config import Config
from pvml.parity.check import ROUNDINGS, Row, array_of, compare, rounding_allowed
from pvml.parity.diagnosis import MISTAKES, explanations, given
from pvml.parity.own_code import KINDS, OwnClass, OwnError, beside, told
from pvml.parity.own_names import names_taken, untaken
from pvml.parity.own_parameters import fill, problems_of_parameters
from pvml.parity.own_pass import Own, gradients, kept_from_before, misfits, watch
from pvml.parity.own_report import GRADIENT, ModuleReport, TrialReport
from pvml.parity.own_signs import signs
from pvml.parity.own_trials import ALSO_TAKES, Trial, case_of, config_of, trials_for
from pvml.parity.passes import require_gradient_through_norms
from pvml.parity.steps import steps_of
from pvml.reference.numpy_forward import Tensors

EXACT = 1e-12
"""The largest relative difference in float64, as for models of this size."""
ZERO = 1e-10
"""A gradient this small beside the largest is zero but for rounding, and judged beside that."""
_WITH_NORMS = ("ln", "block", "transformer")
EXPLAINED = 1e-9
"""How close a mistake's numbers must come to the module's, relative, in float64."""


def check_module(
    own: OwnClass, *, seed: int = 0, backward: bool = True, sizes: Mapping[str, int] | None = None
) -> ModuleReport:
    """A class in its trials: parameters, outputs, gradients, manners, and the likely cause.

    backward: also compare the gradients of parameters and input, under a seeded gradient at the
    output. sizes: fields of the config that differ from the small ones used otherwise.

    Raises: PvmlError for sizes that no model can have.
    """
    kind = KINDS[own.kind]
    cfg = config_of(dict(sizes or {}), kind)
    if backward and kind in _WITH_NORMS:
        require_gradient_through_norms(cfg.d_model)
    with beside(own.file), _torch_left_as_it_was():
        try:
            problems, can_run = problems_of_parameters(_built(own, cfg), kind, cfg)
        except OwnError as error:
            return ModuleReport(own=own, cfg=cfg, problems=(str(error),))
        takes = names_taken(own.cls)
        trials = trials_for(kind, cfg, frozenset(takes)) if can_run else []
        tried: list[TrialReport] = []
        for trial in trials:
            explain = all(one.ok for one in tried)
            tried.append(_tried(own, kind, cfg, trial, seed, backward, explain))
    untried = untaken(takes, ALSO_TAKES.get(kind, ()))
    return ModuleReport(
        own=own, cfg=cfg, problems=tuple(problems), trials=tuple(tried), untried=untried
    )


@contextmanager
def _torch_left_as_it_was() -> Iterator[None]:
    """Whatever a class does to torch's generator or default type ends with its check."""
    dtype = t.get_default_dtype()
    try:
        with t.random.fork_rng(devices=[]):
            yield
    finally:
        t.set_default_dtype(dtype)


def _built(own: OwnClass, cfg: Config) -> nn.Module:
    t.manual_seed(0)
    with told(own.file, f"making {own.cls.__name__}(cfg)", vars(own.cls).get("__init__")):
        module: object = own.cls(cfg)
    if not isinstance(module, nn.Module):
        given = type(module).__name__
        raise OwnError(f"{own.file.name}: {own.cls.__name__}(cfg) gave {given}, not a module")
    if "_parameters" not in vars(module):
        raise OwnError(
            f"{own.file.name}: {own.cls.__name__}.__init__ does not call super().__init__(), which "
            f"every module must, first of all"
        )
    return module


def _tried(
    own: OwnClass,
    kind: str,
    cfg: Config,
    trial: Trial,
    seed: int,
    backward: bool,
    explain: bool,
) -> TrialReport:
    """One trial, of a module made for it. explain: look for the likely cause if it fails."""
    case = case_of(kind, cfg, trial, seed)
    report = TrialReport(
        says=trial.says, dtype=str(trial.dtype).removeprefix("torch."), hint=trial.hint
    )
    try:
        module = _built(own, case.cfg)
        problems, can_run = problems_of_parameters(module, kind, case.cfg)
        if not can_run:
            return replace(report, problems=tuple(problems))
        _fill(own, module, case.parameters, trial.dtype)
        mine = Own(own, module, kind, case, trial.dtype)
        problems, seen = watch(mine)
    except OwnError as error:
        return replace(report, problems=(str(error),))
    shown = {name: array_of(x) for name, x in seen.shown.items()}
    report = replace(
        report,
        rows=_forward_rows(mine, shown),
        problems=(*problems, *misfits(mine, seen.out)),
        unknown=seen.unknown,
        notes=seen.notes,
    )
    if not report.ok:
        if not explain:
            return report
        # what else a module did wrong explains its numbers
        causes = () if problems else _causes(mine, shown)
        return replace(report, causes=causes, problems=(*report.problems, *_unused(mine, backward)))
    try:
        if kept := _kept(mine):
            return replace(report, problems=(kept,))
        if not backward:
            return report
        lost, found = gradients(mine)
    except OwnError as error:
        return replace(report, problems=(str(error),))
    return replace(
        report,
        rows=report.rows + _gradient_rows(mine, found),
        problems=tuple(lost),
        hint=trial.hint_back or trial.hint,
    )


def _unused(own: Own, backward: bool) -> list[str]:
    """Parameters that no gradient reaches, of a module that is wrong; nothing where none can run.

    One that is taken for another, as W_Q for W_K, leaves the other without.
    """
    try:
        return gradients(own)[0] if backward else []
    except OwnError:
        return []


def _fill(own: OwnClass, module: nn.Module, numbers: Tensors, dtype: t.dtype) -> None:
    with told(own.file, f"moving it to {dtype}"):
        fill(module, numbers, dtype)


def _kept(own: Own) -> str:
    """What one call leaves behind for the next, as a sentence; in float64 alone, where it shows."""
    if own.dtype != t.float64:
        return ""
    fresh = _built(own.origin, own.case.cfg)
    _fill(own.origin, fresh, own.case.parameters, own.dtype)
    return kept_from_before(own, fresh)


def _forward_rows(own: Own, shown: Mapping[str, np.ndarray]) -> tuple[Row, ...]:
    case = own.case
    truth = case.counted({name: x for name, x in case.named.items() if name in shown})
    allowed: float | dict[str, float] = EXACT
    if own.dtype != t.float64:
        rounded = case.counted({name: case.rounded[name] for name in truth})
        allowed = rounding_allowed(truth, rounded, own.dtype)
    return compare(case.counted(shown), truth, allowed, unit=t.finfo(own.dtype).eps)


def _gradient_rows(own: Own, found: Mapping[str, np.ndarray]) -> tuple[Row, ...]:
    """A row for each gradient that was found, in the reference's order."""
    truth = {name: right for name, right in own.case.gradients.items() if name in found}
    unit, scales = t.finfo(own.dtype).eps, _scales(truth)
    allowed: float | dict[str, float] = EXACT
    if own.dtype != t.float64:
        rounded = {name: own.case.rounded_gradients[name] for name in truth}
        allowed = {
            row.name: ROUNDINGS * max(row.relative, unit)
            for row in compare(rounded, truth, 0.0, scales=scales)
        }
        if own.case.large:  # in which gradient large scores cost digits depends on the way taken
            allowed = max(allowed.values(), default=EXACT)
    rows = compare(found, truth, allowed, unit=unit, scales=scales)
    return tuple(replace(row, name=f"{GRADIENT}{row.name}") for row in rows)


def _scales(truth: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest gradient, for each that is zero but for rounding.

    b_K's always is: what it adds to a row of scores is the same for all of them.
    """
    sizes = {name: float(np.abs(right).max(initial=0.0)) for name, right in truth.items()}
    largest = max(sizes.values(), default=0.0)
    return {name: largest for name, size in sizes.items() if size <= ZERO * largest}


def _causes(own: Own, shown: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """What would give the module's own numbers; where nothing known does, what it does wrong."""
    return _by_numbers(own, shown) or signs(own, shown)


def _by_numbers(own: Own, shown: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Mistakes that give the module's own result, or else the first tensor of it that is wrong.

    In float64 only, where they can be told apart; where all is NaN, that fits too much.
    """
    if own.dtype != t.float64 or own.kind not in MISTAKES:
        return ()
    case = own.case
    state = given(own.kind, case.cfg, case.parameters, case.x, real=case.real, added=case.added)
    steps = steps_of(own.kind, state)
    wrong = [row.name for row in _forward_rows(own, shown) if not row.ok and row.name in steps]
    for name in (own.result, *wrong[:1]):
        if not np.isfinite(shown[name]).any():
            continue
        found = explanations(own.kind, state, {name: shown[name]}, EXPLAINED, judged=case.judged)
        if found:
            told = ("; and ".join(sentences) for sentences in found)
            where = "" if name == own.result else f"in {name}, "
            return tuple(f"{where}{each}" for each in told)
    return ()
