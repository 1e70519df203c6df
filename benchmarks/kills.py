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
PATIENCE_S = 120.0


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

    def kill_inside(self, nth: int, call: int) -> None:
        """Start a process that dies at a call of its nth checkpoint's writing."""
        with self.start(__file__, "--child", str(nth), str(call)) as child:
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
    """Where each kill falls: inside at a call, or after steps, in grading, after milliseconds."""
    kinds = list(dict.fromkeys(calls))
    inside = [chance.choice([at for at, c in enumerate(calls) if c == kind]) for kind in kinds]
    inside += [chance.randrange(len(calls)) for _ in range(args.inside - len(kinds))]
    others = args.kills - len(inside)
    kills = [("inside", at) for at in inside]
    kills += [("step", chance.randint(1, 12)) for _ in range(others - others // 3 - others // 6)]
    kills += [("grading", 0) for _ in range(others // 6)]
    kills += [("moment", chance.randint(50, 5000)) for _ in range(others // 3)]
    chance.shuffle(kills)
    return [("moment", 300), *kills][: args.kills]


def strike(kills: Kills, kind: str, at: int, chance: random.Random) -> None:
    """One kill."""
    before = kills.steps()
    if kind == "inside":
        kills.kill_inside(chance.randint(1, 2), at)
    elif kind == "step":
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
    else:
        due = time.monotonic() + at / 1000
        kills.kill_when("at a moment", lambda: time.monotonic() > due)


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


def same_log(runs: Path, steps: int) -> bool:
    """Whether the logs are the same but for the times, with one row a step and one an epoch."""
    logs: list[list[dict[str, Any]]] = []
    for name in ("straight", "killed"):
        lines = (runs / name / "metrics.jsonl").read_text().splitlines()
        logs.append(
            [{k: x for k, x in json.loads(line).items() if k != "seconds"} for line in lines]
        )
    straight, killed = logs
    samples = [(runs / name / "samples.jsonl").read_bytes() for name in ("straight", "killed")]
    taken = [row["step"] for row in killed if "loss" in row]
    graded = [row["step"] for row in killed if "accuracy" in row]
    epochs = list(range(STEPS_PER_EPOCH, steps + 1, STEPS_PER_EPOCH))
    one_each = taken == list(range(1, steps + 1)) and graded == epochs
    return one_each and straight == killed and samples[0] == samples[1]


def child(nth: int, at: str, arguments: list[str]) -> int:
    """`pvml ARGUMENTS` in a process whose nth checkpoint's writing is struck, or listed."""
    from faults import WatchedDisk, die
    from pvml.cli.main import main
    from pvml.runs.format import RunDir

    genuine, saved = RunDir.save_checkpoint, 0
    strikes = at.isdigit()

    def save(run: RunDir, *args: Any, **options: Any) -> None:
        nonlocal saved
        saved += 1
        if saved != nth:
            return genuine(run, *args, **options)

        def end() -> None:
            os.write(2, f"{STRUCK} {disk.calls[-1]}\n".encode())
            die()

        with WatchedDisk(int(at) if strikes else None, end) as disk:
            genuine(run, *args, **options)
        if strikes:  # this one was shorter
            die()
        Path(at).write_text(json.dumps(disk.calls))
        return None

    RunDir.save_checkpoint = save  # type: ignore[method-assign]
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
        equal, clean = same_weights(folder / "runs"), same_log(folder / "runs", args.steps)
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
    print(f"One clean line for each step and epoch, equal but for the times: {_yes(clean)}.")
    print(
        json.dumps(
            {
                "benchmark": "kills",
                "kills": total,
                "inside_writing": sum(inside.values()),
                "calls": inside,
                "damaged": kills.damaged,
                "equal": equal,
                "lines_clean": clean,
                "seconds": round(time.monotonic() - started),
            }
        )
    )
    return 0 if enough and equal and clean and not kills.damaged else 1


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
    sys.exit(main(tyro.cli(Args, description=__doc__)))
