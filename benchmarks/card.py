"""How a race ends: a card for people, its limits with yes or NO, one line of JSON, an exit code."""

import importlib.metadata
import json
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from peers.process import ContestantError


@dataclass(frozen=True)
class Verdict:
    """A limit, and what was measured against it. What was not measured is not kept."""

    what: str
    limit: float
    measured: float | None
    unit: str
    ok: bool

    def __str__(self) -> str:
        got = "not measured" if self.measured is None else f"{self.measured:.2f}{self.unit}"
        return f"{self.what} {self.limit:g}{self.unit}: {got}, {'yes' if self.ok else 'NO'}"


def cpu() -> str:
    """The processor's name, as well as it can be found."""
    try:
        told = Path("/proc/cpuinfo").read_text().partition("model name")[2]
    except OSError:
        told = ""
    return told.partition("\n")[0].strip("\t :") or platform.processor() or platform.machine()


def how(threads: int, rounds: int) -> str:
    """The line of a card that says where and how often it was measured."""
    torch = importlib.metadata.version("torch")
    return f"{cpu()}, {threads} threads, torch {torch}; medians of {rounds} interleaved rounds"


def finish(
    benchmark: str, args: Any, card: Sequence[str], verdicts: Sequence[Verdict], **about: Any
) -> int:
    """Print all of it; 1 if a limit is missed.

    args: what was asked for, with a shape, rounds and threads. about: what else the JSON tells.
    """
    ok = all(verdict.ok for verdict in verdicts)
    print(*card, "", *verdicts, sep="\n")
    told = {
        "benchmark": benchmark,
        "shape": args.shape,
        "ok": ok,
        "rounds": args.rounds,
        "threads": args.threads,
        "cpu": cpu(),
        "torch": importlib.metadata.version("torch"),
        **about,
        "limits": [asdict(verdict) for verdict in verdicts],
    }
    print(json.dumps(told))
    return 0 if ok else 1


def as_command(main: Callable[[Any], int], args: type, about: str | None) -> None:
    """Run a race from the command line, and end the program with its exit code."""
    # so that the contestants are ended on the way out
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(main(tyro.cli(args, description=about)))
    except ContestantError as problem:
        sys.exit(f"error: {problem}")
