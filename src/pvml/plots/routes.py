"""A logit or a score that was taken apart, as bars: what each term adds, the largest on top."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

from pvml.circuits.paths.logit_paths import REST, Expansion
from pvml.circuits.paths.routes import Routes
from pvml.circuits.paths.score_paths import ScoreExpansion
from pvml.errors import PvmlError
from pvml.plots.canvas import (
    AGAINST,
    FOR,
    NEITHER,
    around,
    figure,
    labels,
    save,
    shortened,
    with_processing,
)
from pvml.plots.curves import LARGEST_DRAWN
from pvml.plots.terminal import fitted, require_width, signed_bar

MOST_BARS = 20
"""Terms that get a bar of their own; the others share one."""
_MOST_IN_A_PICTURE = 100
_LONGEST = 44


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A number and the terms that it is the sum of, ready to be drawn.

    Raises: PvmlError for no term, or a NaN or infinite number.
    """

    title: str
    unit: str
    """What a term's value is."""
    terms: tuple[tuple[str, float], ...]
    """Those with a bar of their own, by size, the largest first."""
    n_others: int
    others: float
    """What all other terms add together."""
    own: float
    """The model's own number, which the sum has to be."""
    check: str
    """How well the terms add up, as a sentence."""
    frozen: tuple[str, ...]
    """What was held at the value it had in the pass."""
    processing: tuple[str, ...] = ()
    """How the model's weights were rewritten, as its own `processing` says."""

    def __post_init__(self) -> None:
        if not self.terms and not self.n_others:
            raise PvmlError("there is no term to draw")
        for name, value in self.lines:
            if not abs(value) <= LARGEST_DRAWN:
                raise PvmlError(f"{name} is {value}, which cannot be drawn: is the model finite?")

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return math.fsum([self.others, *(value for _, value in self.terms)])

    @property
    def lines(self) -> list[tuple[str, float]]:
        """Every bar's name and value: the terms, the others if there are any, sum and model."""
        others = [(f"{self.n_others:,} others", self.others)] if self.n_others else []
        return [*self.terms, *others, ("sum", self.total), ("the model's own", self.own)]

    @property
    def caption(self) -> str:
        held = f" Frozen: {', '.join(self.frozen)}." if self.frozen else ""
        said = f"{self.check[0].upper()}{self.check[1:]}.{held}"
        return with_processing(said, self.processing)


def logit_sum(
    expansion: Expansion | Routes,
    token: int,
    minus: int | None = None,
    *,
    texts: Sequence[str] | None = None,
    most: int = MOST_BARS,
) -> Sum:
    """A token's logit as the sum of paths (of `expand`) or of routes (of `decompose`), in nats.

    minus: take the difference of the token's logit and this one's instead. texts: what each id of
    the vocabulary stands for (default: show ids). most: terms that are told one by one.

    Raises: PvmlError for an id outside the vocabulary or `texts`, fewer than one term, or a NaN or
        infinite number.
    """
    values = (
        [(term.name, value) for term, value in expansion.values(token, minus)]
        if isinstance(expansion, Routes)
        else expansion.values(token, minus)
    )
    ids = [token] if minus is None else [token, minus]
    if texts is not None and max(ids) >= len(texts):
        raise PvmlError(f"there are {len(texts):,} texts, and none for token {max(ids):,}")
    names = [f"'{labels([texts[i]])[0]}'" if texts else f"token {i}" for i in ids]
    pruned = 0 if isinstance(expansion, Routes) else expansion.n_pruned
    what = "the logit" if minus is None else "the difference of logits"
    return _sum(
        f"Logit of {' minus '.join(names)} at position {expansion.position}",
        f"adds to {what} (nats)",
        [(name, value) for name, value in values if name != REST],
        most,
        n_left_out=pruned,
        left_out=math.fsum(value for name, value in values if name == REST),
        own=expansion.logit(token, minus),
        check=_check(expansion),
        frozen=expansion.frozen,
        processing=expansion.processing,
    )


def score_sum(expansion: ScoreExpansion, *, most: int = MOST_BARS) -> Sum:
    """A head's score of a key for a query as the sum of pairs of paths (of `expand_score`).

    Raises: PvmlError for fewer than one pair, or a NaN or infinite number.
    """
    pairs = expansion.largest(expansion.values.numel())
    return _sum(
        f"Score of head {expansion.layer}.{expansion.head}: query {expansion.query}, "
        f"key {expansion.key}",
        "adds to q · k, before 1/sqrt(d_head)",
        [(f"{query}  ×  {key}", value) for query, key, value in pairs],
        most,
        n_left_out=0,
        left_out=0.0,
        own=expansion.score,
        check=f"A pair is what the query came by × what the key came by. {expansion.check()}",
        frozen=expansion.frozen,
        processing=expansion.processing,
    )


def sum_bars(of: Sum, path: Path) -> Path:
    """The picture's path: a bar for each term, blue if it adds and orange if it takes off.

    Under them, in grey, what all others add; in black their sum, beside it the model's own number.

    Raises: PvmlError for more than 100 terms, or a path that ends in neither .png nor .svg;
        RunDirError if the file cannot be written.
    """
    if len(of.terms) > _MOST_IN_A_PICTURE:
        raise PvmlError(
            f"{len(of.terms):,} bars are too many for one picture, which holds "
            f"{_MOST_IN_A_PICTURE}: give a smaller `most`"
        )
    lines = of.lines
    made, (axes,) = figure(8.0, 1.0 + 0.26 * len(lines))
    n_terms, sizes = len(of.terms), [value for _, value in lines]
    colours = [FOR if size >= 0 else AGAINST for size in sizes[:n_terms]]
    colours += [NEITHER] * (len(lines) - 2 - n_terms) + ["black", "white"]
    # a gap between the terms and what they add up to
    places = [i + (0.5 if i >= len(lines) - 2 else 0.0) for i in range(len(lines))]
    edges = ["none"] * (len(lines) - 1) + ["black"]
    axes.barh(places, sizes, color=colours, edgecolor=edges)
    axes.axhline(len(lines) - 2.25, color="#CCCCCC", linewidth=0.8)
    axes.set_yticks(places, [shortened(name, _LONGEST) for name, _ in lines])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    for place, size in zip(places, sizes, strict=True):
        axes.annotate(
            f"{size:+z.2f}",
            (size, place),
            xytext=(4 if size >= 0 else -4, 0),
            textcoords="offset points",
            ha="left" if size >= 0 else "right",
            va="center",
            fontsize=8,
        )
    axes.margins(x=0.15, y=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(of.unit)
    around(made, of.title, of.caption)
    return save(made, path)


def sum_text(of: Sum, *, width: int = 80) -> str:
    """The same for a terminal: a line for each term, with a bar from the middle.

    Raises: PvmlError for a width below 60.
    """
    require_width(width)
    lines = of.lines
    label = min(width - 40, max(cell_len(name) for name, _ in lines))
    cells = (width - label - 14) // 2
    largest = max(abs(value) for _, value in lines)
    told = [
        f"{fitted(name, label)} {value:>+z10.4f}  {signed_bar(value, largest, cells)}".rstrip()
        for name, value in lines
    ]
    told.insert(len(told) - 2, "-" * (label + 11))
    return "\n".join([f"{of.title}: {of.unit}", *told, textwrap.fill(of.caption, width)])


def _sum(
    title: str,
    unit: str,
    terms: Sequence[tuple[str, float]],
    most: int,
    *,
    n_left_out: int,
    left_out: float,
    own: float,
    check: str,
    frozen: tuple[str, ...],
    processing: tuple[str, ...],
) -> Sum:
    if most < 1:
        raise PvmlError(f"most must be at least 1 term, got {most}")
    others = terms[most:]
    return Sum(
        title=title,
        unit=unit,
        terms=tuple(terms[:most]),
        n_others=len(others) + n_left_out,
        others=math.fsum([left_out, *(value for _, value in others)]),
        own=own,
        check=check,
        frozen=frozen,
        processing=processing,
    )


def _check(expansion: Expansion | Routes) -> str:
    if isinstance(expansion, Expansion):
        return expansion.check()
    return (
        f"{len(expansion.terms):,} terms add up to the logits: off by at most "
        f"{expansion.error:.1e} of the largest"
    )
