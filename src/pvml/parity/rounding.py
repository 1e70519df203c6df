"""Whether a model in float32 is as near the float64 truth as the reference in float32.

One model proves little: a largest error is the draw of a moment. So there are many, each with other
weights or other tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

from pvml.errors import PvmlError
from pvml.parity.verification import GRADIENTS, PARAMETERS, TENSORS, Verification

MEDIAN = 1.1
"""The largest median over all ratios."""
LARGEST = 2.0
"""The largest median over a tensor's ratios."""
ROUNDED = 2.0**-24
"""What a float32 is off at most when it is as near as can be, as a share of its size. A smaller
error is luck, and counts as that: a reference that happens to be exact would forbid any other."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One tensor's errors in many models: the model's over the reference's."""

    name: str
    ours: float
    """The median of the model's relative errors."""
    theirs: float
    """The median of the reference's."""
    ratios: tuple[float, ...]
    """Of those models where one of the two is not exact."""

    @property
    def typical(self) -> float:
        """The median over the models; 1 where all are exact on both sides."""
        return median(self.ratios) if self.ratios else 1.0


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Every tensor's."""

    rows: tuple[Ratio, ...]
    models: int
    dtype: str
    title: str
    """Of the reference."""
    not_shown: int = 0
    """Tensors that the reference does not show; theirs are the formulae's errors, in NumPy."""

    @property
    def typical(self) -> float:
        """The median over all tensors and models."""
        return median([ratio for row in self.rows for ratio in row.ratios] or [1.0])

    @property
    def worst(self) -> Ratio:
        """The tensor whose median is largest."""
        return max(self.rows, key=lambda row: row.typical)

    @property
    def largest(self) -> tuple[float, str]:
        """The largest single ratio, and whose it is."""
        return max((max(row.ratios, default=1.0), row.name) for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether the model is no further from the truth than the reference."""
        return self.typical <= MEDIAN and self.worst.typical <= LARGEST

    def table(self) -> str:
        """A line for every tensor that is not exact on both sides."""
        rows = [row for row in self.rows if row.ratios]
        name = max([len("tensor"), *(len(row.name) for row in rows)])
        head = f"{'tensor':<{name}}      ours    theirs  ratio: median  largest"
        lines = [
            f"{row.name:<{name}}  {row.ours:8.1e}  {row.theirs:8.1e}  {row.typical:13.2f}  "
            f"{max(row.ratios):7.2f}"
            for row in rows
        ]
        return "\n".join([head, *lines])

    def verdict(self) -> str:
        """The rule, and what came of it, in a few lines."""
        (single, whose), worst = self.largest, self.worst
        whole = "as near the truth as the reference" if self.ok else "FURTHER FROM THE TRUTH"
        others = (
            f"(of {self.not_shown} tensors, which it does not show, over those of NumPy's float32)"
        )
        return "\n".join(
            [
                f"{self.dtype}, {self.models} models, {len(self.rows)} tensors: errors against "
                f"float64, over those of {self.title}",
                *([others] if self.not_shown else []),
                f"median of all ratios        {self.typical:6.2f}  (at most {MEDIAN})",
                f"largest median of a tensor  {worst.typical:6.2f}  (at most {LARGEST}) "
                f"{worst.name}",
                f"largest ratio in one model  {single:6.2f}  {whose}",
                whole,
            ]
        )


def error_ratios(found: Iterable[Verification]) -> Ratios:
    """What verifications in float32 say together; end to end.

    Raises: PvmlError without any, or where they are of float64.
    """
    by_name: dict[str, list[tuple[float, float]]] = {}
    last, models = None, 0
    for last in found:
        models += 1
        for section in last.sections:
            for row in section.whole:
                if row.name in section.rounding and section.title != PARAMETERS:
                    pair = row.relative, section.rounding[row.name]
                    by_name.setdefault(f"{_mark(section.title)}{row.name}", []).append(pair)
    if last is None or not by_name:
        raise PvmlError(
            "errors are compared in float32: these are of no model, or of models in float64"
        )
    rows = tuple(
        Ratio(
            name=name,
            ours=median(ours for ours, _ in pairs),
            theirs=median(theirs for _, theirs in pairs),
            ratios=tuple(_ratio(*pair) for pair in pairs if any(pair)),
        )
        for name, pairs in by_name.items()
    )
    shown = last.reached
    tensors = {row.name for row in last[TENSORS].whole} & by_name.keys()
    not_shown = len(tensors - shown) if shown else 0
    return Ratios(rows=rows, models=models, dtype=last.dtype, title=last.title, not_shown=not_shown)


def _mark(title: str) -> str:
    return "d " if title == GRADIENTS else ""


def _ratio(ours: float, theirs: float) -> float:
    if not (isfinite(ours) and isfinite(theirs)):
        return inf
    return max(ours, ROUNDED) / max(theirs, ROUNDED)
