"""The experiments on TinyStories, one after another: what is finished stays, what stopped goes on.

    python experiments/run_all.py --all --twins --threads 2
    python experiments/run_all.py d32-l4-h4-ctx128-20k d32-l4-h16-ctx128-20k --twins --seeds 0,1,2

The same command may be given again and again. --twins trains small versions of the experiments on
a few megabytes of stories, --full the originals on the hub's whole set; --list only tells where
each run stands. A run that fails is told, and the next one begins; the exit code is then 1.
"""

import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from definitions import TWIN, Experiment, Laptop, load_experiments, original, run_name, twin
from ending import ended
from finished import require_alone
from options import TRAIN, require_stories, use_threads
from pvml.cli.material import prepare
from pvml.cli.train import TrainFlags, train_one
from pvml.cli.training_run import require_same
from pvml.cli.training_seeds import parse_seeds
from pvml.device import pick_device
from pvml.errors import PvmlError, RunDirError
from pvml.runs.facts import read_facts
from pvml.runs.format import RunDir
from pvml.training.processes import Processes


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train experiments on TinyStories, one at a time; finished ones are left as they are."""

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[EXPERIMENT...]")
    ] = ()
    """Which ones, as d128-l6-h4-ctx128-5k, in this order."""
    all: bool = False
    """All of them."""
    twins: bool = False
    """Train the laptop twins: a tenth of the steps, a small vocabulary, bfloat16."""
    full: bool = False
    """Train the originals, which want a GPU and the hub."""
    data: str | None = None
    """The corpus. Unset: the stories beside the project for twins, tinystories for originals."""
    run_dir: Path = Path("runs/experiments")
    """Where the runs are kept."""
    seeds: str = "0"
    """Train each chosen one for each of these seeds, as 0,1,2."""
    threads: int | None = None
    """Threads to compute with. Unset: torch's own number."""
    list: bool = False
    """Tell where each run stands, and train nothing."""


@dataclass(frozen=True)
class Job:
    """One run to have."""

    question: str
    flags: TrainFlags
    fingerprint: str | None
    """Of the corpus that it must have been trained on; None: not known before it is read."""
    steps: int | None
    """None for a twin whose corpus was not read: they may depend on its size."""

    @property
    def name(self) -> str:
        return str(self.flags.name)

    @property
    def path(self) -> Path:
        return self.flags.run_dir / self.name

    def state(self) -> str:
        """Where the run stands, in words."""
        if not self.path.exists():
            return "to do" if self.steps is None else f"to do, {self.steps:,} steps"
        facts = read_facts(self.path)
        if facts.state == "finished" and facts.seconds is not None:
            return f"finished in {facts.seconds / 60:.1f} min"
        return facts.status


def main(arguments: Sequence[str], laptop: Laptop | None = None) -> int:
    """Do what the arguments say. 0: all is finished; 1: a run failed; 2: bad use; 130: Ctrl-C."""
    return ended("run_all", lambda: _main(arguments, laptop or Laptop()))


def _main(arguments: Sequence[str], laptop: Laptop) -> int:
    args = tyro.cli(
        Args, args=list(arguments), description=__doc__, config=(tyro.conf.FlagCreatePairsOff,)
    )
    use_threads(args.threads)
    jobs = planned(args, laptop)
    for place, job in enumerate(jobs, start=1):
        print(f"{place:>3} of {len(jobs)}  {job.name:<42} {job.state()}")
    return 0 if args.list else train_all(jobs)


def planned(args: Args, laptop: Laptop) -> list[Job]:
    """The runs that are asked for, in the order in which they are trained.

    Raises: PvmlError for a choice that is none, or a corpus that cannot be used.
    """
    if args.twins == args.full:
        raise PvmlError("give --twins for small runs on a laptop, or --full for the originals")
    seeds = parse_seeds(args.seeds)
    chosen = choose(args, load_experiments())
    if args.twins and args.list:  # where they stand can be told without the corpus
        return [
            Job(one.question, TrainFlags(run_dir=args.run_dir, name=name), None, None)
            for seed in seeds
            for one in chosen
            for name in [run_name(one, TWIN, seed)]
        ]
    if args.twins:
        return list(_twins(chosen, seeds, args, laptop))
    data = args.data or "tinystories"
    return [
        Job(one.question, original(one, seed, data, args.run_dir), None, one.steps)
        for seed in seeds
        for one in chosen
    ]


def choose(args: Args, experiments: Mapping[str, Experiment]) -> list[Experiment]:
    """The experiments that --all means, or the names in their order; a file's name will do, too.

    Raises: PvmlError naming what there is, if one is not there or none is chosen.
    """
    known = ", ".join(experiments)
    if args.all == bool(args.names):
        raise PvmlError(f"give --all, or the names of experiments, of which there are {known}")
    names = list(dict.fromkeys(name.replace("_", "-") for name in args.names))
    unknown = [name for name in names if name not in experiments]
    if unknown:
        raise PvmlError(f"there is no experiment {', '.join(unknown)}: there are {known}")
    return [experiments[name] for name in names or experiments]


def _twins(
    chosen: Sequence[Experiment], seeds: Sequence[int], args: Args, laptop: Laptop
) -> Iterator[Job]:
    data = args.data or TRAIN
    require_stories(
        (data,), "Give --data FILE, any text or .jsonl of stories, or tinystories, from the hub"
    )
    material = {
        model.n_ctx: prepare(
            TrainFlags(data=data, tokenizer=laptop.tokenizer, run_dir=args.run_dir, model=model)
        )
        for model in {one.model.n_ctx: one.model for one in chosen}.values()
    }
    for seed in seeds:
        for one in chosen:
            text = material[one.model.n_ctx]
            flags = twin(one, seed, data, args.run_dir, len(text.rows), laptop)
            steps = flags.training.epochs * flags.training.max_steps_per_epoch
            yield Job(one.question, flags, text.corpus.fingerprint, steps)


def train_all(jobs: Sequence[Job]) -> int:
    """Train what is not finished, one after another. 0, or 1 if a run failed."""
    failed = []
    for place, job in enumerate(jobs, start=1):
        try:
            have(job, f"{place} of {len(jobs)}")
        except PvmlError as problem:
            print(f"failed: {job.name}: {problem}", file=sys.stderr)
            failed.append(job.name)
        except BrokenPipeError:  # nobody reads any more, of the next run neither
            raise
        except Exception:  # whatever it is, the runs after it may be well
            traceback.print_exc()
            print(f"failed: {job.name}", file=sys.stderr)
            failed.append(job.name)
    print(f"\n{len(jobs) - len(failed)} of {len(jobs)} finished, in {jobs[0].flags.run_dir}")
    if failed and len(jobs) > 1:  # else it is told right above
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def have(job: Job, place: str) -> None:
    """Once it returns, the job's run is finished.

    Raises: PvmlError if the run cannot be trained, or another lies in its place.
    """
    require_alone(job.path)
    resume = job.path.exists()
    if resume:
        run = RunDir.open(job.path)
        _require_this(job, run)
        if run.finished:
            return
    print(f"\nnext, {place}: {job.name}, {job.state()}\n{job.question}", flush=True)
    began = time.perf_counter()
    alone = Processes(0, 1, pick_device(job.flags.training.device))
    try:
        train_one(replace(job.flags, resume=resume), alone)
    except RunDirError:
        require_alone(job.path)  # it may have been begun meanwhile
        raise
    print(f"{job.name} {job.state()}, {(time.perf_counter() - began) / 60:.1f} of them now")


def _require_this(job: Job, run: RunDir) -> None:
    # the same corpus may lie elsewhere by now
    require_same(replace(job.flags, data=str(run.data.get("source"))), run)
    there = run.data.get("fingerprint")
    if job.fingerprint not in (None, there):
        raise PvmlError(
            f"{run.path} was trained on another corpus (fingerprint {there}) than {job.flags.data} "
            f"({job.fingerprint}): give the same --data, or another --run-dir"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
