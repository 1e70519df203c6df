"""A model against a reference, both ways, forwards and backwards: what is wrong first, and why.

Module by module, each reads the reference's own tensors; end to end, all starts from token ids. The
first tells where a mistake is, the second what it does. Backwards, the loss is the mean next-token
cross-entropy.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.modules.embedding import check_length, check_tokens
from pvml.modules.transformer import Transformer
from pvml.parity import passes
from pvml.parity.cause import Wrong, causes
from pvml.parity.check import (
    ROUNDINGS,
    Row,
    array_of,
    compare,
    compare_returned,
    float64_allowed,
    not_finite,
    parameters_of,
    unmatched,
)
from pvml.parity.passes import Arrays
from pvml.parity.references import Errors, Reference, gradient_scales
from pvml.parity.rounding_sizes import sizes_for_float64, sizes_of_terms
from pvml.parity.verification import (
    GRADIENTS,
    PARAMETERS,
    TENSORS,
    Finding,
    Section,
    Verification,
)


def verify(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    reference: Reference,
    *,
    backward: bool = False,
) -> Verification:
    """Every named tensor, and with `backward` every gradient, both ways; the first that is wrong.

    So are the logits that the model returns: a hook may have changed them after they were named.
    Allowed, relative to a tensor's largest value: in float64 1e-12, or 1e-10 from ten million
    parameters on; in a narrower type, 16 times what the reference itself is off in that type, and
    never less than 16 units of rounding. What is more in float64 is no mistake where the
    error in float32, scaled to float64, is as large; and sums that cancel are measured by their
    terms. Parameters that the reference read itself must be equal.
    A type of 16 bits is too coarse to show another epsilon or GELU: what agrees there is looked at
    in float64 once more. The model computes on its device, the reference on the CPU.

    Raises: PvmlError for tokens that the model cannot read, or too few, or gradients where there
    are none: they would prove nothing.
    """
    check_tokens(tokens, model.cfg)
    check_length(tokens.shape[1], model.cfg)
    least = 2 if backward else 1
    if not tokens.numel() or tokens.shape[1] < least:
        what = "gradients (--backward)" if backward else "tensors"
        raise PvmlError(
            f"to compare {what} takes rows of at least {least} tokens, got shape {(*tokens.shape,)}"
        )
    kinds = {name: x.dtype for name, x in model.state_dict().items() if x.is_floating_point()}
    if len({*kinds.values()}) > 1:
        odd = [name for name, kind in kinds.items() if kind != model.dtype]
        raise PvmlError(
            f"the model's parameters are of several types: {odd[0]} is {kinds[odd[0]]}, and "
            f"others are {model.dtype}. Bring them to one, as model.double() does"
        )
    if backward and model.cfg.normalization == "LN":
        passes.require_gradient_through_norms(model.cfg.d_model)
    parameters = parameters_of(model)
    missing, unexpected = unmatched(parameters, model.cfg)
    found = Verification(
        title=reference.title,
        short=reference.short,
        dtype=str(model.dtype).removeprefix("torch."),
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        not_finite=not_finite(parameters),
    )
    if missing or found.not_finite:
        return found
    ids = tokens.cpu()
    truth = Truth(
        reference,
        ids,
        reference.tensors(ids),
        reference.gradients(ids) if backward else None,
        float64_allowed(reference.parameters),
    )
    sections = tuple(truth.sections(model))
    finding = _first_wrong(sections)
    coarse = t.finfo(model.dtype).eps > t.finfo(t.float32).eps
    again = finding is None and coarse
    if again:
        finding = _hidden(model, truth)
    elif finding is not None:
        finding = _explained(finding, model, truth)
    return replace(
        found,
        sections=sections,
        reached=reference.reached,
        finding=finding,
        again_in_float64=again,
    )


@dataclass(frozen=True)
class Truth:
    """What a reference says of some tokens, and how a model is compared with that."""

    reference: Reference
    tokens: Int[Tensor, "batch posn"]
    tensors: Arrays
    gradients: Arrays | None
    exact: float
    """What is allowed in float64."""

    def sections(self, model: Transformer) -> list[Section]:
        sections = []
        if self.reference.own_weights:
            rows = compare(parameters_of(model), self._weights(model.dtype), 0.0)
            sections.append(Section(title=PARAMETERS, modules=(), whole=rows))
        sections.append(self._tensors(model))
        if self.gradients is not None:
            sections.append(self._gradients(model, self.gradients))
        return sections

    def _weights(self, dtype: t.dtype) -> Arrays:
        """The reference's own, rounded as the model's were."""
        named = self.reference.parameters.items()
        return {name: array_of(t.from_numpy(x).to(dtype)) for name, x in named}

    def _tensors(self, model: Transformer) -> Section:
        right, unit = self.tensors, t.finfo(model.dtype).eps
        rounding: Errors = {}
        if model.dtype != t.float64:
            rounding = self.reference.rounding(self.tokens, right, model.dtype)
        allowed = self._allowed(model.dtype, right, rounding)
        modules = passes.module_by_module(model, self.tokens, right)
        whole, returned = passes.end_to_end(model, self.tokens)

        def section(scales: Mapping[str, float]) -> Section:
            return Section(
                title=TENSORS,
                modules=compare(modules, right, allowed, unit=unit, scales=scales),
                whole=compare(whole, right, allowed, unit=unit, scales=scales),
                returned=compare_returned(returned, right, allowed, unit=unit, scales=scales),
                rounding=rounding,
            )

        found = section({})
        if found.ok or model.dtype != t.float64:
            return found
        with np.errstate(all="ignore"):
            in_float32 = self.reference.rounding(self.tokens, right, t.float32)
        return section(sizes_for_float64(right, in_float32, self.exact, {}))

    def _gradients(self, model: Transformer, known: Arrays) -> Section:
        wanted = passes.with_gradients(model, known)
        right = {name: known[name] for name in self._backwards(wanted)}
        # one after the other: together they may be more than a machine has room for
        whole = passes.gradients(model, self.tokens, right)
        modules = passes.module_gradients(model, self.tokens, self.tensors, right)
        scales = gradient_scales(known)
        found = self._compared(model.dtype, right, modules, whole, scales)
        if found.ok:
            return found
        # sums that cancel are looked at more closely, where something is wrong or may be
        for name, size in sizes_of_terms(self.tensors, known).items():
            scales[name] = max(size, scales.get(name, 0.0))
        if model.dtype == t.float64:
            with np.errstate(all="ignore"):
                rounding = self.reference.kernel_rounding(self.tokens, right, scales)
            scales = sizes_for_float64(right, rounding, self.exact, scales)
        return self._compared(model.dtype, right, modules, whole, scales)

    def _compared(
        self,
        dtype: t.dtype,
        right: Arrays,
        modules: Mapping[str, Tensor],
        whole: Mapping[str, Tensor],
        scales: Mapping[str, float],
    ) -> Section:
        """Gradients beside the right ones, judged by these sizes."""
        rounding: Errors = {}
        if dtype != t.float64:
            rounding = self.reference.gradient_rounding(self.tokens, right, dtype, scales)
        unit, allowed = t.finfo(dtype).eps, self._allowed(dtype, right, rounding)

        def rows(ours: Mapping[str, Tensor]) -> tuple[Row, ...]:
            found = {name: x for name, x in ours.items() if name in right}
            rows = compare(found, right, allowed, unit=unit, scales=scales)
            return tuple(
                row if row.name in found else replace(row, problem="no gradient reaches it")
                for row in rows
            )

        # where the loss enters, no module stands before it
        alone = tuple(row for row in rows(modules) if row.name != passes.LOGITS)
        return Section(title=GRADIENTS, modules=alone, whole=rows(whole), rounding=rounding)

    def _allowed(self, dtype: t.dtype, right: Arrays, rounding: Errors) -> float | dict[str, float]:
        if dtype == t.float64:
            return self.exact
        unit = t.finfo(dtype).eps
        return {name: ROUNDINGS * max(rounding.get(name, 0.0), unit) for name in right}

    def _backwards(self, wanted: set[str]) -> list[str]:
        """In the order in which a backward pass comes by: the last module first."""
        modules = list(dict.fromkeys(path_of(name) for name in self.tensors))
        within = {name: i for i, name in enumerate(self.tensors)}

        def place(name: str) -> tuple[int, int]:
            # a module's parameters come after all of its tensors
            return -modules.index(path_of(name)), -within.get(name, -len(within))

        return sorted(sorted(wanted), key=place)


def path_of(name: str) -> str:
    """The module that a tensor or a parameter belongs to."""
    return name.rpartition(".")[0]


def _first_wrong(sections: tuple[Section, ...]) -> Finding | None:
    """In the order of the pass; of the two ways, the one that tells where it is goes first."""
    for section in sections:
        for way, rows in section.by_way().items():
            for row in rows:
                if not row.ok:
                    return Finding(section=section.title, way=way, row=row)
    return None


def _explained(finding: Finding, model: Transformer, truth: Truth) -> Finding:
    """The finding, with what becomes of it in float64, and the likely causes there."""
    exact = model
    if model.dtype != t.float64:
        exact = _in_float64(model)
        again = {section.title: section for section in truth.sections(exact)}[finding.section]
        rows = again.by_way()[finding.way]
        finding = replace(
            finding, in_float64=next(row for row in rows if row.name == finding.row.name)
        )
    if finding.is_rounding:
        return finding
    return _with_causes(finding, exact, truth)


def _hidden(model: Transformer, truth: Truth) -> Finding | None:
    """What is wrong first in float64 only."""
    exact = _in_float64(model)
    finding = _first_wrong(tuple(truth.sections(exact)))
    if finding is None:
        return None
    return _with_causes(replace(finding, hidden=True), exact, truth)


def _in_float64(model: Transformer) -> Transformer:
    # not every accelerator computes in float64
    on = model.device if model.device.type in ("cpu", "cuda") else "cpu"
    return copy.deepcopy(model).to(on).double()


def _with_causes(finding: Finding, exact: Transformer, truth: Truth) -> Finding:
    wrong = Wrong(
        name=finding.row.name,
        model=exact,
        tokens=truth.tokens,
        tensors=truth.tensors,
        gradients=truth.gradients or {},
        parameters=truth.reference.parameters,
        what=finding.section,
    )
    return replace(finding, causes=tuple(causes(wrong)))
