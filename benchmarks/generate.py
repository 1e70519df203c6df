"""Tokens per second: ours against other implementations, and against reading the weights.

Run: python benchmarks/generate.py. A card, then one line of JSON; exit code 1 where a limit is
missed. The default shape, GPT-2 small with random weights, takes about ten minutes.

Every contestant is a process of its own that sleeps until it is told to write. In each round all
of them write, in turn, so that a slow machine slows all; a figure is the median over rounds, a
ratio the median of the rounds' ratios. They have the same weights, go on from the same prompts of
two tokens, always with the likeliest token, and use the same threads. Before each turn that is
timed a contestant writes two tokens, for what slept has to find its memory again; before the first
round it takes a whole turn for nothing. In float32 their tokens must be ours.

Rates count new tokens over the whole call, prompt included. TransformerLens's native model has no
working cache: the longer the text, the slower it is, so the two also write 200 tokens, a story's
length. Our own loop without one writes a few tokens.
The floor is the rate at which torch.sum reads the matrices that a token needs. Past the window:
the text is longer than n_ctx. Exact windows cost a whole pass a token; blocks of a quarter of n_ctx
use the cache in between, and what is timed is one whole round of them.

int8 weights are another model: how far its logits are from float32's is told too, after the last
token of prompts of two, as shares of the largest of a row and of its spread.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch as t

from card import Verdict, as_command, finish, how
from peers.process import Contestant, ContestantError
from peers.race import say
from peers.writers.task import How, Task
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer

NAMES = {
    "ours-float32": "ours, float32",
    "ours-int8": "ours, int8 weights",
    "ours-bfloat16": "ours, bfloat16",
    "hugging_face-float32": "Hugging Face",
    "hugging_face-bfloat16": "Hugging Face, bfloat16",
    "native_lens": "TransformerLens",
    "ctranslate2-float32": "CTranslate2",
    "ctranslate2-int8": "CTranslate2, int8",
}
PACKAGES = {
    "native_lens": "transformer_lens",
    "hugging_face": "transformers",
    "ctranslate2": "ctranslate2",
}
HF, CT2, LENS = "hugging_face-float32", "ctranslate2-float32", "native_lens"


@dataclass(frozen=True)
class Event:
    """What is written in a round, by whom."""

    title: str
    how: How
    batch: int
    n_new: int
    who: tuple[str, ...]
    beams: int = 1
    length: int = 2
    """Tokens of each prompt."""


def events(n_new: int, few: int, n_ctx: int) -> list[Event]:
    """n_new: tokens at batch 1; few: of our loop without a cache."""
    ours, wide = "ours-float32", ("ours-float32", "ours-bfloat16")
    block = n_ctx // 4
    one = ("ours-int8", HF, CT2, "ctranslate2-int8", LENS)
    return [
        Event("batch 1", "greedy", 1, n_new, (ours, *one)),
        Event("batch 1, no cache", "no cache", 1, few, (ours,)),
        Event("batch 1, longer", "greedy", 1, min(200, n_ctx - 2), (ours, LENS)),
        Event("floor", "read weights", 1, n_new, (ours,)),
        Event("batch 64", "greedy", 64, 12, (*wide, HF, "hugging_face-bfloat16", CT2)),
        Event("3 beams", "beams", 1, 20, (ours, HF), beams=3),
        Event("8 beams", "beams", 1, 20, (ours, HF), beams=8),
        Event("past the window, exact", "exact window", 1, 2, (ours,), length=n_ctx + 1),
        Event("past the window, blocks", "blocks", 1, block, (ours,), length=n_ctx + 1),
    ]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What writes, and what is asked of it."""

    cfg: Config
    events: list[Event]
    ratios: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By event, ours and peer: how many times the peer's rate ours has to be."""
    share: float | None = None
    """Least share of the floor's rate at batch 1."""


SHAPES = {
    "gpt2-small": Shape(
        cfg=Config(n_ctx=256),
        events=events(50, 6, 256),
        ratios={
            ("batch 1", "ours-float32", HF): 1.9,
            ("batch 1", "ours-float32", CT2): 1.0,
            ("batch 1", "ours-int8", HF): 3.3,
            ("batch 1, longer", "ours-float32", LENS): 8.0,
            ("batch 64", "ours-float32", HF): 1.35,
            ("batch 64", "ours-bfloat16", HF): 1.9,
            ("3 beams", "ours-float32", HF): 2.5,
            ("8 beams", "ours-float32", HF): 2.0,
        },
        share=0.8,
    ),
    "d128": Shape(
        cfg=Config(d_model=128, n_layers=6, n_heads=4, n_ctx=128),
        events=events(100, 30, 128),
        ratios={
            ("batch 1", "ours-float32", HF): 2.8,
            ("batch 1", "ours-float32", CT2): 1.0,
        },
    ),
    "tiny": Shape(cfg=Config(d_model=20, n_layers=2, n_heads=4, n_ctx=32), events=events(8, 3, 32)),
}


@dataclass(frozen=True, kw_only=True)
class Args:
    """What writes, and how often."""

    shape: Literal["gpt2-small", "d128", "tiny"] = "gpt2-small"
    """gpt2-small: GPT-2's sizes with n_ctx 256; d128: 6 layers, 4 heads, n_ctx 128; tiny: only to
    see that it works."""
    rounds: int = 5
    """Interleaved rounds. Figures are medians over them: no fewer than 5 for figures to quote."""
    threads: int = os.cpu_count() or 1
    """Threads that each contestant uses."""
    peers: tuple[str, ...] | None = None
    """Whom to race, beside ours: hugging_face, native_lens, ctranslate2. Unset: all."""
    limits: bool = True
    """Judge by the limits, which are for a machine with two Zen 4 cores."""
    timeout: float = 300.0
    """Most seconds that a contestant may take to start, or to write."""


@dataclass
class Race:
    """What was measured: for each round, tokens per second by event and contestant."""

    rounds: list[dict[tuple[str, str], float]] = field(default_factory=list)
    ids: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    int8: dict[str, float] = field(default_factory=dict)
    """How far the logits of int8 weights are from float32's: see `int8_error`."""

    def take(self, event: Event, prompts: list[list[int]], contestant: Contestant) -> float:
        """Have it write; tokens per second.

        Raises: ContestantError if it fails, or writes other tokens than ours in float32 does.
        """
        task = Task(event.how, prompts, event.n_new, event.beams)
        told = contestant.ask(json.dumps(asdict(task)))
        self.peak_bytes[contestant.name] = told["peak_bytes"]
        if event.how != "read weights":
            self.ids[event.title, contestant.name] = told["ids"]
            self._require_ours(event, contestant.name, len(prompts))
        return len(prompts) * event.n_new / float(told["seconds"])

    def _require_ours(self, event: Event, name: str, n_texts: int) -> None:
        ids = self.ids[event.title, name]
        if [len(each) for each in ids] != [event.n_new] * n_texts:
            raise ContestantError(
                f"{NAMES[name]} wrote {[len(each) for each in ids]} tokens, and not {event.n_new}"
            )
        if name.endswith(("int8", "bfloat16")) or event.how in ("exact window", "blocks"):
            return
        title = "batch 1" if event.how == "no cache" else event.title
        expected = [each[: event.n_new] for each in self.ids[title, "ours-float32"]]
        if ids != expected:
            raise ContestantError(
                f"{event.title}: {NAMES[name]} wrote {ids} and ours {expected}: they are not the "
                f"same model, and their times cannot be compared"
            )

    def rate(self, event: str, name: str) -> float | None:
        """Tokens per second, the median of the rounds."""
        rates = [taken[event, name] for taken in self.rounds if (event, name) in taken]
        return statistics.median(rates) if rates else None

    def ratio(self, mine: tuple[str, str], other: tuple[str, str]) -> float | None:
        """How many times the other rate the first is: the median of the rounds' ratios."""
        ratios = [
            taken[mine] / taken[other] for taken in self.rounds if mine in taken and other in taken
        ]
        return statistics.median(ratios) if ratios else None


def prompts_of(event: Event) -> list[list[int]]:
    """BOS and words, so many tokens each, that the tokenizer reads back as they are."""
    tokenizer = Tokenizer.gpt2()
    words = (i for i in range(1000, tokenizer.d_vocab) if _is_word(tokenizer, i))
    found = [next(words) for _ in range(event.batch)]
    filling = [found[0]] * (event.length - 2)
    return [[tokenizer.bos_token_id, word, *filling] for word in found]


def _is_word(tokenizer: Tokenizer, i: int) -> bool:
    return tokenizer.encode(tokenizer.decode([i])) == [i]


def run(shape: Shape, names: list[str], args: Args) -> Race:
    """Everybody writes in turn, round after round; all processes have ended afterwards.

    Raises: ContestantError for a contestant that fails, or whose tokens are not ours.
    """
    race = Race()
    prompts = {event.title: prompts_of(event) for event in shape.events}
    with ExitStack() as stack:
        say(f"starting {', '.join(NAMES[name] for name in names)}")
        there = {}
        for name in names:
            contestant = Contestant(
                name, shape.cfg, 0, args.threads, args.timeout, "peers.writers.worker"
            )
            there[name] = stack.enter_context(contestant)
            # one after the other: each holds the weights several times while it is built
            contestant.wait_until_ready()
        for i in range(args.rounds + 1):
            say(f"round {i} of {args.rounds}" if i else "a first time, for nothing")
            taken = {}
            for event in shape.events:
                for name in event.who:
                    if name in there:
                        rate = race.take(event, prompts[event.title], there[name])
                        taken[event.title, name] = rate
            if i:
                race.rounds.append(taken)
        if "ours-int8" in there:
            race.int8 = int8_error(there["ours-float32"], there["ours-int8"])
    return race


def int8_error(exact: Contestant, rounded: Contestant) -> dict[str, float]:
    """How far the rounded one's logits are from the exact one's, after 16 prompts.

    largest: the largest difference, as a share of the row's largest logit by size; spread: the
    differences' standard deviation as a share of the row's; both the worst of all rows. same: the
    share of rows whose likeliest token is the same.
    """
    prompts = prompts_of(Event("", "logits", 16, 1, ()))
    told = json.dumps(asdict(Task("logits", prompts, 1)))
    truth, got = (t.tensor(each.ask(told)["ids"], dtype=t.float64) for each in (exact, rounded))
    off = got - truth
    return {
        "largest": float((off.abs().amax(-1) / truth.abs().amax(-1)).max()),
        "spread": float((off.std(-1) / truth.std(-1)).max()),
        "same": float((got.argmax(-1) == truth.argmax(-1)).double().mean()),
    }


def judge(shape: Shape, race: Race) -> list[Verdict]:
    """Every limit of the shape."""
    verdicts = []
    for (event, mine, other), limit in shape.ratios.items():
        ratio = race.ratio((event, mine), (event, other))
        what = f"{event}: {NAMES[mine]} over {NAMES[other]}, at least"
        verdicts.append(Verdict(what, limit, ratio, " times", ratio is not None and ratio >= limit))
    if shape.share is not None:
        share = race.ratio(("batch 1", "ours-float32"), ("floor", "ours-float32"))
        what = "batch 1: share of the rate at which torch.sum reads the weights, at least"
        ok = share is not None and share >= shape.share
        verdicts.append(Verdict(what, shape.share, share, "", ok))
    return verdicts


def figures(shape: Shape, race: Race) -> dict[str, Any]:
    """By event and contestant: tokens per second, and our float32's rate over it."""
    told: dict[str, Any] = {}
    for event in shape.events:
        ours = (event.title, "ours-float32")
        if "ours-float32" not in event.who:
            ours = ("batch 1", "ours-float32")
        told[event.title] = {
            name: {
                "tokens_per_second": race.rate(event.title, name),
                "slowest": min(taken[event.title, name] for taken in race.rounds),
                "fastest": max(taken[event.title, name] for taken in race.rounds),
                "ours_over_it": race.ratio(ours, (event.title, name)),
            }
            for name in event.who
            if (event.title, name) in race.rounds[0]
        }
    return told


def card(shape: Shape, race: Race, args: Args, skipped: dict[str, str]) -> list[str]:
    """The lines for people."""
    cfg = shape.cfg
    lines = [
        f"Writing: d{cfg.d_model}, {cfg.n_layers} layers, {cfg.n_heads} heads, "
        f"n_ctx {cfg.n_ctx}, {cfg.d_vocab:,} tokens, random weights",
        how(args.threads, args.rounds),
        "",
        f"{'':<50}{'tokens/s':>9}  {'(slowest to fastest)':<22}{'ours over it':>12}",
    ]
    for title, of in figures(shape, race).items():
        for name, about in of.items():
            who = "torch.sum of the weights" if title == "floor" else NAMES[name]
            rate = f"{about['tokens_per_second']:,.1f}"
            span = f"({about['slowest']:,.1f} to {about['fastest']:,.1f})"
            ratio = "" if about["ours_over_it"] is None else f"{about['ours_over_it']:.2f}"
            lines.append(f"{title:<25}{who:<25}{rate:>9}  {span:<22}{ratio:>12}")
    if race.int8:
        lines.append(
            f"int8 weights: logits up to {race.int8['largest']:.1%} of a row's largest from "
            f"float32's, {race.int8['spread']:.1%} of its spread; "
            f"{race.int8['same']:.0%} of the likeliest tokens are the same"
        )
    lines += [f"{NAMES[name]} did not race: {reason}" for name, reason in skipped.items()]
    return lines


def why_not(name: str, wanted: tuple[str, ...] | None) -> str | None:
    """Why a contestant does not race, None if it does."""
    peer = name.partition("-")[0]
    package = PACKAGES.get(peer)
    if package and wanted is not None and peer not in wanted:
        return "not asked for"
    if package and importlib.util.find_spec(package) is None:
        return f"it needs the package {package}: pip install 'pvml[dev]'"
    return None


def main(args: Args) -> int:
    """Print the card and the JSON line; 1 if a limit is missed."""
    shape = SHAPES[args.shape]
    skipped = {name: reason for name in NAMES if (reason := why_not(name, args.peers))}
    race = run(shape, [name for name in NAMES if name not in skipped], args)
    verdicts = judge(shape, race) if args.limits else []
    return finish(
        "generate",
        args,
        card(shape, race, args, skipped),
        verdicts,
        config=shape.cfg.to_dict(),
        events=[dataclasses.asdict(event) for event in shape.events],
        rates=figures(shape, race),
        peak_bytes=race.peak_bytes,
        int8_error=race.int8,
        skipped=skipped,
    )


if __name__ == "__main__":
    as_command(main, Args, __doc__)
