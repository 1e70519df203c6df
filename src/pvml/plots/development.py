"""A run's scores over its checkpoints, with its loss above them on the same steps."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from pvml.circuits.heads.over_training import Development
from pvml.errors import PvmlError
from pvml.plots.canvas import COLOURS, STROKES, legend, line_label, save
from pvml.plots.curves import smoothed


def plot_development(
    development: Development, path: Path, names: Sequence[str] | None = None
) -> Path:
    """The picture as a file, PNG or SVG by the path's ending; its path.

    names: which scores; unset: all.

    Raises: PvmlError for names that it has not, no names, or another ending; RunDirError if the
    file cannot be written.
    """
    chosen = list(development.scores if names is None else names)
    unknown = [name for name in chosen if name not in development.scores]
    if unknown or not chosen:
        raise PvmlError(
            f"{', '.join(unknown) or 'nothing'} cannot be drawn of {development.run}: its scores "
            f"are {', '.join(development.scores) or 'none'}"
        )
    made = Figure(figsize=(8.0, 6.5), layout="constrained")
    above, below = made.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    above.set_title(f"{line_label(development.run)}: loss and scores over training")
    above.title.set_parse_math(False)
    steps, losses = np.array(development.loss_steps, float), np.array(development.losses, float)
    if len(steps):
        means, window = smoothed(steps, losses)
        above.plot(steps, losses, color=COLOURS[0], alpha=0.3, label="each step")
        above.plot(means.x, means.y, color=COLOURS[0], label=f"mean of {window} steps")
        legend(above)
    above.set_ylabel("training loss\n(nats per token)")
    for place, name in enumerate(chosen):
        below.plot(
            development.steps,
            development.scores[name],
            color=COLOURS[place % len(COLOURS)],
            linestyle=STROKES[place // len(COLOURS) % len(STROKES)],
            marker=".",
            label=line_label(name),
        )
    below.set_xlabel("step")
    below.set_ylabel("score")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    legend(below)
    return save(made, Path(path))
