"""`pvml circuits RUN training`: when an induction circuit forms, checkpoint by checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pvml.bundled import bundled_models
from pvml.cli.circuits_output import (
    print_json,
    progress,
    require_picture,
    say,
    say_drawn,
    table,
    told,
)
from pvml.cli.circuits_subject import RowsFlags, Subject
from pvml.errors import PvmlError, RunDirError

if TYPE_CHECKING:
    from pvml.circuits.heads.over_training import Development

_ROWS = 25
"""Checkpoints that are printed; all are in JSON and in the picture."""
_BESIDE = {
    "advantage": "advantage, reordered",
    "previous-token": "previous-token, shuffled",
    "induction": "induction, shuffled",
}
"""The null beside each score."""


@dataclass(frozen=True, kw_only=True)
class TrainingFlags(RowsFlags):
    """Follow induction over a run's checkpoints: the repeated-token advantage and the best heads.

    A run keeps them if it is trained with `pvml train --keep-every N`. Beside each score is the
    same where the tokens are in another order.
    """

    every: int | None = None
    """Only checkpoints of steps that this divides, and the last. Unset: all."""
    plot: Path | None = None
    """A picture (.png or .svg): the loss and the scores, step by step."""


def training(word: str, flags: TrainingFlags) -> int:
    """Print how the scores went, and where each rises most; the exit code."""
    require_picture(flags.plot)
    if flags.every is not None and flags.every < 1:
        raise PvmlError(f"--every must be at least 1 step, got {flags.every}")

    from pvml.circuits.heads.names import EXCESS
    from pvml.circuits.heads.over_training import induction_score, score_over_training
    from pvml.runs.format import RunDir
    from pvml.runs.naming import named_run

    if not named_run(word).exists() and word in bundled_models():
        raise PvmlError(
            f"{word} is a bundled model, which has no checkpoints: training needs a run directory "
            f"that kept them, by pvml train --keep-every N"
        )
    try:
        run = RunDir.open(named_run(word))
    except RunDirError as problem:
        raise PvmlError(
            f"training needs a run directory with checkpoints, such as runs/NAME: {problem}"
        ) from problem
    there = run.checkpoints()
    steps = [step for step in there if not flags.every or step % flags.every == 0]
    steps = sorted({*steps, *there[-1:]})
    subject = Subject(word, flags.device)
    subject.require_layers("induction over training")
    rows = subject.rows(flags)
    with progress() as tell:
        done: list[str] = []

        def step_done(told: str) -> None:
            done.append(told)
            tell("checkpoints", len(done), len(steps))

        found = score_over_training(
            run, induction_score(rows.tokens, seed=flags.seed), steps=steps, say=step_done
        )
    if flags.plot:
        from pvml.plots.development import plot_development

        plot_development(found, flags.plot)
    losses = _losses(found)
    if flags.json:
        print_json(
            {
                **subject.told("training"),
                "text": rows.told(),
                "seed": flags.seed,
                "steps": found.steps,
                "scores": dict(found.scores),
                "losses": losses,
                "rises_most": {name: found.rise(name, null) for name, null in _BESIDE.items()},
                "pictures": [str(flags.plot)] if flags.plot else [],
            }
        )
        return 0
    say(subject.title)
    say(told(str(rows)))
    say()
    say(_table(found, losses))
    say()
    say(
        told(
            "advantage: by how many nats less a random token costs the second time; beside it the "
            "same where the tokens come again in another order. previous, induction: the best "
            "head's share of attention; beside it with the tokens shuffled. loss: of training, "
            "mean of the steps since the checkpoint before."
        )
    )
    say()
    for name, null in _BESIDE.items():
        rise = found.rise(name, null)
        said = f"never rises {EXCESS} above what chance gives"
        if rise is not None:
            said = "rises above chance most between steps {:,} and {:,}".format(*rise)
        say(f"{name} {said}")
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def _losses(found: "Development") -> list[float | None]:
    """The mean training loss since the checkpoint before each; None without a finite one."""
    means: list[float | None] = []
    before = -1
    for step in found.steps:
        here = [
            loss
            for at, loss in zip(found.loss_steps, found.losses, strict=True)
            if before < at <= step and loss == loss
        ]
        means.append(sum(here) / len(here) if here else None)
        before = step
    return means


def _table(found: "Development", losses: Sequence[float | None]) -> str:
    n = len(found.steps)
    shown = sorted({round(i * (n - 1) / (min(n, _ROWS) - 1)) for i in range(min(n, _ROWS))})
    lines = []
    for i in shown:
        loss = losses[i]
        cells = [f"{found.steps[i]:,}", "-" if loss is None else f"{loss:.3f}"]
        for name, null in _BESIDE.items():
            cells += [f"{found.scores[name][i]:z.2f}", f"({found.scores[null][i]:z.2f})"]
        lines.append(cells)
    headings = ("step", "loss", "advantage", "", "previous", "", "induction", "")
    return table(headings, lines, ())
