"""What came of a verification: rows for both ways, and the first tensor that is wrong.

How it is done is in `verifying.py`, how it is told in `verification_text.py`.
"""

from dataclasses import dataclass, field

from pvml.parity.check import Row
from pvml.parity.references import Errors

MODULES, WHOLE = "module by module", "end to end"
"""The two ways: each module on the reference's own tensors, or all of it from token ids."""
PARAMETERS, TENSORS, GRADIENTS = "parameters", "named tensors", "gradients"
"""What is compared."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One kind of tensor, compared both ways."""

    title: str
    modules: tuple[Row, ...]
    """Module by module. Of what no module computes there are none."""
    whole: tuple[Row, ...]
    """End to end."""
    returned: tuple[Row, ...] = ()
    """What the model returned, watched and not, beside the reference's logits."""
    rounding: Errors = field(default_factory=dict)
    """The reference's own relative error in the model's type. Empty: that is float64."""

    @property
    def ok(self) -> bool:
        return all(row.ok for row in (*self.modules, *self.whole, *self.returned))

    def by_way(self) -> dict[str, tuple[Row, ...]]:
        """The rows of each way; what was returned comes last, end to end."""
        return {MODULES: self.modules, WHOLE: (*self.whole, *self.returned)}

    @property
    def good(self) -> int:
        """How many names agree both ways."""
        bad = {row.name for row in (*self.modules, *self.whole) if not row.ok}
        return len({row.name for row in self.whole} - bad)

    @property
    def worst(self) -> tuple[str, Row] | None:
        """The way and the row that come closest to what is allowed, or are furthest beyond it."""
        rows = [(MODULES, row) for row in self.modules] + [(WHOLE, row) for row in self.whole]
        return max(rows, key=lambda each: each[1].strain, default=None)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The first tensor that is wrong."""

    section: str
    way: str
    row: Row
    in_float64: Row | None = None
    """The same tensor where the model computes in float64, if it does not anyway."""
    hidden: bool = False
    """Whether the row is of float64, and the type that was asked for is too coarse to show it."""
    causes: tuple[str, ...] = ()
    """What would give the model's own numbers, likeliest first; empty: nothing that is known."""

    @property
    def is_rounding(self) -> bool:
        """Whether float64 makes the difference vanish."""
        return self.in_float64 is not None and self.in_float64.ok


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All that was compared, and the first of it that is wrong."""

    title: str
    """What the model was compared with, in a sentence."""
    short: str
    """The same in a column."""
    dtype: str
    """What the model computes in."""
    sections: tuple[Section, ...] = ()
    reached: frozenset[str] = frozenset()
    """Names whose truth is that reference's own, where some are the formulae's. Empty: all are."""
    finding: Finding | None = None
    again_in_float64: bool = False
    """Whether all agreed in a type of 16 bits, which hides mistakes, and float64 was looked at."""
    missing: tuple[str, ...] = ()
    """Parameters that the reference reads and the model lacks, or has in another shape."""
    unexpected: tuple[str, ...] = ()
    """Parameters that the model has and the reference never reads."""
    not_finite: tuple[str, ...] = ()
    """Parameters that hold NaN or infinity, of which nothing was compared."""

    @property
    def ok(self) -> bool:
        """Whether all of it agrees, and everything was compared."""
        everything = bool(self.sections) and not self.missing and not self.unexpected
        return everything and self.finding is None

    def __getitem__(self, title: str) -> Section:
        return next(section for section in self.sections if section.title == title)
