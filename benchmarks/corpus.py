"""A corpus of gigabytes, tokenised and trained on: how fast, in how much memory.

Run: python benchmarks/corpus.py. A card, then one line of JSON; exit code 1 where it takes more
memory than the limit. With 2 GB it takes several minutes and 4 GB of disk.

The corpus is one .jsonl of built-in stories, each time with another number in it, so that no two
are equal. One process tokenises it as `pvml train` would: it is read for the split, for the
held-out stories and for the vocabulary, then tokenised by as many processes as there are cores.
Another process, `pvml train`, finds the tokens and takes some steps.

Memory is the resident set of a process and all its children, added up every 50 ms: what they share
is counted for each, and pages of the mapped tokens count as long as they stay in memory.
"""

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from pvml.data.storybook import stories

GIB = 1 << 30
_BASE = 20_000
"""Stories, about 14 MB, before they come again with other numbers."""
_TOKENISE = """
import sys
from pathlib import Path
from pvml.data.tokenised import Recipe, tokenise
data, tokenizer, root = sys.argv[1:]
made = tokenise(Recipe(data=data, tokenizer=tokenizer), Path(root), say=lambda text: None)
print(len(made.stream), made.documents)
"""


@dataclass(frozen=True, kw_only=True)
class Args:
    """A large corpus, made, tokenised and trained on."""

    gb: float = 2.0
    """Size of the corpus (10**9 bytes of file)."""
    folder: Path | None = None
    """Where it is made, and removed again. Unset: the system's folder for such things."""
    tokenizer: str = "bpe:4096"
    """gpt2, or bpe:N."""
    steps: int = 20
    """Training steps."""
    limit_gib: float = 3.0
    """Most memory allowed (GiB)."""


@dataclass(frozen=True)
class Measured:
    """What one process needed."""

    seconds: float
    cpu_seconds: float
    """Of all its processes and threads, added up: what other programs take away does not count."""
    peak_bytes: int
    """Its own resident set and its children's, at the highest."""
    printed: str


def write_corpus(path: Path, n_bytes: int) -> int:
    """Write stories, no two equal, until the file has at least so many bytes; their number."""
    base = list(stories(0, min(_BASE, 100 + n_bytes // 1000)))
    count = size = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        while size < n_bytes:
            text = f"{base[count % len(base)]} This was story {count}."
            size += file.write(json.dumps({"text": text}) + "\n")
            count += 1
    return count


def measure(command: list[str]) -> Measured:
    """Run a command to its end.

    Raises: RuntimeError with what it said if it fails.
    """
    started, cpu, peak = time.perf_counter(), _cpu_seconds(), 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        while process.poll() is None:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(0.05)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{command} ended with {process.returncode}: {err.read()[-2000:]}")
        seconds = time.perf_counter() - started
        return Measured(seconds, _cpu_seconds() - cpu, peak, out.read())


def _cpu_seconds() -> float:
    """Of the processes that were started here and have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def resident_bytes(pid: int) -> int:
    """The resident set of a process and all that descend from it; 0 for one that has ended."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(resident_bytes, children))


def main(args: Args) -> int:
    """Make it, tokenise it, train on it, print; 1 where the memory's limit is missed."""
    with tempfile.TemporaryDirectory(prefix="pvml-corpus-", dir=args.folder) as made:
        folder = Path(made)
        free, needed = shutil.disk_usage(folder).free, int(2.2e9 * args.gb)
        if free < needed:
            print(f"{folder} has {free:,} bytes free, and {needed:,} are needed", file=sys.stderr)
            return 2
        corpus, runs = folder / "corpus.jsonl", folder / "runs"
        started = time.perf_counter()
        documents = write_corpus(corpus, int(args.gb * 1e9))
        made_in = time.perf_counter() - started
        n_bytes = corpus.stat().st_size
        tokenised = measure(
            [sys.executable, "-c", _TOKENISE, str(corpus), args.tokenizer, str(runs)]
        )
        n_tokens = int(tokenised.printed.split()[0])
        trained = measure(_training(corpus, runs, args))
    result = {
        "bytes": n_bytes,
        "documents": documents,
        "training_tokens": n_tokens,
        "tokenizer": args.tokenizer,
        "made_s": round(made_in, 1),
        "tokenised_s": round(tokenised.seconds, 1),
        "tokenised_cpu_s": round(tokenised.cpu_seconds, 1),
        "mb_per_s": round(n_bytes / 1e6 / tokenised.seconds, 2),
        "mb_per_cpu_s": round(n_bytes / 1e6 / tokenised.cpu_seconds, 2),
        "tokenised_peak_gib": round(tokenised.peak_bytes / GIB, 3),
        "steps": args.steps,
        "trained_s": round(trained.seconds, 1),
        "trained_peak_gib": round(trained.peak_bytes / GIB, 3),
        "limit_gib": args.limit_gib,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    print("\n".join(_card(result)))
    print(json.dumps(result))
    return int(max(tokenised.peak_bytes, trained.peak_bytes) > args.limit_gib * GIB)


def _training(corpus: Path, runs: Path, args: Args) -> list[str]:
    command = f"""
        train --data {corpus} --run-dir {runs} --name large --tokenizer {args.tokenizer}
        --epochs 1 --max-steps-per-epoch {args.steps} --sample-prompt None --device cpu
        --d-model 64 --n-layers 2
    """
    return [sys.executable, "-m", "pvml", *command.split()]


def _card(result: dict[str, float | int | str | None]) -> list[str]:
    """The result for people."""
    return [
        f"corpus     {result['bytes']:,} bytes, {result['documents']:,} documents "
        f"(made in {result['made_s']} s)",
        f"tokenised  {result['tokenizer']}: {result['training_tokens']:,} tokens to train on, in "
        f"{result['tokenised_s']} s, all reading and the vocabulary included: "
        f"{result['mb_per_s']} MB/s on {result['cores']} cores (load {result['load']})",
        f"           {result['mb_per_cpu_s']} MB per second of a core; at most "
        f"{result['tokenised_peak_gib']} GiB resident",
        f"trained    {result['steps']} steps, start and grading included, in "
        f"{result['trained_s']} s",
        f"           at most {result['trained_peak_gib']} GiB resident "
        f"(limit {result['limit_gib']})",
    ]


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
