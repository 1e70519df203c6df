"""Which heads compose, as a graph: a row of heads for each layer, an arrow from writer to reader.

Only what is beyond its null is drawn; how much is not is said.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch

from pvml.circuits.held import Head
from pvml.circuits.weights.composition import CompositionScore, Kind
from pvml.errors import PvmlError
from pvml.plots.canvas import COLOURS, NEITHER, around, save, sheet, with_processing
from pvml.plots.head_scores import SURELY
from pvml.plots.terminal import bar, require_width
from pvml.processing.changes import described

MOST_HEADS = 400
"""Heads in one graph."""
MOST_ARROWS = 40
"""Arrows of a kind: more would hide each other. The strongest are drawn."""
_USES: dict[Kind, str] = {"Q": "read for queries", "K": "read for keys", "V": "read for values"}
_COLOURS: dict[Kind, str] = dict(zip(get_args(Kind), COLOURS, strict=False))


@dataclass(frozen=True, kw_only=True)
class _Composed:
    """The scores of one kind that are to be drawn, and how many are not."""

    kind: Kind
    drawn: tuple[CompositionScore, ...]
    """Beyond their nulls, the farthest above it first."""
    n_beyond: int
    n_within: int
    n_undefined: int

    def __str__(self) -> str:
        more = f", the strongest {len(self.drawn)} drawn" if self.n_beyond > len(self.drawn) else ""
        undefined = f", {self.n_undefined:,} undefined" if self.n_undefined else ""
        return (
            f"{self.kind}-composition: {self.n_beyond:,} of "
            f"{self.n_beyond + self.n_within + self.n_undefined:,} beyond random rotations{more}"
            f"{undefined}"
        )


def composition_graph(
    scores: Sequence[CompositionScore], path: Path, *, most: int = MOST_ARROWS
) -> Path:
    """The picture's path: a graph each for Q-, K- and V-composition, layer 0 at the bottom.

    An arrow is a pair beyond its null, from the head that wrote to the head that reads; the wider,
    the further its score is above the null's mean. scores: of all pairs, so that those not drawn
    can be counted. most: arrows of a kind; the strongest are drawn, and the others counted.

    Raises: PvmlError for no score, an infinite one, a pair given twice, more than 400 heads, or a
        path that ends in neither .png nor .svg; RunDirError if the file cannot be written.
    """
    kinds = _composed(scores, most)
    heads = sorted({head for score in scores for head in (score.writer, score.reader)})
    if len(heads) > MOST_HEADS:
        raise PvmlError(f"{len(heads):,} heads are too many for one graph of {MOST_HEADS}")
    layout = _Layout(heads, len(kinds))
    made, axes = sheet(*layout.page)
    strongest = max((_above(score) for kind in kinds for score in kind.drawn), default=0.0)
    for place, composed in enumerate(kinds):
        for score in reversed(composed.drawn):  # the strongest on top
            _arrow(axes, layout, place, score, _above(score) / strongest)
        _draw_heads(axes, layout, place, composed)
    widest = f" The widest is {strongest:.3f} above it." if strongest else ""
    caption = (
        ".\n".join(map(str, kinds))
        + f".\nArrows lead from writer to reader; the wider, the further the score is above the "
        f"null's mean.{widest} Only what random rotations between the two do not explain is drawn "
        f"({SURELY})."
    )
    around(
        made,
        "Which heads read what lower heads wrote",
        with_processing(caption, scores[0].processing),
    )
    return save(made, path)


def composition_text(
    scores: Sequence[CompositionScore], *, most: int = MOST_ARROWS, width: int = 80
) -> str:
    """The same for a terminal: a line for each pair beyond its null, the farthest above it first.

    Raises: PvmlError as `composition_graph` does, for any number of heads; for a width below 60.
    """
    require_width(width)
    kinds = _composed(scores, most)
    strongest = max((_above(score) for kind in kinds for score in kind.drawn), default=0.0)
    blocks = ["Which heads read what lower heads wrote"]
    for composed in kinds:
        lines = [f"{composed} ({_USES[composed.kind]})"]
        if composed.drawn:
            lines.append("writer   reader   score  turned at random   above")
        for score in composed.drawn:
            (below, writer), (above, reader) = score.writer, score.reader
            lines.append(
                f"{f'{below}.{writer}':<6} > {f'{above}.{reader}':<6}   {score.score:.3f}  "
                f"{score.null_mean:.3f} ± {score.null_spread:.3f}   {_above(score):+.3f}  "
                f"{bar(_above(score) / strongest, width - 52)}"
            )
        blocks.append("\n".join(lines))
    blocks.append(f"beyond: {SURELY}")
    blocks += filter(None, [described(scores[0].processing)])
    return "\n\n".join(blocks)


def _composed(scores: Sequence[CompositionScore], most: int) -> list[_Composed]:
    if not scores:
        raise PvmlError("there is no composition score to draw: has the model two layers?")
    if most < 1:
        raise PvmlError(f"most must be at least 1 arrow of a kind, got {most}")
    pairs = {(score.kind, score.writer, score.reader) for score in scores}
    if len(pairs) < len(scores):
        raise PvmlError(f"{len(scores):,} scores of {len(pairs):,} pairs: give each pair once")
    for score in scores:
        known = not math.isnan(score.score)  # a head that does nothing has no null either
        if known and not (math.isfinite(score.score) and math.isfinite(score.null_mean)):
            raise PvmlError(f"this is no score to draw: {score}")
    kinds = [kind for kind in get_args(Kind) if any(score.kind == kind for score in scores)]
    return [_of_kind([score for score in scores if score.kind == kind], most) for kind in kinds]


def _of_kind(scores: Sequence[CompositionScore], most: int) -> _Composed:
    beyond = sorted(
        (score for score in scores if score.beyond),
        key=lambda score: (-_above(score), score.writer, score.reader),
    )
    n_undefined = sum(math.isnan(score.score) for score in scores)
    return _Composed(
        kind=scores[0].kind,
        drawn=tuple(beyond[:most]),
        n_beyond=len(beyond),
        n_within=len(scores) - len(beyond) - n_undefined,
        n_undefined=n_undefined,
    )


def _above(score: CompositionScore) -> float:
    return score.score - score.null_mean


class _Layout:
    """Where the heads of each graph lie on a page, in inches: the graphs side by side."""

    def __init__(self, heads: Iterable[Head], n_graphs: int):
        self.heads = list(heads)
        n_heads = 1 + max(head for _, head in self.heads)
        n_layers = 1 + max(layer for layer, _ in self.heads)
        self._step = 0.62 if n_heads <= 8 else 0.42
        self._rise = 1.1 if n_layers <= 4 else 0.72
        self.radius = 0.19 if n_heads <= 8 else 0.155
        self._graph = n_heads * self._step + 0.3
        self.page = (0.6 + n_graphs * self._graph, (n_layers - 1) * self._rise + 0.9)
        self.layers = n_layers

    def middle(self, graph: int, head: Head) -> tuple[float, float]:
        layer, index = head
        return 0.6 + graph * self._graph + (index + 0.5) * self._step, 0.25 + layer * self._rise

    def top(self, graph: int) -> tuple[float, float]:
        """Where a graph's name is written."""
        return 0.6 + graph * self._graph + (self._graph - 0.3) / 2, self.page[1] - 0.3


def _arrow(axes: Axes, layout: _Layout, graph: int, score: CompositionScore, share: float) -> None:
    skips = score.reader[0] - score.writer[0] > 1
    away = layout.radius * 72 + 1
    axes.add_patch(
        FancyArrowPatch(
            layout.middle(graph, score.writer),
            layout.middle(graph, score.reader),
            # past the layers between, so that it does not seem to end at a head of theirs
            connectionstyle=f"arc3,rad={0.2 if skips else 0.0}",
            arrowstyle="-|>",
            mutation_scale=6 + 6 * share,
            linewidth=0.5 + 3 * share,
            shrinkA=away,
            shrinkB=away,
            color=_COLOURS[score.kind],
            alpha=0.85,
            zorder=1,
        )
    )


def _draw_heads(axes: Axes, layout: _Layout, graph: int, composed: _Composed) -> None:
    at_work = {head for score in composed.drawn for head in (score.writer, score.reader)}
    for head in layout.heads:
        x, y = layout.middle(graph, head)
        works = head in at_work
        axes.add_patch(
            Circle(
                (x, y),
                layout.radius,
                facecolor="white",
                edgecolor="black" if works else "#CCCCCC",
                linewidth=1.1 if works else 0.7,
                zorder=2,
            )
        )
        axes.text(
            x,
            y,
            f"{head[0]}.{head[1]}",
            fontsize=7 if layout.radius > 0.16 else 5.5,
            color="black" if works else NEITHER,
            ha="center",
            va="center_baseline",
            zorder=3,
        )
    if graph == 0:
        for layer in range(layout.layers):
            _, y = layout.middle(0, (layer, 0))
            axes.text(0.5, y, f"layer {layer}", fontsize=8, ha="right", va="center")
    x, y = layout.top(graph)
    axes.text(
        x,
        y,
        f"{composed.kind}-composition\n{_USES[composed.kind]}",
        fontsize=9,
        color=_COLOURS[composed.kind],
        ha="center",
        va="bottom",
    )
