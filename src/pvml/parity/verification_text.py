"""A verification as text: its table, and the verdict in a few lines."""

from collections.abc import Iterator

from pvml.parity.check import Row, holds_not_finite
from pvml.parity.verification import MODULES, TENSORS, WHOLE, Finding, Section, Verification

_NUMBERS = ("max abs", "relative", "ulps")
_WIDTH = 8
_FIGURES = len(_NUMBERS) * (_WIDTH + 1)


def table(found: Verification, *, only_wrong: bool = False) -> str:
    """A line for every tensor, or for the wrong ones; a heading for each section.

    ulps: units in the last place of the tensor's largest value, in the type that the model computes
    in. (Of each element's own, they would say most where numbers cancel to nearly 0.) `ok
    (float64)`: the reference does not show this tensor, and the formulae judge it.
    """
    return "\n\n".join("\n".join(_section(found, one, only_wrong)) for one in found.sections)


def _section(found: Verification, section: Section, only_wrong: bool) -> Iterator[str]:
    yield f"{section.title}: {section.good} of {len(section.whole)} agree"
    alone = {row.name: row for row in section.modules}
    rows = [
        (alone.get(row.name), row)
        for row in section.whole
        if not (only_wrong and row.ok and (row.name not in alone or alone[row.name].ok))
    ]
    if section.returned and not section.returned.ok:
        rows.append((None, section.returned))
    if not rows:
        return
    name = max(len("tensor"), *(len(row.name) for _, row in rows))
    shape = max(len("shape"), *(len(_shape(row)) for _, row in rows))
    narrow = bool(section.rounding)
    if alone:
        ways = f"{MODULES:^{_FIGURES}} {WHOLE:^{_FIGURES}}"
        yield f"{'':{name + 2 + shape}} {ways}".rstrip()
    numbers = "".join(f" {number:>{_WIDTH}}" for number in _NUMBERS)
    heading = f"{numbers} {numbers}" if alone else numbers
    allowed = "  allowed" if narrow else ""
    yield f"{'tensor':<{name}}  {'shape':<{shape}}{heading}{allowed}"
    for one, row in rows:
        figures = f"{_figures(one)} {_figures(row)}" if alone else _figures(row)
        allowed = f" {row.allowed:8.1e}" if narrow else ""
        yield (
            f"{row.name:<{name}}  {_shape(row):<{shape}}{figures}{allowed}  "
            f"{_verdict(found, section, one, row)}"
        )


def _shape(row: Row) -> str:
    return str(row.shape)


def _figures(row: Row | None) -> str:
    if row is None:
        return " " * _FIGURES
    numbers = (row.max_abs_diff, row.relative, row.ulps)
    texts = (f"{numbers[0]:.1e}", f"{numbers[1]:.1e}", f"{numbers[2]:.2g}")
    return "".join(
        f" {text if number else '0':>{_WIDTH}}" for number, text in zip(numbers, texts, strict=True)
    )


def _verdict(found: Verification, section: Section, alone: Row | None, row: Row) -> str:
    for one in (alone, row):
        if one is not None and not one.ok:
            return one.problem or "WRONG"
    elsewhere = section.title == TENSORS and found.reached and row.name not in found.reached
    return "ok (float64)" if elsewhere else "ok"


def verdict(found: Verification) -> str:
    """What came of it, in a few lines: how much agrees, or what is wrong first, and why."""
    return "\n".join(_lines(found))


def _lines(found: Verification) -> Iterator[str]:
    if found.missing or found.unexpected:
        yield f"parameters missing: {[*found.missing]}, unexpected: {[*found.unexpected]}"
    if found.not_finite:
        yield holds_not_finite(found.not_finite)
    if not found.sections:
        return
    counts = [f"{one.good} of {len(one.whole)} {one.title}" for one in found.sections]
    told = " and ".join([", ".join(counts[:-1]), counts[-1]]) if len(counts) > 1 else counts[0]
    yield f"{told} agree with {found.title} ({found.dtype})"
    if found.finding is None:
        yield from _closest(found)
        if found.again_in_float64:
            yield "in float64 all of it agrees, too"
    else:
        yield from _finding(found.finding, found.dtype)


def _closest(found: Verification) -> Iterator[str]:
    worst = [(one.title, *one.worst) for one in found.sections if one.worst]
    for title, way, row in worst:
        if row.relative:
            yield (
                f"{title}, closest to the limit: {row.name}, {way}, relative {row.relative:.1e} of "
                f"{row.allowed:.1e} allowed"
            )


def _finding(finding: Finding, dtype: str) -> Iterator[str]:
    row, again = finding.row, finding.in_float64
    how = row.problem or f"relative {row.relative:.1e} of {row.allowed:.1e} allowed"
    yield f"first wrong: {row.name} ({finding.section}, {finding.way}): {how}"
    if finding.hidden:
        yield f"this is in float64: a mistake, which {dtype} is too coarse to show"
    elif again is None:
        yield "this is float64: a mistake, not rounding"
    elif again.ok:
        yield (
            f"in float64 the difference vanishes ({again.relative:.1e}): rounding, or a mistake "
            f"that only {dtype} shows"
        )
    else:
        yield f"in float64 the difference stays ({again.relative:.1e}): a mistake, not rounding"
    if finding.causes:
        yield f"likely cause: {finding.causes[0]}"
        yield from (f"          or: {cause}" for cause in finding.causes[1:])
    elif not finding.is_rounding:
        yield "likely cause: none of the mistakes that are known here gives these numbers"
