"""One training step: its time and the process's peak memory, ours against other implementations.

Run: python benchmarks/train.py. A card, then one line of JSON; exit code 1 where a limit is missed.
The default shape takes about eight minutes.

Every contestant is a process of its own that sleeps until it is told to take one step (forward,
loss, backward, optimizer). In each round all of them take a turn, so that a slow machine slows all:
three steps, of which the first is not timed, for what slept has to find its memory again. A figure
is the median over rounds, a ratio the median of the rounds' ratios. They start from the same
weights, read the same random tokens, use the same threads and PyTorch's fused AdamW; each takes a
first step before anything is timed, and its loss must be ours, then and later.

Memory is the peak resident set of the whole process since its start: interpreter, libraries, model,
optimizer, building and compiling. What the floor counts is told in `peers/floor.py`.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from card import Verdict, as_command, finish, how
from peers.race import NAMES, OURS, PeerName, Race, precision, run
from pvml.config import Config

GIB = 1 << 30
PACKAGES = {"native_lens": "transformer_lens", "hugging_face": "transformers"}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is trained, and what is asked of it."""

    cfg: Config
    batch: int = 32
    peers: tuple[PeerName, ...] = (
        "seeds",
        "native_lens",
        "hugging_face",
        "nanogpt",
        "nanogpt-compiled",
        "nanogpt-compiled-loss",
    )
    one_at_a_time: bool = False
    """Whether a peer ends before the next one starts, because each needs half the memory."""
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)
    """By ours, by peer: how many times as long the peer has to take."""
    shares: dict[str, float] = field(default_factory=dict)
    """By ours: least share of the step that the floor has to be."""
    gib: float | None = None
    """Most memory that ours may need."""


def sizes(**changes: int) -> Config:
    return Config(**{"d_model": 128, "n_layers": 6, "n_heads": 4, "n_ctx": 128, **changes})


SHAPES = {
    "default": Shape(
        cfg=sizes(),
        ratios={
            "ours-float32": {
                "seeds": 4.3,
                "native_lens": 2.7,
                "hugging_face": 2.3,
                "nanogpt-compiled": 2.1,
            },
            "ours-bfloat16": {
                "seeds": 6.5,
                "native_lens": 4.0,
                "hugging_face": 3.3,
                "nanogpt-compiled": 3.0,
            },
        },
        shares={"ours-float32": 0.75, "ours-bfloat16": 0.70},
        gib=1.0,
    ),
    "long": Shape(
        cfg=sizes(n_ctx=512),
        peers=("seeds", "hugging_face"),
        one_at_a_time=True,
        ratios={"ours-bfloat16": {"seeds": 5.7}},
        gib=1.6,
    ),
    "small-vocab": Shape(
        cfg=sizes(d_vocab=4096),
        ratios={"ours-bfloat16": {"nanogpt-compiled": 1.5}},
    ),
    "tiny": Shape(cfg=sizes(d_model=20, n_layers=2, n_ctx=16, d_vocab=101), batch=3),
}


@dataclass(frozen=True, kw_only=True)
class Args:
    """Which step is timed, and how often."""

    shape: Literal["default", "long", "small-vocab", "tiny"] = "default"
    """d128, 6 layers, 4 heads, n_ctx 128, batch 32, 50,257 tokens; long: n_ctx 512; small-vocab:
    4,096 tokens; tiny: only to see that it works."""
    rounds: int = 5
    """Interleaved rounds. Figures are medians over them: no fewer than 5 for figures to quote."""
    threads: int = os.cpu_count() or 1
    """Threads that each contestant uses."""
    peers: tuple[PeerName, ...] | None = None
    """Whom to race. Unset: all that the shape has."""
    limits: bool = True
    """Judge by the limits, which are for a machine with two Zen 4 cores."""
    timeout: float = 300.0
    """Most seconds that a contestant may take to start, or for a step."""


def judge(shape: Shape, race: Race) -> list[Verdict]:
    """Every limit of the shape."""
    verdicts = []
    for ours in OURS:
        for peer, limit in shape.ratios.get(ours, {}).items():
            ratio = race.ratio(peer, ours)
            what = f"{NAMES[peer]} over {NAMES[ours]}, at least"
            ok = ratio is not None and ratio >= limit
            verdicts.append(Verdict(what, limit, ratio, " times", ok))
        if ours in shape.shares:
            limit, share = shape.shares[ours], race.share(ours)
            what = f"floor over {NAMES[ours]}, at least"
            verdicts.append(Verdict(what, limit, share, "", share >= limit))
        if shape.gib is not None:
            gib = race.peak_bytes[ours] / GIB
            what = f"peak memory of {NAMES[ours]}, at most"
            verdicts.append(Verdict(what, shape.gib, gib, " GiB", gib <= shape.gib))
    return verdicts


def why_not(peer: PeerName) -> str | None:
    """What this machine lacks for a peer, None if nothing."""
    package = PACKAGES.get(peer)
    if package and importlib.util.find_spec(package) is None:
        return f"it needs the package {package}: pip install 'pvml[dev]'"
    compiler = os.environ.get("CXX", "g++")
    if "compiled" in peer and shutil.which(compiler) is None:
        return f"torch.compile needs {compiler}, which is not here"
    return None


def figures(race: Race) -> dict[str, Any]:
    """What is known of each contestant: seconds, ratios, bytes, nats."""
    return {
        name: {
            "seconds": statistics.median(race.seconds(name)),
            "fastest": min(race.seconds(name)),
            "slowest": max(race.seconds(name)),
            "ratio": {ours: race.ratio(name, ours) for ours in OURS},
            "peak_bytes": race.peak_bytes[name],
            "first_loss": losses[0],
            "last_loss": losses[-1],
        }
        for name, losses in race.losses.items()
    }


def card(shape: Shape, race: Race, args: Args, skipped: dict[PeerName, str]) -> list[str]:
    """The lines for people."""
    cfg = shape.cfg
    lines = [
        f"One training step: d{cfg.d_model}, {cfg.n_layers} layers, {cfg.n_heads} heads, "
        f"n_ctx {cfg.n_ctx}, batch {shape.batch}, {cfg.d_vocab:,} tokens",
        how(args.threads, args.rounds),
        "",
        f"{'':<18}{'step, ms':>9}  {'(fastest to slowest)':<21}{'over float32':>13}"
        f"{'over bfloat16':>15}{'peak, GiB':>11}",
    ]
    for name, about in figures(race).items():
        span = f"({1e3 * about['fastest']:,.0f} to {1e3 * about['slowest']:,.0f})"
        to_float32, to_bfloat16 = (about["ratio"][ours] for ours in OURS)
        lines.append(
            f"{NAMES[name]:<18}{1e3 * about['seconds']:9,.0f}  {span:<21}{to_float32:13.2f}"
            f"{to_bfloat16:15.2f}{about['peak_bytes'] / GIB:11.2f}"
        )
    lines += [f"{NAMES[name]} did not race: {reason}" for name, reason in skipped.items()]
    lines.append("")
    for ours in OURS:
        lines.append(
            f"floor, {precision(ours)}: {1e3 * race.floor(precision(ours)):,.0f} ms, "
            f"{race.share(ours):.0%} of our step"
        )
    lines.append(f"floor, bfloat16 in the blocks too: {1e3 * race.floor('all bfloat16'):,.0f} ms")
    rates = race.flops_per_second()
    lines += ["", f"{'GFLOP/s':<24}" + "".join(f"{how:>16}" for how in rates)]
    for product in next(iter(rates.values())):
        cells = [f"{of[product] / 1e9:.0f}" if product in of else "" for of in rates.values()]
        lines.append((f"{product:<24}" + "".join(f"{cell:>16}" for cell in cells)).rstrip())
    return lines


def main(args: Args) -> int:
    """Print the card and the JSON line; 1 if a limit is missed."""
    shape = SHAPES[args.shape]
    wanted = shape.peers if args.peers is None else args.peers
    skipped = {peer: reason for peer in wanted if (reason := why_not(peer))}
    peers = [peer for peer in wanted if peer not in skipped]
    race = run(
        shape.cfg,
        shape.batch,
        [[peer] for peer in peers] if shape.one_at_a_time else [peers],
        rounds=args.rounds,
        threads=args.threads,
        timeout=args.timeout,
    )
    verdicts = judge(shape, race) if args.limits else []
    return finish(
        "train",
        args,
        card(shape, race, args, skipped),
        verdicts,
        config=shape.cfg.to_dict(),
        batch=shape.batch,
        contestants=figures(race),
        skipped=skipped,
        floor_seconds={kind: race.floor(kind) for kind in race.floors[0]},
        floor_shares={ours: race.share(ours) for ours in OURS},
        flops_per_second=race.flops_per_second(),
    )


if __name__ == "__main__":
    as_command(main, Args, __doc__)
