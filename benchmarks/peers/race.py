"""Who races, and one race: contestants take turns, and what they tell is kept."""

import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from peers.process import Contestant, ContestantError
from pvml.config import Config

OURS = ("ours-float32", "ours-bfloat16")
FLOOR = "floor"
NAMES = {
    "ours-float32": "ours, float32",
    "ours-bfloat16": "ours, bfloat16",
    "seeds": "the seeds' way",
    "native_lens": "TransformerLens",
    "hugging_face": "Hugging Face",
    "nanogpt": "nanoGPT",
    "nanogpt-compiled": "nanoGPT compiled",
    "nanogpt-compiled-loss": "nanoGPT loss only",
    "floor": "the floor",
}
PeerName = Literal[
    "seeds", "native_lens", "hugging_face", "nanogpt", "nanogpt-compiled", "nanogpt-compiled-loss"
]

TIMED_STEPS = 2
"""A turn's steps that are timed. The one before them is not: what slept has to find its memory
again, and in training steps follow one another."""
_ROUNDING = 1e-5
"""How far a first loss may be from ours in float32, as a share of it."""
_NEAR = 0.02
"""How far it may be in bfloat16, and any loss after a step of the optimizer (nats)."""
_COMPARED = 20
"""Steps after which rounding may have led further apart."""


@dataclass
class Race:
    """What was measured. A round is one turn of every contestant that was there."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    """Seconds of a step by contestant, for each round: the mean of its turn's."""
    floors: list[dict[str, float]] = field(default_factory=list)
    """Seconds by kind of floor, for each round."""
    rates: list[dict[str, dict[str, float]]] = field(default_factory=list)
    """FLOP/s by arithmetic and product, for each round."""
    losses: dict[str, list[float]] = field(default_factory=dict)
    """By contestant: the loss before each of its steps (nats), the first one included."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """By contestant: its process's largest resident set so far."""

    def step(self, contestant: Contestant) -> dict[str, Any]:
        """Have it take a step; what it tells. Its losses are ours, the first ones at least.

        Raises: ContestantError if it fails, or if its loss is not ours.
        """
        name, told = contestant.name, contestant.step()
        self.peak_bytes[name] = told["peak_bytes"]
        if "loss" in told:
            self.losses.setdefault(name, []).append(told["loss"])
            self._require_same_loss(name)
        return told

    def take_round(self, contestants: Sequence[Contestant]) -> None:
        """A turn of each, one after the other.

        Raises: ContestantError as `step` does.
        """
        seconds = {}
        for contestant in contestants:
            _, *told = [self.step(contestant) for _ in range(1 + TIMED_STEPS)]
            if contestant.name == FLOOR:
                self.floors.append(told[-1]["floors"])
                self.rates.append(told[-1]["rates"])
            else:
                seconds[contestant.name] = statistics.mean(step["seconds"] for step in told)
        self.rounds.append(seconds)

    def _require_same_loss(self, name: str) -> None:
        losses, ours = self.losses[name], self.losses[OURS[0]]
        step = len(losses)
        if step > _COMPARED:
            return
        got, expected = losses[-1], ours[step - 1]
        exact = step == 1 and name != "ours-bfloat16"
        if not abs(got - expected) <= (_ROUNDING * expected if exact else _NEAR):
            raise ContestantError(
                f"{NAMES[name]} has a loss of {got:.7f} nats at step {step} and ours is "
                f"{expected:.7f}: they are not the same model, and their times cannot be compared"
            )

    def seconds(self, name: str) -> list[float]:
        """One contestant's steps in the rounds."""
        return [taken[name] for taken in self.rounds if name in taken]

    def ratio(self, peer: str, ours: str) -> float | None:
        """How many times as long the peer takes: the median of the rounds' ratios."""
        ratios = [taken[peer] / taken[ours] for taken in self.rounds if peer in taken]
        return statistics.median(ratios) if ratios else None

    def floor(self, kind: str) -> float:
        """Seconds that a step takes at least, the median of the rounds'."""
        return statistics.median(floor[kind] for floor in self.floors)

    def share(self, ours: str) -> float:
        """The floor's share of the step: the median of the rounds' shares."""
        pairs = zip(self.floors, self.rounds, strict=True)
        return statistics.median(floor[precision(ours)] / taken[ours] for floor, taken in pairs)

    def flops_per_second(self) -> dict[str, dict[str, float]]:
        """By arithmetic and product, medians of the rounds."""
        return {
            how: {name: statistics.median(rates[how][name] for rates in self.rates) for name in of}
            for how, of in self.rates[0].items()
        }


def precision(ours: str) -> str:
    return ours.partition("-")[2]


def run(
    cfg: Config,
    batch: int,
    groups: Sequence[Sequence[PeerName]],
    *,
    rounds: int,
    threads: int,
    timeout: float,
) -> Race:
    """Race ours and the floor against each group of peers, one group in memory after the other.

    Everybody takes a first step before its rounds, which is not timed. All processes have ended
    when this returns or raises.

    Raises: ContestantError for a contestant that fails, or whose loss is not ours.
    """
    race = Race()

    def started(stack: ExitStack, names: Sequence[str]) -> list[Contestant]:
        say(f"starting {', '.join(NAMES[name] for name in names)}")
        contestants = [
            stack.enter_context(Contestant(name, cfg, batch, threads, timeout)) for name in names
        ]
        for contestant in contestants:
            contestant.wait_until_ready()
        for contestant in contestants:
            race.step(contestant)
        return contestants

    with ExitStack() as always:
        ours = started(always, [*OURS, FLOOR])
        for group in groups:
            with ExitStack() as stack:
                theirs = started(stack, group)
                for i in range(rounds):
                    say(f"round {i + 1} of {rounds}")
                    race.take_round([*ours, *theirs])
    return race


def say(what: str) -> None:
    """Tell on stderr how far it is: a race takes minutes."""
    print(what, file=sys.stderr, flush=True)
