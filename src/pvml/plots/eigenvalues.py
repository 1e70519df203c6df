"""Eigenvalues of OV circuits in the complex plane: a head that copies has them on the right.

An eigenvector of a positive eigenvalue is a mix of tokens that the head makes more likely when it
reads them. Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits",
"copying / detecting copying", whose planes have logarithmic radii too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Complex
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.patches import Circle, Wedge
from torch import Tensor

from pvml.circuits.weights.copying import CopyingScore, copying_score
from pvml.errors import PvmlError
from pvml.plots.canvas import AGAINST, FOR, around, save, sheet, with_processing
from pvml.plots.head_scores import SURELY
from pvml.plots.terminal import height, require_width
from pvml.processing.changes import described

MOST_PLANES = 144
"""Heads in one picture: as many as GPT-2 small has."""
DECADES = 3
"""Powers of ten from a logarithmic plane's rim to its middle, where all that is smaller lies too.
"""
_LARGE = 12
"""Planes that are still drawn large, with their rings labelled."""
_BINS = 24
"""Angles that are told apart in text."""
_UNDEFINED = "undefined: all are 0"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Plane:
    """What is drawn of one head."""

    score: CopyingScore
    values: Complex[np.ndarray[Any, Any], " rank"]

    @property
    def name(self) -> str:
        return f"{self.score.layer}.{self.score.head}"

    @property
    def largest(self) -> float:
        return float(np.abs(self.values).max(initial=0.0))

    @property
    def verdict(self) -> str:
        """The score in a word or a number."""
        return "undefined" if self.score.score is None else f"{self.score.score:+z.2f}"

    @property
    def null(self) -> str:
        if not np.isfinite([self.score.null_mean, self.score.null_spread]).all():
            return "undefined"
        return f"{self.score.null_mean:+z.2f} ± {self.score.null_spread:.2f}"


def eigenvalue_planes(
    eigenvalues: Complex[Tensor, "n_layers n_heads d_head"],
    scores: Sequence[CopyingScore],
    path: Path,
    *,
    log_radius: bool = True,
) -> Path:
    """The picture's path: a plane for each head that has a score, its eigenvalues as dots.

    Above each plane: the head (layer.head), its copying score, and random heads' mean and spread;
    in bold for a head beyond them. Each plane reaches to its head's largest eigenvalue. Its unit is
    a logit (nats) before the LayerNorms' scales. scores: of all heads, or only of those to draw.
    log_radius: equal steps outward are equal factors, so that small eigenvalues can be seen.

    Raises: PvmlError for no score, a head without eigenvalues or given twice, a score that is not
        that of the eigenvalues, NaN or infinity, more than 144 heads, or a path that ends in
        neither .png nor .svg; RunDirError if the file cannot be written.
    """
    planes = _planes(eigenvalues, scores)
    if len(planes) > MOST_PLANES:
        raise PvmlError(
            f"{len(planes):,} planes are too many for one picture, which holds {MOST_PLANES}: give "
            f"the scores of some layers"
        )
    log = log_radius
    layout = _Layout(len(planes), _columns([plane.score for plane in planes]))
    made, axes = sheet(*layout.page)
    _draw_discs(axes, layout, planes, log)
    _draw_dots(axes, layout, planes, log)
    for place, plane in enumerate(planes):
        _name(axes, layout, place, plane, log)
    n_beyond = sum(plane.score.beyond for plane in planes)
    caption = (
        f"Each plane: the real part to the right, positive where the head copies; the imaginary "
        f"part upward. {_explained(log)} Above each: layer.head, its copying score, the mean and "
        f"spread of random heads' scores. Bold and shaded: copies more than random heads do "
        f"({SURELY}): {n_beyond} of {len(planes)} here."
    )
    around(
        made,
        "Eigenvalues of the OV circuits over the vocabulary",
        with_processing(caption, scores[0].processing),
    )
    return save(made, path)


def eigenvalue_text(
    eigenvalues: Complex[Tensor, "n_layers n_heads d_head"],
    scores: Sequence[CopyingScore],
    *,
    width: int = 80,
) -> str:
    """A line for each head that has a score: where its eigenvalues point, and how far it copies.

    Raises: as `eigenvalue_planes` does, for any number of heads; PvmlError for a width below 60.
    """
    require_width(width)
    planes = _planes(eigenvalues, scores)
    lines = [
        "Eigenvalues of the OV circuits by their angle, weighted by their size",
        f"head   negative{'positive':>{_BINS - 8}}   score  random heads",
        *(_line(plane) for plane in planes),
        f"* copies more than random heads do ({SURELY})",
        *filter(None, [described(scores[0].processing)]),
    ]
    return "\n".join(lines)


def _planes(
    eigenvalues: Complex[Tensor, "n_layers n_heads d_head"], scores: Sequence[CopyingScore]
) -> list[_Plane]:
    if not scores:
        raise PvmlError("there is no head's copying score to draw")
    n_layers, n_heads = eigenvalues.shape[:2]
    by_head = {(score.layer, score.head): score for score in scores}
    if len(by_head) < len(scores):
        raise PvmlError(f"{len(scores):,} scores of {len(by_head):,} heads: give each head once")
    planes = []
    for (layer, head), score in sorted(by_head.items(), key=lambda item: item[0]):
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise PvmlError(
                f"there are eigenvalues of {n_layers:,} layers of {n_heads:,} heads, and none of "
                f"{layer}.{head}, which has a score"
            )
        values = eigenvalues[layer, head].cpu().numpy().astype(np.complex128)
        if not np.isfinite(values).all():
            raise PvmlError(f"an eigenvalue of head {layer}.{head} is NaN or infinite")
        theirs = float(copying_score(eigenvalues[layer, head]))
        if not np.isclose(theirs, np.nan if score.score is None else score.score, 0, 1e-3, True):
            raise PvmlError(
                f"head {layer}.{head} has a copying score of {score.score}, and these eigenvalues "
                f"one of {theirs:.3f}: read both from one model, with the same norms"
            )
        planes.append(_Plane(score=score, values=values))
    return planes


def _columns(scores: Sequence[CopyingScore]) -> int:
    """A row for each layer if that looks like a page, or else a square."""
    by_layer: dict[int, int] = {}
    for score in scores:
        by_layer[score.layer] = by_layer.get(score.layer, 0) + 1
    widest = max(by_layer.values())
    if set(by_layer.values()) == {widest} and len(by_layer) > 1 and widest <= _LARGE:
        return widest
    return min(len(scores), 4 if len(scores) <= _LARGE else _LARGE)


class _Layout:
    """Where the planes lie on a page, in inches: rows of them, the first on top."""

    def __init__(self, n: int, n_columns: int):
        self.large = n <= _LARGE
        self.radius, self._columns = (1.0 if self.large else 0.52), n_columns
        self._wide, self._high = (2.4, 2.75) if self.large else (1.17, 1.46)
        self._rows = -(-n // n_columns)
        self.page = (n_columns * self._wide, self._rows * self._high)

    def middle(self, place: int) -> tuple[float, float]:
        row, column = divmod(place, self._columns)
        return (
            (column + 0.5) * self._wide,
            (self._rows - 1 - row) * self._high + self.radius + 0.07,
        )


def _draw_discs(axes: Axes, layout: _Layout, planes: Sequence[_Plane], log: bool) -> None:
    axes_lines, rings, rims, shaded = [], [], [], []
    for place, plane in enumerate(planes):
        (x, y), radius = layout.middle(place), layout.radius
        axes_lines += [[(x - radius, y), (x + radius, y)], [(x, y - radius), (x, y + radius)]]
        rings += [Circle((x, y), share * radius) for share, _ in _rings(plane, log)]
        rims.append(Circle((x, y), radius))
        if plane.score.beyond:
            shaded.append(Wedge((x, y), radius, -90, 90))
    thin: dict[str, Any] = {"linewidth": 0.7, "edgecolor": "#CCCCCC"}
    axes.add_collection(PatchCollection(shaded, facecolor="#DCEBF7", edgecolor="none", zorder=0))
    axes.add_collection(PatchCollection(rings, facecolor="none", zorder=1, **thin))
    axes.add_collection(LineCollection(axes_lines, color="#CCCCCC", linewidth=0.7, zorder=1))
    axes.add_collection(
        PatchCollection(rims, facecolor="none", edgecolor="#555555", linewidth=0.8, zorder=2)
    )


def _draw_dots(axes: Axes, layout: _Layout, planes: Sequence[_Plane], log: bool) -> None:
    """Every eigenvalue: to the right a blue disc, to the left an orange ring."""
    middles = np.concatenate(
        [np.full(len(p.values), complex(*layout.middle(at))) for at, p in enumerate(planes)]
    )
    values = np.concatenate([plane.values for plane in planes])
    dots = middles + layout.radius * np.concatenate([_placed(plane, log) for plane in planes])
    drawn = np.concatenate([np.full(len(p.values), p.score.score is not None) for p in planes])
    for chosen, colour, inside in (
        (drawn & (values.real >= 0), FOR, FOR),
        (drawn & (values.real < 0), AGAINST, "white"),
    ):
        axes.scatter(
            dots.real[chosen],
            dots.imag[chosen],
            s=18 if layout.large else 5,
            facecolors=inside,
            edgecolors=colour,
            linewidths=1.1 if layout.large else 0.7,
            zorder=3,
        )


def _name(axes: Axes, layout: _Layout, place: int, plane: _Plane, log: bool) -> None:
    """A plane's title, and where it is large the scales of its axes and rings."""
    (x, y), radius = layout.middle(place), layout.radius
    colour = "black" if plane.score.beyond else "#555555"
    words = ("copying score ", "random heads ") if layout.large else ("", "")
    axes.text(
        x,
        y + radius + (0.22 if layout.large else 0.05),
        f"{plane.name}:  {words[0]}{plane.verdict}\n{words[1]}{plane.null}",
        fontsize=8.5 if layout.large else 6.5,
        fontweight="bold" if plane.score.beyond else "normal",
        color=colour,
        ha="center",
        va="bottom",
    )
    small: dict[str, Any] = {"fontsize": 6.5, "color": "#555555"}
    if plane.score.score is None:
        size = 7.5 if layout.large else 5
        style: dict[str, Any] = {"ha": "center", "va": "center", "backgroundcolor": "white"}
        axes.text(x, y, "all are 0", fontsize=size, **style)
    elif layout.large:
        for share, label in _rings(plane, log):
            corner = 0.5**0.5 * share * radius + 0.01
            axes.text(x + corner, y - corner, label, ha="left", va="top", **small)
    if layout.large:
        axes.text(x + radius + 0.03, y, "Re", ha="left", va="center", **small)
        axes.text(x, y + radius + 0.03, "Im", ha="center", va="bottom", **small)


def _explained(log: bool) -> str:
    if log:
        return (
            f"The radius is logarithmic: the rim is the head's largest eigenvalue, each ring a "
            f"tenth of the one around it, and what is under 1/{10**DECADES:,} is in the middle."
        )
    return "The rim is the head's largest eigenvalue, the ring inside it half of that."


def _rings(plane: _Plane, log_radius: bool) -> Iterator[tuple[float, str]]:
    """How far out each ring lies (1: the rim), and the absolute value it stands for."""
    if not log_radius:
        for share in (0.5, 1.0):
            yield share, f"{plane.largest * share:.2g}"
        return
    for decade in range(DECADES):
        yield 1 - decade / DECADES, f"{plane.largest / 10**decade:.2g}"


def _placed(plane: _Plane, log_radius: bool) -> Complex[np.ndarray[Any, Any], " rank"]:
    """Where each eigenvalue is drawn in a disc of radius 1."""
    sizes = np.abs(plane.values)
    if not plane.largest:
        return plane.values
    shares = sizes / plane.largest
    if log_radius:
        shares = np.maximum(0.0, 1 + np.log10(np.maximum(shares, 10.0**-DECADES)) / DECADES)
    placed: np.ndarray[Any, Any] = shares * np.exp(1j * np.angle(plane.values))
    return placed


def _line(plane: _Plane) -> str:
    head = f"{plane.name:<6}{'*' if plane.score.beyond else ' '}"
    if plane.score.score is None:
        return f"{head}{_UNDEFINED:<{_BINS}}       –  {plane.null}"
    angles = np.abs(np.angle(plane.values))  # a real map's come in pairs, above and below
    by_angle, _ = np.histogram(
        angles, bins=_BINS, range=(0, np.pi), weights=np.abs(plane.values) / plane.largest
    )
    strip = "".join(height(float(share)) for share in by_angle[::-1] / by_angle.max())
    return f"{head}{strip}   {plane.verdict}  {plane.null}"
