"""A direct logit attribution as bars, the largest part on top: ready for `sum_bars`, `sum_text`."""

import math
from collections.abc import Sequence

from pvml.attribution.direct import Attribution
from pvml.errors import PvmlError
from pvml.plots.routes import MOST_BARS, Sum


def attribution_sum(
    found: Attribution, *, texts: Sequence[str] | None = None, most: int = MOST_BARS
) -> Sum:
    """The logit of an answer as the sum of the model's parts (nats); means over several rows.

    texts: what each id of the vocabulary stands for (default: show ids). most: parts that are told
    one by one.

    Raises: PvmlError for fewer than one part, or a NaN or infinite number.
    """
    if most < 1:
        raise PvmlError(f"most must be at least 1 part, got {most}")
    parts = [(part.name, value) for part, value in found.largest()]
    rows = len(found.logits)
    mean = f", mean of {rows:,} rows" if rows > 1 else ""
    what = "the logit" if found.minus is None else "the difference of logits"
    return Sum(
        title=f"Logit of {found.asked(texts)} at position {found.position}{mean}",
        unit=f"adds to {what} (nats)",
        terms=tuple(parts[:most]),
        n_others=len(parts[most:]),
        others=math.fsum(value for _, value in parts[most:]),
        own=float(found.logits.mean()),
        check=found.check(),
        frozen=found.frozen,
        processing=found.processing,
    )
