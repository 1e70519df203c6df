"""A verification as text: its table, and the verdict in a few lines."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pvml.parity.check import Row, holds_not_finite
from pvml.parity.passes import LOGITS, RETURNED, UNWATCHED
from pvml.parity.references import Reference
from pvml.parity.verification import MODULES, TENSORS, WHOLE, Finding, Section, Verification

_NUMBERS = ("max abs", "relative", "ulps")
_WIDTH = 8
_FIGURES = len(_NUMBERS) * (_WIDTH + 1)
_MARK = " (formulae)"


def table(found: Verification, *, only_wrong: bool = False) -> str:
    """A line for every tensor, or for the wrong ones; a heading for each section.

    ulps: units in the last place of the tensor's largest value, in the type that the model computes
    in. (Of each element's own, they would say most where numbers cancel to nearly 0.) A tensor that
    the reference does not show is judged by the formulae: it is marked, and a line below explains.
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
    rows += [(None, row) for row in section.returned if not row.ok]
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
            f"{_verdict(one, row)}{'' if _is_shown(found, section.title, row.name) else _MARK}"
        )
    if not all(_is_shown(found, section.title, row.name) for _, row in rows):
        yield (
            f"{_MARK.strip()}: {found.title} does not show this tensor, and "
            f"{Reference.title} judges it"
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


def _verdict(*ways: Row | None) -> str:
    wrong = next((row for row in ways if row is not None and not row.ok), None)
    return "ok" if wrong is None else wrong.problem or "WRONG"


def judge(found: Verification, section: str, name: str) -> str:
    """What a tensor was compared with: the reference, or the formulae for what it does not show."""
    return found.title if _is_shown(found, section, name) else Reference.title


def _is_shown(found: Verification, section: str, name: str) -> bool:
    own = LOGITS if name in (RETURNED, UNWATCHED) else name
    return section != TENSORS or not found.reached or own in found.reached


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
    yield f"{_counted(_judged(found, True))} agree with {found.title} ({found.dtype})"
    others = [section for section in _judged(found, False) if section.whole]
    if others:
        yield f"{_counted(others)}, which it does not show, agree with {Reference.title}"
    if found.finding is None:
        yield from _closest(found)
        if found.again_in_float64:
            yield "in float64 all of it agrees, too"
    else:
        yield from _finding(found.finding, found.dtype)


def _judged(found: Verification, shown: bool) -> Iterator[Section]:
    """The sections, each with those of its names that the reference shows, or does not."""
    for one in found.sections:
        names = {row.name for row in one.whole if _is_shown(found, one.title, row.name) == shown}
        modules, whole = (
            tuple(row for row in rows if row.name in names) for rows in (one.modules, one.whole)
        )
        yield replace(one, modules=modules, whole=whole)


def _counted(sections: Iterable[Section]) -> str:
    counts = [f"{one.good} of {len(one.whole)} {one.title}" for one in sections]
    return " and ".join([", ".join(counts[:-1]), counts[-1]]) if len(counts) > 1 else counts[0]


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


def as_json(found: Verification, *, only_wrong: bool = False) -> dict[str, Any]:
    """The verdict, and a row for every tensor and way, or for the wrong ones; ready for JSON."""
    rows = [
        {
            "section": section.title,
            "way": way,
            "name": row.name,
            "shape": row.shape,
            "against": judge(found, section.title, row.name),
            "absolute": row.max_abs_diff,
            "relative": row.relative,
            "ulps": row.ulps,
            "allowed": row.allowed,
            "verdict": _verdict(row),
        }
        for section in found.sections
        for way, ways_rows in section.by_way().items()
        for row in ways_rows
        if not (only_wrong and row.ok)
    ]
    return {
        "agrees": found.ok,
        "verdict": verdict(found),
        "against": found.title,
        "dtype": found.dtype,
        "rows": rows,
    }
