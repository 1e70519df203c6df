"""A survey of every OV and QK circuit of a random model: its time, and how much memory it takes.

Run: python benchmarks/survey.py FOLDER. Row tops, the largest of all, diagonal and ranks of all 288
circuits of GPT-2 small's shape; `benchmarks/circuits.py` projects how long that takes. Given again
with the same folder, it goes on where it was stopped. A line of JSON at the end: the circuits that
this call scanned, its seconds, and the bytes that the process grew by at most, the model not
counted.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch as t
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from peers.readers.worker import resident_bytes
from peers.worker import off_defaults, peak_bytes
from pvml.circuits.weights.surveys import ABOUT, Survey, survey
from pvml.config import Config
from pvml.errors import PvmlError


@dataclass(frozen=True, kw_only=True)
class Args:
    """Which survey, and how far."""

    folder: Annotated[Path, tyro.conf.Positional]
    """A new folder, or one of this survey that was stopped."""
    layers: int = 12
    """Of the model; the other sizes are GPT-2 small's."""
    d_vocab: int = 50257
    """Tokens."""
    most: int | None = None
    """Stop after so many circuits, to see how long one takes. Unset: all."""
    threads: int = os.cpu_count() or 1
    """Threads to use."""


class Enough(Exception):
    """As many circuits as were asked for are scanned."""


def main(args: Args) -> None:
    """Show a bar, then print a line of JSON."""
    if not 1 <= args.threads <= 1024:
        raise PvmlError(f"--threads must be 1 to 1,024, got {args.threads}")
    if args.most is not None and args.most < 1:
        raise PvmlError(f"--most must be at least 1 circuit, got {args.most}")
    t.set_num_threads(args.threads)
    cfg = Config(n_layers=args.layers, d_vocab=args.d_vocab)
    model = off_defaults(cfg).eval()
    before, start = resident_bytes(), time.perf_counter()
    done: set[str] = set()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        n = 2 * cfg.n_layers * cfg.n_heads
        if (args.folder / ABOUT).exists():
            n = len(Survey.open(args.folder).missing)
        task = bar.add_task("", total=min(n, args.most or n) * cfg.d_vocab)

        def tell(name: str, rows: int, of: int) -> None:
            if len(done) == args.most:
                raise Enough
            bar.update(task, description=name, completed=len(done) * of + rows)
            if rows == of:
                done.add(name)

        try:
            missing = len(survey(model, args.folder, tell=tell).missing)
        except Enough:
            missing = len(Survey.open(args.folder).missing)
    seconds = time.perf_counter() - start
    about = {
        "circuits": len(done),
        "missing": missing,
        "seconds": seconds,
        "seconds_per_circuit": seconds / max(1, len(done)),
        "grew_bytes": peak_bytes() - before,
        "threads": args.threads,
    }
    print(json.dumps(about))


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except PvmlError as problem:
        sys.exit(f"error: {problem}")
