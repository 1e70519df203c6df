"""What finished runs came to, and how little of their logs is kept in `results/`.

A folder in `results/` is a run directory without weights: config.json, summary.json and a thinned
metrics.jsonl. `read_outcome` reads it and the run that it was made from alike.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from checking import COUNT, NOT_NEGATIVE, NUMBER, NUMBERS, POSITIVE, SHARE, WHOLE, require
from pvml.atomic import write_whole
from pvml.cli.compare import PROMPTS
from pvml.errors import PvmlError, RunDirError
from pvml.plots.curves import column, smoothing_window
from pvml.runs.facts import is_run
from pvml.runs.format import RunDir
from pvml.runs.json_object import read_json, to_json
from pvml.runs.layout import CONFIG, METRICS, SUMMARY
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.sampling.stories import figures, write_stories

Row = dict[str, Any]
STORIES = "stories.json"
SETTINGS = SamplingArgs(temperature=0.7, top_p=0.95, seed=0, max_new_tokens=250)
"""What the notes' samples were made with, beside their two prompts."""
_NAME = re.compile(r"(tinystories|twin)-(.+?)(?:-seed(\d+))?")
_STEP = {"step": COUNT, "epoch": WHOLE, "tokens": COUNT, "seconds": NOT_NEGATIVE, "loss": NUMBER}
_GRADED = {"step": COUNT, "held_out_loss": POSITIVE, "bits_per_byte": POSITIVE, "accuracy": SHARE}
_END = {"end_window": COUNT, "end_loss": NUMBER, "end_slope": NUMBER}
_SUMMARY = {"steps": COUNT, "tokens": COUNT, "seconds": POSITIVE}
_DATA = {"rows": COUNT, "documents": COUNT, "bytes": COUNT, "held_out_documents": COUNT}
_STORIES = {"stories": COUNT, "ended": SHARE, "stuck": SHARE}
_LONG = 5_000
"""Steps from which on a log is thinned to 100-step means, and not to 10-step means."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One finished run."""

    path: Path
    kind: str
    """tinystories for an original, twin for its twin."""
    experiment: str
    """As d128-l6-h4-ctx128-5k."""
    seed: int
    n_ctx: int
    tokenizer: str
    steps: int
    tokens: int
    """Read by training, each row's BOS included."""
    passes: float
    """How often the text was read."""
    minutes: float
    """Wall clock, evaluations included."""
    step_seconds: float
    """Median over the log's stretches; evaluations hardly touch it."""
    window: int
    """Steps that `loss` and `slope` are taken over: `end_window`."""
    loss: float
    """Mean training loss (nats per token) of the last `window` steps."""
    slope: float
    """That loss minus the mean of the `window` steps before: below 0 while it falls."""
    held_out_loss: float
    """Nats per token, after the last step."""
    bits_per_byte: float
    accuracy: float
    """Share of held-out next tokens that were right."""
    bits_by_epoch: tuple[float, ...]
    """Held-out bits per byte at each evaluation."""
    loss_by_position: tuple[float, ...]
    """Held-out loss (nats per token) at positions 1, 2, ..., after the last step."""
    stories: Mapping[str, float] = field(default_factory=dict)
    """Figures of the stories that it wrote, as `pvml compare` counts; empty if it wrote none."""
    text: str
    """What it was trained on, and graded on, in a few words."""

    @property
    def name(self) -> str:
        return self.path.name


def end_window(steps: int) -> int:
    """Steps of a run that its end is judged by: 500, or a tenth of them where that is fewer."""
    return max(1, min(500, steps // 10))


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Every run of an experiment that a folder is or holds, by its name.

    Raises: PvmlError for a folder that is not there.
    """
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise PvmlError(f"there is no folder {folder}: give run directories, or their folder")
        inside = [folder] if is_run(folder) else sorted(filter(is_run, folder.iterdir()))
        found += [run for run in inside if _NAME.fullmatch(run.resolve().name)]
    return found


def read_outcome(path: Path) -> Outcome:
    """What a finished run came to, from its own directory or from what is kept of it.

    Raises: RunDirError if it is not finished, is damaged, or has another run's name.
    """
    run = RunDir.open(path)
    named = _NAME.fullmatch(run.name)
    if named is None:
        raise RunDirError(f"{path} has no name of an experiment's run")
    summary, stories = _sound_summary(run, seed=int(named[3] or 0)), {}
    _require_sound_log(run, summary)
    if (path / STORIES).exists():
        stories = read_json(path / STORIES)
        require(stories, _STORIES, str(path / STORIES))
    rows = thinned(run)
    graded = [row for row in rows if "accuracy" in row]
    end = next(row for row in rows if "end_window" in row)
    return Outcome(
        path=path,
        kind=named[1],
        experiment=named[2],
        seed=run.args["seed"],
        n_ctx=run.cfg.n_ctx,
        tokenizer=run.tokenizer_name,
        steps=summary["steps"],
        tokens=summary["tokens"],
        passes=summary["tokens"] / run.cfg.n_ctx / run.data["rows"],
        minutes=summary["seconds"] / 60,
        step_seconds=_step_seconds([row for row in rows if "loss" in row]),
        window=end["end_window"],
        loss=end["end_loss"],
        slope=end["end_slope"],
        held_out_loss=graded[-1]["held_out_loss"],
        bits_per_byte=graded[-1]["bits_per_byte"],
        accuracy=graded[-1]["accuracy"],
        bits_by_epoch=tuple(row["bits_per_byte"] for row in graded),
        loss_by_position=tuple(graded[-1]["held_out_loss_by_position"]),
        stories=stories,
        text=_text(run),
    )


def _sound_summary(run: RunDir, seed: int) -> Row:
    """The run's summary, if it and the settings can be used, and the settings say this seed."""
    summary = run.summary()
    require(summary, _SUMMARY, str(run.path / SUMMARY))
    require(run.data, _DATA, f"{run.path / CONFIG}, data,")
    require(run.args, {"seed": WHOLE}, f"{run.path / CONFIG}, args,")
    if run.args["seed"] != seed:
        raise RunDirError(
            f"{run.path} has the name of seed {seed}, and its settings say seed "
            f"{run.args['seed']}: give it back its own name"
        )
    return summary


def _require_sound_log(run: RunDir, summary: Row) -> None:
    """Nothing, if every row can be used, the steps rise, and the log ends where the summary does.

    Raises: RunDirError saying what is wrong.
    """
    where, rows = str(run.path / METRICS), list(run.rows())
    ends = {"step": summary["steps"], "tokens": summary["tokens"]}
    for key, kinds in (("loss", _STEP), ("accuracy", _GRADED)):
        having = [row for row in rows if key in row]
        if not having:
            raise RunDirError(f"{run.path} lacks figures that the answers need: no row has {key}")
        for row in having:
            require(row, kinds, f"{where}: a row with {key}")
        for before, after in pairwise(having):
            if after["step"] <= before["step"]:
                raise RunDirError(
                    f"{where} is damaged: of two rows with {key}, step {after['step']:,} follows "
                    f"step {before['step']:,}"
                )
        for name in ends.keys() & kinds.keys():
            if having[-1][name] != ends[name]:
                raise RunDirError(
                    f"{where} ends with {key} at {name} {having[-1][name]:,}, and {SUMMARY} says "
                    f"{ends[name]:,}: one of the two is damaged or another run's"
                )
    require(having[-1], {"held_out_loss_by_position": NUMBERS}, f"{where}: the last evaluation")
    thin = [row for row in rows if "end_window" in row]
    if len(thin) > 1:
        raise RunDirError(f"{where} is damaged: it tells its end {len(thin)} times")
    for row in thin:
        require(row, _END, f"{where}: the row about the end")


def _text(run: RunDir) -> str:
    data = run.data
    return (
        f"{data['documents']:,} stories ({data['bytes'] / 1e6:,.1f} MB), "
        f"{data['held_out_documents']:,} of them held out; tokenizer {run.tokenizer_name}"
    )


def _step_seconds(stretches: Sequence[Row]) -> float:
    """Seconds of a step: the median over stretches of the log."""
    times = [(0, 0.0), *((row["step"], row["seconds"]) for row in stretches)]
    each = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(times)]
    return float(median(each))


def thinned(run: RunDir) -> list[Row]:
    """A finished run's metrics as they are kept.

    - For each 10 steps (100, in a run of 5,000 or more; fewer, below 200) a row with their mean
      loss, and where the run stood after them. The charts' means follow from it.
    - Every evaluation's row; the loss by position of the last one only, to 4 decimals.
    - A last row about the run's end (`end_window`): the mean loss of the last window of steps, and
      that minus the mean of the window before.

    Of rows that are thinned already it is those rows.
    """
    rows = list(run.rows())
    if any("end_window" in row for row in rows):
        return rows
    steps = [row for row in rows if "loss" in row]
    graded = [row for row in rows if "accuracy" in row]
    width = min(10 if len(steps) < _LONG else 100, smoothing_window(column(steps, "step")))
    kept = [_stretch(steps[at : at + width]) for at in range(0, len(steps), width)]
    kept += [_evaluation(row, last=row is graded[-1]) for row in graded]
    kept.sort(key=lambda row: row["step"])
    return [*kept, _end([row["loss"] for row in steps])]


def _stretch(rows: Sequence[Row]) -> Row:
    last = {key: rows[-1][key] for key in ("step", "epoch", "tokens", "seconds")}
    return {**last, "steps": len(rows), "loss": round(fmean(row["loss"] for row in rows), 6)}


def _evaluation(row: Row, *, last: bool) -> Row:
    kept = {key: row[key] for key in row if key != "held_out_loss_by_position"}
    if last:
        losses = row["held_out_loss_by_position"]
        kept["held_out_loss_by_position"] = [round(loss, 4) for loss in losses]
    return kept


def _end(losses: Sequence[float]) -> Row:
    window = end_window(len(losses))
    loss = fmean(losses[-window:])
    before = fmean(losses[-2 * window : -window] or losses)
    return {
        "step": len(losses),
        "end_window": window,
        "end_loss": round(loss, 6),
        "end_slope": round(loss - before, 6),
    }


def collect(path: Path, results: Path, n_stories: int) -> Path:
    """Keep a finished run's figures in a folder of its name; that folder.

    n_stories: how many the run writes from each prompt, to be counted. If its figures are kept
    already, it writes none.

    Raises: RunDirError if the run is not finished or is damaged, or if the disk refuses.
    """
    run = RunDir.open(path)
    read_outcome(path)  # nothing is kept that the answers cannot use
    kept = results / run.name
    files = {
        CONFIG: to_json(run.config, indent=2) + "\n",
        SUMMARY: to_json(run.summary(), indent=2) + "\n",
        METRICS: "".join(to_json(row) + "\n" for row in thinned(run)),
    }
    if n_stories and not _is_kept(kept, files):
        files[STORIES] = to_json(written(run, n_stories), indent=2) + "\n"
    kept.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(kept / name, text)
    return kept


def _is_kept(kept: Path, files: Mapping[str, str]) -> bool:
    there = {name: kept / name for name in (*files, STORIES)}
    return all(path.exists() for path in there.values()) and all(
        there[name].read_text() == text for name, text in files.items()
    )


def written(run: RunDir, n_stories: int) -> dict[str, float]:
    """Figures of the stories that a run writes from the notes' two prompts: shares and means."""
    sampler = Sampler(run.load_model(), run.tokenizer())
    told = figures(list(write_stories(sampler, PROMPTS, SETTINGS, n_stories)))
    return {key: value for key, value in asdict(told).items() if key != "tokens_per_second"}
