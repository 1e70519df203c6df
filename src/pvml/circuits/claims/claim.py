"""Claims about a model that carry their evidence, and can be checked again from what they carry.

A claim is made only of a score beyond its nulls. How each kind is found is in `search.py`; a page
of all claims about a model is in `report.py`.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from pvml.circuits.chance import SIGNIFICANCE, told_p
from pvml.circuits.claims.as_json import decode, encode
from pvml.circuits.claims.inputs import (
    ClaimInputs,
    ClaimSettings,
    ModelIdentity,
    Opened,
    Subject,
    opened,
)
from pvml.circuits.held import Head
from pvml.errors import PvmlError
from pvml.runs.json_object import to_json

ClaimKind = Literal["previous-token", "induction", "copying", "composition"]
Verdict = Literal["holds", "not what was measured", "does not hold", "not about this model"]

FORMAT = 1
"""Of a stored claim."""


@dataclass(frozen=True, kw_only=True)
class Null:
    """What a figure would be without what the claim is about."""

    what: str
    """What was done instead, in words."""
    mean: float | None
    """None if there was nothing to compare with."""
    spread: float | None
    """Standard deviation; None for fewer than two."""
    most: float | None
    """The largest; None where it was not kept."""
    p: float | None
    """Probability of such a figure by chance, times the number of figures tried; None where it is
    a comparison and no test."""

    def __str__(self) -> str:
        if self.mean is None:
            return self.what
        spread = "" if self.spread is None else f" ± {_told(self.spread)}"
        most = "" if self.most is None else f", at most {_told(self.most)}"
        p = ""
        if self.p is not None:
            p = f", {told_p(self.p)}"
        return f"{self.what} {_told(self.mean)}{spread}{most}{p}"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One thing that was measured, beside its nulls."""

    what: str
    value: float | None
    """None for a score that is not defined."""
    unit: str
    nulls: tuple[Null, ...]
    beyond: bool
    """Whether its nulls do not explain it, and a head's name is not refused for another reason."""

    def __str__(self) -> str:
        value = "undefined" if self.value is None else f"{_told(self.value)} {self.unit}".strip()
        return f"{self.what}: {value} ({'; '.join(map(str, self.nulls))}{self._verdict})"

    @property
    def _verdict(self) -> str:
        tested = [null.p for null in self.nulls if null.p is not None]
        if self.beyond:
            return ""
        if tested and max(tested) <= SIGNIFICANCE:
            return "; beyond these, but by too little, or a place beside it gets more"
        return "; not beyond these"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that is claimed of a model, with all that it rests on."""

    says: str
    """One sentence."""
    kind: ClaimKind
    heads: tuple[Head, ...]
    """Layer and head, from 0; of a composition the writer, then the reader."""
    edge: Literal["Q", "K", "V"] | None
    """What a composition's reader uses the writer for."""
    scores: tuple[Figure, ...]
    """What the claim is made of."""
    effects: tuple[Figure, ...]
    """What the model loses without it; empty where that was not or could not be measured."""
    notes: tuple[str, ...]
    """What was left out, held fixed or not measured, in words."""
    inputs: ClaimInputs
    model: ModelIdentity
    settings: ClaimSettings
    subject: Opened | None = field(default=None, compare=False, repr=False)
    """The model itself, as long as the claim was not read from a file."""
    rows: Tensor | None = field(default=None, compare=False, repr=False)
    """The rows that were given, likewise."""

    @property
    def stands(self) -> bool:
        """Whether every score is beyond its nulls. So it is in every claim that a search gave."""
        return all(score.beyond for score in self.scores)

    def __str__(self) -> str:
        lines = [self.says]
        lines += [f"  {figure}" for figure in (*self.scores, *self.effects)]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def check(
        self, model: Subject | None = None, tokens: Int[Tensor, "batch posn"] | None = None
    ) -> "ClaimCheck":
        """Measure everything again, on the same rows and with the same seeds.

        model: unset, the one that the claim was made of, or for a claim from a file what its name
        loads. tokens: the rows, where a claim from a file was made on rows that were given.

        Raises: PvmlError where the model or the rows have to be given, or the rows are others.
        """
        from pvml.circuits.claims.search import ClaimSearch, measured_again

        subject = self._subject(model)
        found = ModelIdentity.of(subject)
        if found.config != self.model.config:
            return ClaimCheck(claim=self, model=found, again=None)
        rows = self.inputs.rows(subject, self.rows if tokens is None else tokens)
        search = ClaimSearch(subject, rows, settings=self.settings, inputs=self.inputs)
        return ClaimCheck(claim=self, model=found, again=measured_again(self, search))

    def _subject(self, model: Subject | None) -> Opened:
        if model is not None:
            return opened(model)
        if self.subject is not None:
            return self.subject
        if self.model.name is None:
            raise PvmlError("this claim is about a model that has no name: give check the model")
        try:
            return opened(self.model.name)
        except PvmlError as problem:
            raise PvmlError(
                f"the model {self.model.name} of this claim cannot be loaded from here, so give "
                f"check the model: {problem}"
            ) from problem

    def to_json(self) -> str:
        """The claim as one JSON object, from which `from_json` gives an equal one."""
        return to_json({"format": FORMAT, **encode(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Claim":
        """The claim that `to_json` wrote.

        Raises: PvmlError for what is no claim, or one of another version.
        """
        try:
            saved = json.loads(text)
        except (ValueError, TypeError, RecursionError) as problem:
            raise PvmlError(f"this is no claim in JSON: {problem}") from problem
        return cls.from_saved(saved)

    @classmethod
    def from_saved(cls, saved: object, where: str = "the claim") -> "Claim":
        """The claim in what JSON was read to.

        Raises: PvmlError for what is no claim, or one of another version.
        """
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise PvmlError(f"{where} is none that this version reads: expected format {FORMAT}")
        return decode(cls, {name: x for name, x in saved.items() if name != "format"}, where)


@dataclass(frozen=True, kw_only=True)
class ClaimCheck:
    """What came of measuring a claim again. It is true only if the claim holds."""

    claim: Claim
    model: ModelIdentity
    """The model that was measured."""
    again: Claim | None
    """The same measured again; None if the model is of another shape, or has no such head or pair.
    """

    @property
    def same_model(self) -> bool:
        """Whether these are the weights that the claim is about."""
        return self.model.weights == self.claim.model.weights

    @cached_property
    def amiss(self) -> tuple[str, ...]:
        """What the claim says otherwise than what was measured now, in words; empty if nothing.

        Beyond rounding, in its sentence, its figures and their nulls; it can be asked of the same
        weights only.
        """
        from pvml.circuits.claims.compare import differences

        if self.again is None or not self.same_model:
            return ()
        return differences(self.claim, self.again)

    @property
    def verdict(self) -> Verdict:
        """What came of it, the first of these that applies."""
        if self.again is not None and not self.same_model:
            return "not about this model"
        if self.again is None or not self.again.stands:
            return "does not hold"
        return "not what was measured" if self.amiss else "holds"

    @property
    def holds(self) -> bool:
        """Whether it is the same model, its score is beyond its nulls again, and nothing is amiss.

        So the file says of these weights what can be measured of them, but for rounding.
        """
        return self.verdict == "holds"

    @property
    def difference(self) -> float | None:
        """The largest change of a figure; None if nothing was measured again, or other figures."""
        if self.again is None:
            return None
        old, new = (
            {figure.what: figure.value for figure in (*claim.scores, *claim.effects)}
            for claim in (self.claim, self.again)
        )
        if old.keys() != new.keys():
            return None
        pairs = [(old[what], new[what]) for what in old]
        if any((a is None) != (b is None) for a, b in pairs):
            return None
        return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        if self.again is None:
            reason = "is another model, of another shape"
            if self.model.config == self.claim.model.config:
                heads = ", ".join(f"{layer}.{head}" for layer, head in self.claim.heads)
                edge = f"{self.claim.edge}-" if self.claim.edge else ""
                reason = f"has no {edge}{self.claim.kind} score of heads {heads or '(none named)'}"
            return f"Does not hold: {self.model} {reason}. {self.claim.says}"
        changed = "" if self.difference is None else f", figures {self.difference:.2g} apart"
        told = self.again.says if self.again.stands else "; ".join(map(str, self.again.scores))
        if not self.same_model:
            holds = "holds" if self.again.stands else "does not hold"
            return (
                f"Not about this model: {self.model} has other weights than {self.claim.model}. Of "
                f"them it {holds}{changed}: {told}"
            )
        if self.verdict == "not what was measured":
            return f"Not what was measured: {self.claim.says} {'; '.join(self.amiss)}"
        return f"{self.verdict.capitalize()}, measured again{changed}: {told}"


def _told(value: float) -> str:
    return f"{value:z.3f}"
