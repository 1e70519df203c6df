"""A run that is killed again and again ends as one that never was.

Run: python benchmarks/kills.py. A card, then one line of JSON; exit code 1 unless the final weights
are the same bits and the log of the steps is clean.

A small model is trained twice by `pvml train`: once in one go, and once in processes that are
ended by SIGKILL, each followed by `pvml train --resume`. Some are killed inside a checkpoint's
writing, at the calls that `faults.py` lists (a write that is struck has written its first half);
others after a step, while grading, or after a moment that may lie in the start-up.
"""

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

STEPS_PER_EPOCH = 20
RECIPE = (
    "--data storybook:200 --tokenizer bpe:300 --d-model 16 --n-heads 2 --n-layers 1 --n-ctx 32 "
    f"--batch-size 4 --max-steps-per-epoch {STEPS_PER_EPOCH} --checkpoint-every 4 --device cpu "
    "--run-dir runs"
).split()
STRUCK = "struck at"
"""What a child says on stderr before it dies inside a checkpoint's writing."""
PATIENCE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Args:
    """How often, and how long the run is."""

    kills: int = 30
    """Processes that are killed."""
    inside: int = 12
    """How many of them inside a checkpoint's writing, every kind of call at least once."""
    steps: int = 300
    """Steps of the run, in epochs of 20."""
    seed: int = 0
    """Chooses the moments."""


@dataclass
class Kills:
    """The killed run, and what happened to it."""

    folder: Path
    arguments: list[str]
    done: Counter[str] = field(default_factory=Counter)
    """Kills, by where they fell."""
    damaged: int = 0
    """Resumes that found a checkpoint damaged; a kill must never leave one."""

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "killed"

    @property
    def finished(self) -> bool:
        return (self.run / "summary.json").exists()

    def start(self, *wrapper: str) -> subprocess.Popen[str]:
        """The next process: from the beginning, or on from where the last one died."""
        goes_on = ["--resume"] if self.run.exists() else []
        command = [*(wrapper or ("-m", "pvml")), "train", *self.arguments, "--name", "killed"]
        return subprocess.Popen(
            [sys.executable, *command, *goes_on],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def steps(self) -> int:
        """Whole rows of steps in the log so far."""
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b'"loss"') if path.exists() else 0

    def kill_when(self, what: str, due: Callable[[], bool], delay: float = 0.0) -> None:
        """Start a process and kill it a moment after something is so, unless it ends before."""
        with self.start() as child:
            patience = time.monotonic() + PATIENCE_S
            while child.poll() is None and not due() and time.monotonic() < patience:
                time.sleep(0.002)
            time.sleep(delay)
            child.kill()
            _, said = child.communicate()
        self._note(child.returncode, said, what)

    def kill_inside(self, nth: int, call: str) -> None:
        """Start a process that dies at a call, such as write-7, of its nth checkpoint's writing."""
        with self.start(__file__, "--child", str(nth), call) as child:
            _, said = child.communicate(timeout=PATIENCE_S)
        where = said.partition(STRUCK)[2].split()
        self._note(child.returncode, said, f"inside: {where[0]}" if where else "after a checkpoint")

    def finish(self) -> None:
        """Let the run come to its end."""
        with self.start() as child:
            _, said = child.communicate()
        self._note(child.returncode, said, "none")

    def _note(self, code: int, said: str, what: str) -> None:
        self.damaged += "damaged" in said
        if code == -9:
            self.done[what] += 1
        elif code != 0:
            raise SystemExit(f"a process ended with {code}: {said}")


def plan(args: Args, calls: Sequence[str], chance: random.Random) -> list[tuple[str, int]]:
    """Where each kill falls: at a call of a kind, after steps, in grading, after milliseconds."""
    counts = Counter(calls)
    kinds = [*counts, *chance.choices(list(counts), k=max(0, args.inside - len(counts)))]
    kills = [(kind, chance.randrange(counts[kind])) for kind in kinds[: args.inside]]
    others = args.kills - len(kills) - 1
    kills += [("step", chance.randint(1, 12)) for _ in range(others - others // 3 - others // 6)]
    kills += [("grading", 0) for _ in range(others // 6)]
    kills += [("moment", chance.randint(50, 5000)) for _ in range(others // 3)]
    chance.shuffle(kills)
    return [("moment", 300), *kills]


def strike(kills: Kills, kind: str, at: int, chance: random.Random) -> None:
    """One kill."""
    before = kills.steps()
    if kind == "step":
        # the log is cut back when the run is resumed: count from the checkpoint's own step
        low = [before]

        def taken() -> bool:
            now = kills.steps()
            low[0] = min(low[0], now)
            return now >= low[0] + at

        kills.kill_when("after a step", taken, chance.random() * 0.02)
    elif kind == "grading":
        kills.kill_when(
            "near an epoch's end",
            lambda: kills.steps() > before and kills.steps() % STEPS_PER_EPOCH == 0,
            chance.random() * 0.05,
        )
    elif kind == "moment":
        due = time.monotonic() + at / 1000
        kills.kill_when("at a moment", lambda: time.monotonic() > due)
    else:
        kills.kill_inside(chance.randint(1, 2), f"{kind}-{at}")


def reference(folder: Path, arguments: Sequence[str]) -> list[str]:
    """Train in one go; the calls of its third checkpoint's writing."""
    command = [sys.executable, __file__, "--child", "3", "calls.json", "train", *arguments]
    subprocess.run(
        [*command, "--name", "straight"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    told: list[str] = json.loads((folder / "calls.json").read_text())
    return told


def same_weights(runs: Path) -> bool:
    """Whether both files of final weights are the same bytes."""
    straight, killed = (runs / name / "model.safetensors" for name in ("straight", "killed"))
    return straight.read_bytes() == killed.read_bytes()


def log_fault(runs: Path, steps: int) -> str | None:
    """What is wrong with the killed run's logs: equal but for the times, a row for each step."""
    for file in ("metrics.jsonl", "samples.jsonl"):
        straight, killed = (rows(runs / name / file) for name in ("straight", "killed"))
        for ours, theirs in zip(killed, straight, strict=False):
            if ours != theirs:
                return f"{file} has {ours} instead of {theirs}"
        if len(killed) != len(straight):
            return f"{file} has {len(killed)} rows instead of {len(straight)}"
    metrics = rows(runs / "killed" / "metrics.jsonl")
    taken = [row["step"] for row in metrics if "loss" in row]
    graded = [row["step"] for row in metrics if "accuracy" in row]
    one_each = taken == list(range(1, steps + 1))
    epochs = list(range(STEPS_PER_EPOCH, steps + 1, STEPS_PER_EPOCH))
    return None if one_each and graded == epochs else "metrics.jsonl: not one row for each"


def rows(path: Path) -> list[dict[str, Any]]:
    """A log's rows, each of which must be JSON, without their times."""
    whole = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: row[key] for key in row if key != "seconds"} for row in whole]


def child(nth: int, at: str, arguments: list[str]) -> int:
    """`pvml ARGUMENTS` in a process whose nth checkpoint's writing is struck, or listed.

    at: which call strikes, such as write-7 (counted from 0); or the JSON file for the list.
    """
    from faults import WatchedDisk, die
    from pvml.cli.main import main
    from pvml.runs.format import RunDir

    genuine, saved = RunDir.save_checkpoint, 0
    strikes = not at.endswith(".json")

    class DeadlyDisk(WatchedDisk):
        def happens(self, call: str, half: Callable[[], object] | None = None) -> None:
            self.calls.append(call)
            if f"{call}-{self.calls.count(call) - 1}" == at:
                if half is not None:
                    half()
                os.write(2, f"{STRUCK} {call}\n".encode())
                die()

    def save(run: RunDir, *args: Any, **options: Any) -> None:
        nonlocal saved
        saved += 1
        if saved != nth:
            return genuine(run, *args, **options)
        with DeadlyDisk() as disk:
            genuine(run, *args, **options)
        if strikes:  # this one had fewer calls
            die()
        Path(at).write_text(json.dumps(disk.calls))
        return None

    RunDir.save_checkpoint = save  # type: ignore[assignment, method-assign]
    return main(arguments)


def main(args: Args) -> int:
    """Print the card and the JSON; the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    chance = random.Random(args.seed)
    arguments = [*RECIPE, "--epochs", str(args.steps // STEPS_PER_EPOCH)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = reference(folder, arguments)
        kills = Kills(folder, arguments)
        for kind, at in plan(args, calls, chance):
            if kills.finished:
                break
            strike(kills, kind, at, chance)
        if not kills.finished:
            kills.finish()
        equal, fault = same_weights(folder / "runs"), log_fault(folder / "runs", args.steps)
    total = sum(kills.done.values())
    inside = {
        what.removeprefix("inside: "): n for what, n in kills.done.items() if "inside" in what
    }
    enough = total >= args.kills and sum(inside.values()) >= min(10, args.inside)
    print(f"{total} kills of a run of {args.steps} steps, on {platform.processor() or 'this CPU'}:")
    for what, n in sorted(kills.done.items()):
        print(f"  {n:3d}  {what}")
    print(f"A checkpoint's writing is {len(calls)} calls: {', '.join(dict.fromkeys(calls))}.")
    print(f"Checkpoints found damaged: {kills.damaged}.")
    print(f"Final weights the same bits as those of the run in one go: {_yes(equal)}.")
    print(f"One clean line for each step and epoch, equal but for the times: {_yes(not fault)}.")
    if fault:
        print(f"  {fault}")
    print(
        json.dumps(
            {
                "benchmark": "kills",
                "kills": total,
                "inside_writing": sum(inside.values()),
                "calls": inside,
                "damaged": kills.damaged,
                "equal": equal,
                "lines_clean": not fault,
                "seconds": round(time.monotonic() - started),
            }
        )
    )
    return 0 if enough and equal and not fault and not kills.damaged else 1


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
    sys.exit(main(tyro.cli(Args, description=__doc__)))
