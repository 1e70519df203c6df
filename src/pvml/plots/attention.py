"""Attention patterns as grids: a row for each reader, a column for what it reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from pvml.errors import PvmlError
from pvml.plots.canvas import figure, labels, save


def attention_grids(
    patterns: Mapping[str, Float[np.ndarray[Any, Any], "posn_q posn_k"]],
    texts: Sequence[str],
    path: Path,
) -> Path:
    """The PNG's path: a grid for each pattern, under its name, with the tokens along both sides.

    Masked cells (the future) stay empty; the darkest cell is a share of 1.

    Raises: PvmlError for no pattern, or one whose sides are not as long as `texts`; RunDirError if
    the file cannot be written.
    """
    if not patterns:
        raise PvmlError("there is no pattern to draw")
    n = len(texts)
    for name, pattern in patterns.items():
        if pattern.shape != (n, n):
            raise PvmlError(f"the pattern {name!r} has shape {pattern.shape}, for {n} tokens")
    side = max(3.0, 0.17 * n) + 0.8
    made, axes = figure(side * len(patterns), side, len(patterns))
    for place, (name, pattern) in zip(axes, patterns.items(), strict=True):
        _grid(place, pattern, labels(texts))
        place.set_title(name, parse_math=False)
    return save(made, path)


def _grid(
    axes: Axes, pattern: Float[np.ndarray[Any, Any], "posn posn"], names: Sequence[str]
) -> None:
    future = np.triu(np.ones(pattern.shape, dtype=bool), 1)
    shown = np.ma.masked_array(pattern, future)
    axes.imshow(shown, vmin=0, vmax=1, cmap="Blues", interpolation="nearest")
    ticks = range(len(names))
    size = 7 if len(names) > 12 else 9
    # a token may be a $, which would otherwise begin a formula
    axes.set_xticks(ticks, names, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(ticks, names, fontsize=size, parse_math=False)
    axes.set_xlabel("what is read")
    axes.set_ylabel("who reads")
