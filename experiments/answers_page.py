"""The page about the experiments as text; `answers.py` writes it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from definitions import ORIGINAL, TWIN, Experiment, Laptop, load_experiments
from findings import FLAT, findings
from judging import CLEAR, SURE_SEEDS, Runs
from outcomes import Outcome

_WINDOW = 500
_TITLES = {TWIN: "The laptop twins", ORIGINAL: "The originals"}
_SAMPLES = (
    "What some of the twins write from the notes' two prompts, beside the bundled model `stories`, "
    "is in [samples](samples.md), by the command that stands there."
)
_ALT = {
    "loss-by-step": "Loss by step: training, in means over windows of steps, and held out (dashed)",
    "loss-by-time": "Training loss by minutes, in means over windows of steps",
    "final-loss-by-parameters": "Final held-out loss by non-embedding parameters",
    "accuracy-by-epoch": "Accuracy at each evaluation",
}


def page(runs: Mapping[str, Runs], images: Sequence[Path]) -> str:
    """The whole page: the questions, how they are asked, the runs, and what held.

    images: the charts, which lie in images/experiments beside the page.
    """
    experiments = load_experiments()
    parts = [_opening(experiments)]
    for kind, title in _TITLES.items():
        if kind == TWIN or runs[kind]:
            parts.append(f"## {title}\n\n{_told(runs[kind], experiments, images)}")
    parts += [_published(experiments), _SAMPLES, "Back to the [map](00-map.md).\n"]
    return "\n\n".join(parts)


def _opening(experiments: Mapping[str, Experiment]) -> str:
    laptop = Laptop()
    questions = "\n".join(
        f"| {_link(name)} | {one.question} |" for name, one in experiments.items()
    )
    return f"""# Experiments: what a run can answer

`python experiments/answers.py` writes this page; do not edit it.

d0mzw's notes on training are a series of questions, each answered by a run on TinyStories. They are
asked again here: six that the notes answered, and three that they left open.

| run | question |
| --- | --- |
{questions}

Each is a file with its question, the model and the recipe. An **original** is what the notes
trained: the hub's whole TinyStories, GPT-2's tokenizer, float32. Its **laptop twin** has the same
shape, window, batch, optimizer, rates and schedule, and differs in five things:

- a vocabulary of its own, `{laptop.tokenizer}`, learnt from its text;
- a few megabytes of stories instead of two gigabytes, read at most {laptop.passes} times;
- a tenth of the steps, or as many as those {laptop.passes} passes allow: most twins keep the
  originals' proportions (5,000 and 20,000 steps become 500 and 2,000);
- {laptop.evaluations} evaluations, spread evenly;
- {laptop.precision} products, which cost no quality that could be measured (`LOG.md`).

```sh
python experiments/run_all.py --all --twins --threads 2
python experiments/answers.py --collect runs/experiments
python experiments/answers.py
```

The first trains what is not finished yet, and may be stopped and given again; `--full` instead of
`--twins` trains the originals. The second keeps each run's figures in `experiments/results`: its
settings, its summary, and its log, thinned to means over 10 steps (100, from 5,000 steps on) and to
its evaluations. It also lets each run write stories from the notes' two prompts, at temperature
0.7 and top-p 0.95, and counts them as `pvml compare` does. The third makes this page of what is
kept, and of nothing else."""


def _link(name: str) -> str:
    file = f"{name.replace('-', '_')}.py"
    return f"[{name}](../experiments/tinystories/{file})"


def _told(runs: Runs, experiments: Mapping[str, Experiment], images: Sequence[Path]) -> str:
    if not runs:
        return "None has run yet."
    texts = sorted({run.text for by_seed in runs.values() for run in by_seed.values()})
    parts = [
        f"Trained on {'; or on '.join(texts)}.",
        _table(runs, experiments),
        "Minutes are wall clock, evaluations included, on a machine that did other things as "
        "well; a step's time is the median over the run. Loss and slope are of the training "
        "loss, in nats per token; bits per byte and accuracy are of the held-out stories. "
        "Where a run was made with several seeds, the figures are means, and ± a standard "
        "deviation.",
        _charts(runs, images),
        "### What held",
        f"A claim is judged by held-out bits per byte, seed by seed. From {SURE_SEEDS} seeds on, "
        f"all must agree; with fewer, they must differ by {CLEAR} or more, since two seeds of one "
        f"recipe have differed by 0.03 (`LOG.md`). Anything else is open. A loss that falls by "
        f"less than {-FLAT} nats over the last window falls no more.",
        *(
            f"**{one.claim}: {one.verdict}.** The notes: {one.notes}. Here: {one.found}"
            for one in findings(runs)
        ),
    ]
    return "\n\n".join(parts)


def _table(runs: Runs, experiments: Mapping[str, Experiment]) -> str:
    windows = {run.window for by_seed in runs.values() for run in by_seed.values()}
    last = f"{_WINDOW} steps" if windows == {_WINDOW} else "tenth of the steps"
    columns: dict[str, Callable[[Sequence[Outcome]], str]] = {
        "seeds": lambda each: ", ".join(str(run.seed) for run in each),
        "n_ctx": lambda each: str(each[0].n_ctx),
        "steps": lambda each: f"{each[0].steps:,}",
        "tokens": lambda each: f"{each[0].tokens / 1e6:.1f} M",
        "passes": lambda each: f"{each[0].passes:.2f}",
        f"loss, mean of the last {last}": lambda each: _spread([run.loss for run in each]),
        "bits per byte": lambda each: _spread([run.bits_per_byte for run in each]),
        "accuracy": lambda each: _spread([run.accuracy for run in each]),
        "minutes": lambda each: f"{fmean(run.minutes for run in each):.1f}",
        "seconds a step": lambda each: f"{fmean(run.step_seconds for run in each):.2f}",
        f"slope: that loss less the mean of the {last} before": lambda each: (
            f"{fmean(run.slope for run in each):+.3f}"
        ),
    }
    lines = [f"| run | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for name in experiments:
        each = [run for _, run in sorted(runs.get(name, {}).items())]
        cells = [show(each) for show in columns.values()] if each else ["-"] * len(columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    beside = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{beside}"


def _charts(runs: Runs, images: Sequence[Path]) -> str:
    kinds = {(run.n_ctx, run.tokenizer) for by_seed in runs.values() for run in by_seed.values()}
    parts = ["Losses of different windows are of different tasks, so each window has its charts."]
    for n_ctx, tokenizer in sorted(kinds):
        ending = f"-ctx{n_ctx}-{tokenizer.replace(':', '')}"
        parts.append(f"n_ctx {n_ctx}:")
        parts += [
            f"![{shown}](images/experiments/{image.name})"
            for chart, shown in _ALT.items()
            for image in images
            if image.stem.startswith(chart) and image.stem.endswith(ending)
        ]
    return "\n\n".join(parts)


def _published(experiments: Mapping[str, Experiment]) -> str:
    lines = [
        "## What the notes report",
        "",
        "On a GPU, the hub's whole TinyStories, GPT-2's tokens. The slope is our measure: the mean "
        "loss of the last 500 steps less that of the 500 before.",
        "",
        "| run | steps | loss, mean of the last 500 steps | accuracy | minutes | slope |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in experiments.items():
        if one.published:
            figures = one.published
            lines.append(
                f"| {name} | {one.steps:,} | {figures['loss']:.3f} | {figures['accuracy']:.3f} | "
                f"{figures['minutes']:.1f} | {figures['slope']:+.3f} |"
            )
    return "\n".join(lines)
