"""What silent taps cost: their share of one decode step, by two measurements.

Run: python benchmarks/taps.py. A card, then one line of JSON; exit code 1 where the share that is
compared is 1% or more.

Compared: the step against the same step without taps. The twin's code is the model's own, read from
its source files, with `tap.at(name, x)` replaced by `x`; its parameters are the same tensors; its
logits are asserted to be equal, bit for bit. Steps of both are mixed, so that a slow machine slows
both. It is the difference of two long times: read its range, and do not trust it to 0.2%.

Counted: the calls that taps receive in one step are recorded, then replayed alone, over and over,
in caches that are warm with nothing else. That is exact, and the least they can cost.

One thread, timed by that thread's own clock, which stands still while other programs have the core.
"""

import ast
import copy
import importlib
import inspect
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch as t
import tyro

from pvml.config import Config
from pvml.modules.cache import KVCache
from pvml.modules.transformer import Transformer
from pvml.trace.tap import Tap

LIMIT = 0.01
MODULES = (
    "embedding",
    "normalization",
    "attention",
    "mlp",
    "block",
    "unembedding",
    "transformer",
)


@dataclass(frozen=True, kw_only=True)
class Args:
    """Which step is timed, and how often."""

    rounds: int = 7
    """Interleaved rounds; figures are medians over them."""
    steps: int = 300
    """Steps of each model in a round, for the small model; GPT-2's shape takes a tenth."""
    position: int = 64
    """Tokens already in the cache when the step begins."""


class _TapsRemoved(ast.NodeTransformer):
    """`tap.at(name, x)` becomes `x`, and nobody wants a hidden tensor."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        tap, _, method = called.removeprefix("self.").partition(".")
        if tap != "tap":
            return node
        return ast.Constant(False) if method == "wants" else node.args[1]


def without_taps(model: Transformer) -> Transformer:
    """The same model, on the same parameters, running its own source with the taps removed."""
    classes: dict[str, type] = {}
    for name in MODULES:
        original = importlib.import_module(f"pvml.modules.{name}")
        tree = ast.fix_missing_locations(
            _TapsRemoved().visit(ast.parse(inspect.getsource(original)))
        )
        bare = ModuleType(f"bare_{name}")
        exec(compile(tree, f"<{name} without taps>", "exec"), bare.__dict__)
        classes |= {
            key: value
            for key, value in vars(bare).items()
            if inspect.isclass(value) and value.__module__ == bare.__name__
        }
    shared: dict[int, Any] = {id(x): x for x in model.parameters()}
    twin = copy.deepcopy(model, shared)
    for module in twin.modules():
        if hasattr(module, "tap") or module is twin:
            module.__class__ = classes[type(module).__name__]
    return twin


def step(model: Transformer, token: t.Tensor, cache: KVCache) -> t.Tensor:
    """The logits of one more token; afterwards the cache is as it was."""
    logits: t.Tensor = model(token, cache=cache)
    cache.advance(-1, None)
    return logits


@contextmanager
def recording() -> Iterator[list[tuple[Any, ...]]]:
    """Within it, every call of a tap is noted: (at, name, tensor) or (wants, names...)."""
    calls: list[tuple[Any, ...]] = []
    at, wants = Tap.at, Tap.wants

    # bound to the methods themselves: their names lead here, and a replay would be recorded again
    def noted_at(self: Tap, name: str, x: t.Tensor) -> t.Tensor:
        calls.append((at.__get__(self), name, x))
        return at(self, name, x)

    def noted_wants(self: Tap, *names: str) -> bool:
        calls.append((wants.__get__(self), *names))
        return wants(self, *names)

    Tap.at, Tap.wants = noted_at, noted_wants  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        Tap.at, Tap.wants = at, wants  # type: ignore[method-assign]


def seconds_of_calls(calls: list[tuple[Any, ...]], times: int = 2000) -> float:
    """Seconds for one set of these calls. The loop itself is not subtracted: it stands for the
    looking up of `self.tap`, which the replay does not do."""
    start = time.thread_time()
    for _ in range(times):
        for fn, *given in calls:
            fn(*given)
    return (time.thread_time() - start) / times


def measure(name: str, cfg: Config, args: Args, steps: int) -> dict[str, Any]:
    """Both measurements of one model's step."""
    model = Transformer(cfg, seed=0).eval()
    bare = without_taps(model)
    generator = t.Generator().manual_seed(0)
    prompt = t.randint(cfg.d_vocab, (1, args.position), generator=generator)
    token = t.randint(cfg.d_vocab, (1, 1), generator=generator)
    cache = KVCache(cfg, n_ctx=args.position + 1)
    model(prompt, cache=cache)
    with recording() as calls:
        expected = step(model, token, cache)
    with recording() as none:
        got = step(bare, token, cache)
    if none or not t.equal(expected, got):
        raise RuntimeError("the model without taps still has some, or computes something else")

    rounds: list[tuple[float, float, float]] = []
    for _ in range(args.rounds):
        taken: tuple[list[float], list[float]] = ([], [])
        # in random order: whoever always came second would find the caches warm
        for which in random.Random(len(rounds)).sample((0, 1), k=2 * steps, counts=(steps, steps)):
            start = time.thread_time()
            step((model, bare)[which], token, cache)
            taken[which].append(time.thread_time() - start)
        tapped, free = (statistics.median(seconds) for seconds in taken)
        rounds.append((tapped, free, seconds_of_calls(calls)))
    tapped, free, in_taps = (statistics.median(column) for column in zip(*rounds, strict=True))
    compared = [with_taps / without - 1 for with_taps, without, _ in rounds]
    return {
        "model": name,
        "tap_calls": len(calls),
        "step_ms": 1e3 * tapped,
        "step_without_ms": 1e3 * free,
        "taps_us": 1e6 * in_taps,
        "counted_share": statistics.median(c / s for s, _, c in rounds),
        "compared_share": statistics.median(compared),
        "compared_range": [min(compared), max(compared)],
    }


def main(args: Args) -> int:
    """Print the card and the JSON line; 1 if taps cost 1% of a step or more."""
    t.set_num_threads(1)
    shapes = {
        "d128, 6 layers, 4 heads": (Config(d_model=128, n_layers=6, n_heads=4, n_ctx=128), 1),
        "GPT-2 small": (Config(), 10),
    }
    with t.no_grad():
        results = [
            measure(name, cfg, args, max(1, args.steps // fewer))
            for name, (cfg, fewer) in shapes.items()
        ]
    print(
        f"Silent taps in one decode step: one token after {args.position}, float32, "
        f"one thread, medians of {args.rounds} interleaved rounds"
    )
    print()
    print(f"{'':<26}{'step':>10}{'without':>10}{'calls':>7}{'alone':>10}{'counted':>9}  compared")
    for r in results:
        low, high = r["compared_range"]
        print(
            f"{r['model']:<26}{r['step_ms']:7.2f} ms{r['step_without_ms']:7.2f} ms"
            f"{r['tap_calls']:>7}{r['taps_us']:7.1f} us{r['counted_share']:9.2%}  "
            f"{r['compared_share']:+.2%} ({low:+.2%} to {high:+.2%})"
        )
    ok = all(r["compared_share"] < LIMIT for r in results)
    print()
    print(f"Below {LIMIT:.0%} of a step: {'yes' if ok else 'NO'}")
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    about = {"torch": t.__version__, "threads": 1, "rounds": args.rounds, **machine}
    print(json.dumps({"benchmark": "taps", "limit": LIMIT, "ok": ok, **about, "results": results}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
