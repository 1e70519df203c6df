"""Any score at every checkpoint that a run kept: when does a circuit form, and what does it cost?

A run keeps checkpoints for this if it is trained with `--keep-every`. Source of the question:
Olsson et al. 2022, arXiv:2209.11895, "In-context learning and induction heads", section 3.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.heads.names import EXCESS, USUAL
from pvml.circuits.heads.patterns import PERIOD, words_of
from pvml.circuits.heads.scores import head_scores
from pvml.circuits.induction.repeats import draw_repeats, repeat_losses
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

Score = Callable[[Transformer], Mapping[str, float]]
"""From a model to its scores by name, the same names for every model."""


@dataclass(frozen=True, kw_only=True)
class Development:
    """How a run's scores and its loss went, step by step."""

    run: str
    """The run's name."""
    steps: tuple[int, ...]
    """Those of the checkpoints, ascending."""
    scores: Mapping[str, tuple[float, ...]]
    """By name: one value for each of the steps."""
    loss_steps: tuple[int, ...]
    losses: tuple[float, ...]
    """Training loss (nats per token) at every logged step; NaN where none was finite."""

    def rise(self, name: str, above: str | None = None) -> tuple[int, int] | None:
        """The two neighbouring checkpoints between which a score rose most; None if it never does.

        above: the name of its null. What rises is then its excess over that, and a score whose
        excess is nowhere as large as `EXCESS`, as a share of attention or in nats, does not rise.

        Raises: PvmlError for an unknown name.
        """
        values = self._values(name) if above is None else self._excess(name, above)
        if above is not None and not any(value >= EXCESS for value in values):
            return None
        rises = [after - before for before, after in pairwise(values)]
        rises = [rise if math.isfinite(rise) else -math.inf for rise in rises]
        if not rises or max(rises) <= 0:
            return None
        place = rises.index(max(rises))
        return self.steps[place], self.steps[place + 1]

    def halfway(self, name: str) -> int:
        """The first checkpoint at which a score is past the middle of its least and its largest.

        Raises: PvmlError for an unknown name, or a score without a finite value.
        """
        values = self._values(name)
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            raise PvmlError(f"{name} of {self.run} has no finite value")
        middle = (min(finite) + max(finite)) / 2
        return next(
            step
            for step, value in zip(self.steps, values, strict=True)
            if math.isfinite(value) and value >= middle
        )

    def _excess(self, name: str, above: str) -> tuple[float, ...]:
        pairs = zip(self._values(name), self._values(above), strict=True)
        return tuple(value - null for value, null in pairs)

    def _values(self, name: str) -> tuple[float, ...]:
        if name not in self.scores:
            raise PvmlError(
                f"{self.run} has no score {name!r}: there are {', '.join(self.scores) or 'none'}"
            )
        return self.scores[name]


def score_over_training(
    run: RunDir,
    score: Score,
    *,
    steps: Sequence[int] | None = None,
    say: Callable[[str], object] | None = None,
) -> Development:
    """What `score` gives for the model at each checkpoint, beside the run's training loss.

    steps: which checkpoints; unset: all that are there. say: takes a sentence for each, when it is
    done.

    Raises: PvmlError for steps that are none of the run's checkpoints, for fewer than two, or for
        scores whose names change; RunDirError for a damaged checkpoint.
    """
    there = run.checkpoints()
    chosen = sorted(set(there if steps is None else steps))
    if unknown := [step for step in chosen if step not in there]:
        raise PvmlError(
            f"{run.path} has no checkpoint of step {', '.join(map(str, unknown))}: there are "
            f"{', '.join(map(str, there)) or 'none'}"
        )
    if len(chosen) < 2:
        raise PvmlError(
            f"{run.path} has {len(chosen)} checkpoint(s) to look at, and a development needs two: "
            f"pvml train --keep-every N keeps one every N steps"
        )
    scores: dict[str, list[float]] = {}
    for place, step in enumerate(chosen):
        with t.no_grad():
            found = score(run.load_model(step=step))
        if place and set(found) != set(scores):
            raise PvmlError(
                f"the scores at step {step} are {', '.join(sorted(found))}, and those before were "
                f"{', '.join(sorted(scores))}: give the same names for every model"
            )
        for name, value in found.items():
            scores.setdefault(name, []).append(float(value))
        if say:
            told = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            say(f"step {step:,} ({place + 1} of {len(chosen)}): {told}")
    logged = list(run.rows("loss"))
    return Development(
        run=run.name,
        steps=tuple(chosen),
        scores={name: tuple(values) for name, values in scores.items()},
        loss_steps=tuple(int(row["step"]) for row in logged),
        losses=tuple(math.nan if row["loss"] is None else float(row["loss"]) for row in logged),
    )


def induction_score(
    tokens: Int[Tensor, "batch posn"], *, n_sequences: int = 32, seed: int = 0
) -> Score:
    """What tells of an induction circuit, to be followed over a run's checkpoints.

    The repeated-token advantage (nats), and of the previous-token and the induction scores that of
    the best head; each beside the same where the tokens are in another order. On the same rows and
    the same random tokens for every model, which must have a layer. tokens: rows of text, each with
    BOS first.

    Raises: PvmlError for a text of too few words to repeat; when it is called, as `head_scores`.
    """
    words, bos = words_of(tokens), int(tokens[0, 0])
    period = min(PERIOD, (tokens.shape[1] - 1) // 2, len(words))
    repeats = draw_repeats(words, bos, period, n_sequences, seed)

    def score(model: Transformer) -> dict[str, float]:
        losses = repeat_losses(model, repeats)
        found = {"advantage": losses.advantage, "advantage, reordered": losses.null_advantage}
        for kind, text in USUAL:
            scores = head_scores(
                model,
                tokens,
                kinds=[kind],
                texts=[text],
                n_sequences=n_sequences,
                n_random=0,
                seed=seed,
            )
            best = max(scores, key=lambda score: score.score)
            found |= {kind: best.score, f"{kind}, shuffled": best.null_mean}
        return found

    return score
