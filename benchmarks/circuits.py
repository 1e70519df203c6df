"""Reading circuits over a whole vocabulary: ours against TransformerLens's FactoredMatrix.

Run: python benchmarks/circuits.py. A card, then one line of JSON; exit code 1 where a limit is
missed. The default shape, GPT-2 small with random weights, takes about ten minutes.

Ours and theirs are processes of their own that sleep until they are told to read. In each round
they read in turn, so that a slow machine slows both; a figure is the median over rounds, a ratio
the median of the rounds' ratios. They have the same weights and use the same threads; each reads
once before anything is timed, and what they find must be the same.

Eigenvalues: of every head's OV circuit, with the copying scores. Row top: the 10 largest entries
of each row of one head's OV circuit, in float32 as the whole matrix has them, block by block in
turn with the bare float32 matmul of the same 256 rows, each written over the last. Row top of so
many tokens: the same by writing out the whole matrix, for FactoredMatrix has no other way, and by
streaming it; as many tokens as let the matrix fit into half of the memory that is free. Survey:
what `pvml.circuits.weights.surveys` keeps of a circuit. Histogram: of all its entries, from which
quantiles of the whole matrix come.

Memory is the resident set of a process that has built the model and does nothing but a survey's
scan of one circuit: how much it grows at most.
"""

import importlib.metadata
import importlib.util
import json
import math
import os
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from card import Verdict, as_command, finish, how
from peers.process import Contestant, ContestantError
from peers.race import say
from peers.readers.task import Task, What
from pvml.config import Config

Who = Literal["ours", "lens"]
WORKER = "peers.readers.worker"
MIB = 1 << 20
_CLOSE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Whose circuits are read, and what is asked of it."""

    cfg: Config
    ratios: dict[tuple[str, str], float] = field(default_factory=dict)
    """By two events: how many times as long as the second the first has to take."""
    at_most: dict[tuple[str, str], float] = field(default_factory=dict)
    """By two events: how many times as long as the second the first may take."""
    mib: float | None = None
    """How much the process may grow."""


SHAPES = {
    "gpt2-small": Shape(
        cfg=Config(n_ctx=256),
        ratios={("eigenvalues, lens", "eigenvalues, ours"): 20.0},
        at_most={("row top, ours", "bare matmul, ours"): 1.25},
        mib=256.0,
    ),
    "tiny": Shape(cfg=Config(d_model=12, n_layers=2, n_heads=3, n_ctx=8, d_vocab=500)),
}


@dataclass(frozen=True, kw_only=True)
class Args:
    """Whose circuits are read, and how often."""

    shape: Literal["gpt2-small", "tiny"] = "gpt2-small"
    """gpt2-small: GPT-2's sizes with n_ctx 256; tiny: only to see that it works."""
    rounds: int = 5
    """Interleaved rounds. Figures are medians over them: no fewer than 5 for figures to quote."""
    threads: int = os.cpu_count() or 1
    """Threads that each process uses."""
    lens: bool = True
    """Race TransformerLens."""
    dense_gib: float | None = None
    """The largest matrix that is written out (GiB). Unset: half of the memory that is free."""
    limits: bool = True
    """Judge by the limits, which are for a machine with two Zen 4 cores."""
    timeout: float = 600.0
    """Most seconds that a process may take to start, or to read."""


@dataclass
class Race:
    """What was measured: for each round, seconds by event."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    found: dict[str, list[float]] = field(default_factory=dict)
    grew: int = 0
    """Bytes."""

    def seconds(self, event: str) -> float | None:
        """The median of the rounds."""
        taken = [each[event] for each in self.rounds if event in each]
        return statistics.median(taken) if taken else None

    def ratio(self, mine: str, other: str) -> float | None:
        """How many times the other event's seconds: the median of the rounds' ratios."""
        ratios = [each[mine] / each[other] for each in self.rounds if {mine, other} <= set(each)]
        return statistics.median(ratios) if ratios else None

    def take(self, title: str, found: list[float]) -> None:
        """Keep what was found.

        Raises: ContestantError if theirs is not ours.
        """
        self.found[title] = found
        event, _, who = title.rpartition(", ")
        ours = self.found.get(f"{event}, ours", found)
        size = max(map(abs, ours), default=0.0)
        same = len(ours) == len(found) and all(
            math.isclose(a, b, rel_tol=0, abs_tol=_CLOSE * size)
            for a, b in zip(ours, found, strict=True)
        )
        if not same:
            raise ContestantError(
                f"{event}: {who} found {found[:5]}... and ours {ours[:5]}...: they have not read "
                f"the same circuits, and their times cannot be compared"
            )


def events(d_vocab: int, lens: bool) -> list[tuple[str, Who, Task]]:
    """What is read in a round, in turn. d_vocab: of the matrix that is written out."""
    told: list[tuple[str, What, int]] = [
        ("eigenvalues", "eigenvalues", 0),
        ("row top", "beside matmul", 0),
        ("survey", "survey", 0),
        ("histogram", "histogram", 0),
        (f"row top of {d_vocab:,} tokens", "row top", d_vocab),
    ]
    both = {told[0][0], told[-1][0]}
    return [
        (f"{title}, {who}", who, Task(what, d_vocab=n))
        for title, what, n in told
        for who in (("ours", "lens") if lens and title in both else ("ours",))
    ]


def run(shape: Shape, args: Args, lens: bool) -> Race:
    """Everybody reads in turn, round after round; all processes have ended afterwards.

    Raises: ContestantError for one that fails, or that finds what ours does not.
    """
    race = Race()

    def contestant(who: Who) -> Contestant:
        return Contestant(who, shape.cfg, 0, args.threads, args.timeout, WORKER)

    say("memory, in a process of its own")
    with contestant("ours") as alone:
        alone.wait_until_ready()
        race.grew = int(alone.ask(json.dumps(asdict(Task("survey"))))["grew"])
    with ExitStack() as stack:
        there = {}
        for who in ("ours", "lens") if lens else ("ours",):
            there[who] = stack.enter_context(contestant(who))
            there[who].wait_until_ready()
        planned = events(dense_tokens(shape.cfg.d_vocab, args.dense_gib), lens)
        for i in range(args.rounds + 1):
            say(f"round {i} of {args.rounds}" if i else "a first time, for nothing")
            taken = {}
            for title, who, task in planned:
                told = there[who].ask(json.dumps(asdict(task)))
                taken[title] = float(told["seconds"])
                if told["matmul_seconds"] is not None:
                    taken["bare matmul, ours"] = float(told["matmul_seconds"])
                race.take(title, told["found"])
            if i:
                race.rounds.append(taken)
    return race


def dense_tokens(d_vocab: int, gib: float | None) -> int:
    """For how many tokens a matrix in float32 fits."""
    n_bytes = _free_bytes() / 2 if gib is None else gib * (1 << 30)
    return min(d_vocab, math.isqrt(int(n_bytes / 4)))


def _free_bytes() -> int:
    try:
        told = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
    except OSError:
        return 8 << 30
    return 1024 * int(told.split()[0])


def judge(shape: Shape, race: Race) -> list[Verdict]:
    """Every limit of the shape."""
    verdicts = []
    for limits, word in ((shape.ratios, "least"), (shape.at_most, "most")):
        for (one, other), limit in limits.items():
            ratio = race.ratio(one, other)
            ok = ratio is not None and (ratio >= limit if word == "least" else ratio <= limit)
            verdicts.append(Verdict(f"{one} over {other}, at {word}", limit, ratio, " times", ok))
    if shape.mib is not None:
        mib = race.grew / MIB
        what = "survey: memory above the model, at most"
        verdicts.append(Verdict(what, shape.mib, mib, " MiB", mib <= shape.mib))
    return verdicts


def card(shape: Shape, race: Race, args: Args, skipped: str | None) -> list[str]:
    """The lines for people."""
    cfg, n = shape.cfg, 2 * shape.cfg.n_layers * shape.cfg.n_heads
    lines = [
        f"Reading circuits: d{cfg.d_model}, {cfg.n_layers} layers, {cfg.n_heads} heads, "
        f"{cfg.d_vocab:,} tokens, random weights",
        how(args.threads, args.rounds),
        "",
        f"{'':<40}{'seconds':>9}  (fastest to slowest)",
    ]
    for title in race.rounds[0]:
        taken = [each[title] for each in race.rounds]
        span = f"({min(taken):.3f} to {max(taken):.3f})"
        lines.append(f"{title:<40}{statistics.median(taken):>9.3f}  {span}")
    lines += [
        "",
        f"a survey of all {n} circuits, projected: {n * race.seconds('survey, ours') / 60:.1f} min",  # type: ignore[operator]
        f"a survey's memory above the model: {race.grew / MIB:.0f} MiB",
    ]
    return lines + ([f"TransformerLens did not race: {skipped}"] if skipped else [])


def why_no_lens(wanted: bool) -> str | None:
    """Why TransformerLens does not race, None if it does."""
    if not wanted:
        return "not asked for"
    if importlib.util.find_spec("transformer_lens") is None:
        return "it needs the package transformer_lens: pip install 'pvml[dev]'"
    return None


def main(args: Args) -> int:
    """Print the card and the JSON line; 1 if a limit is missed."""
    shape, skipped = SHAPES[args.shape], why_no_lens(args.lens)
    race = run(shape, args, lens=skipped is None)
    verdicts = judge(shape, race) if args.limits else []
    return finish(
        "circuits",
        args,
        card(shape, race, args, skipped),
        verdicts,
        config=shape.cfg.to_dict(),
        seconds={title: race.seconds(title) for title in race.rounds[0]},
        grew_bytes=race.grew,
        skipped=skipped,
    )


if __name__ == "__main__":
    as_command(main, Args, __doc__)
