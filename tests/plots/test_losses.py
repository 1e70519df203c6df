"""Charts from run directories: every run is drawn, or left out with a sentence; never fatal."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from pvml.errors import PvmlError, RunDirError
from pvml.plots.losses import loss_curve, plot_runs

Make = Callable[..., Path]
NAN = float("nan")
CHARTS = [
    "loss-by-step",
    "loss-by-time",
    "loss-by-tokens",
    "loss-by-flops",
    "final-loss-by-parameters",
    "accuracy-by-epoch",
    "held-out-loss-by-position",
]
KIND = "tales-ctx11-bpe263"


def silent(note: str) -> None:
    """For tests that are not about what is told."""


# By hand


def test_the_charts_show_the_runs_numbers(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Two runs of one kind share the charts, whose points are their numbers."""
    runs = [make_run("a", [4.0] * 100 + [2.0] * 400), make_run("b", [3.0] * 200, n_layers=2)]
    plot_runs(runs, tmp_path / "plots")
    step, time, tokens, _, size, accuracy, position = (charts[f"{c}-{KIND}"] for c in CHARTS)

    # windows of 20 and of 10 steps, in whose middles the means stand
    tens = [10.0 * window + 5.5 for window in range(20)]
    assert charts.drawn(step) == {
        "a": [[20.0 * window + 10.5, 4.0 if window < 5 else 2.0] for window in range(25)],
        "b": [[middle, 3.0] for middle in tens],
        "held out": [],
    }
    assert np.array(charts.drawn(time)["b"]) == pytest.approx(
        np.array([[x / 60, 3.0] for x in tens])
    )
    assert np.array(charts.drawn(tokens)["b"]) == pytest.approx(
        np.array([[22 * x, 3.0] for x in tens])
    )
    means = "training loss (nats per token; means of 10 to 20, by the run's length, steps)"
    assert step.get_ylabel() == tokens.get_ylabel() == means
    # a block: 12 x 12 d^2 = 1728 weights, 4 x 12 + 48 + 12 biases, 2 norms; then ln_final
    block = 12 * 12**2 + (4 * 12 + 48 + 12) + 4 * 12
    assert charts.drawn(size) == {"a": [[block + 24.0, 2.0]], "b": [[2 * block + 24.0, 2.0]]}
    assert charts.drawn(accuracy)["b"] == [[0.0, 0.1], [1.0, 0.2]]
    assert charts.drawn(position)["b"] == [[float(p), 2 + 1 / p] for p in range(1, 11)]
    assert step.get_title() == "tales, n_ctx 11, tokenizer bpe:263"
    assert size.get_xscale() == position.get_xscale() == "log"


def test_ticks_are_plain_numbers(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Small numbers stand as they are, even below 1; thousands and millions are short."""
    plot_runs([make_run("a", [4.0] * 101)], tmp_path)
    axis = charts[f"loss-by-time-{KIND}"].xaxis

    written = [axis.get_major_formatter()(x, None) for x in (0.03, 1.5, 500.0, 2e4, 655e6)]
    assert written == ["0.03", "1.5", "500", "20k", "655M"]


def test_flops_are_on_a_log_axis(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """A step of 22 tokens costs 22 times what training on a token does."""
    plot_runs([make_run("a", [4.0])], tmp_path)
    axes = charts[f"loss-by-flops-{KIND}"]
    a_token = 3 * (4 * 2 * 144 + 4 * 11 * 12 + 4 * 12 * 48 + 2 * 12 * 263)

    assert charts.drawn(axes) == {"a": [[22.0 * a_token, 4.0]]}
    assert axes.get_xscale() == "log"


# What is drawn together


def test_runs_of_another_kind_get_charts_of_their_own(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """Losses of another n_ctx or corpus share no axes; a corpus has one chart in bits per byte."""
    runs = [make_run("a", [4.0]), make_run("b", [3.0], n_ctx=7), make_run("c", [3.0], corpus="")]
    plot_runs(runs, tmp_path)
    across = [f"bits-per-byte-by-{what}-tales-all" for what in ("time", "flops", "parameters")]

    endings = (KIND, "tales-ctx7-bpe263", "ctx11-bpe263")
    assert sorted(charts) == sorted([f"{c}-{e}" for c in CHARTS for e in endings] + across)
    for name in across:
        assert list(charts.drawn(charts[name])) == ["a, n_ctx 11, bpe:263", "b, n_ctx 7, bpe:263"]
        assert charts[name].get_ylabel().startswith("held-out bits per byte")


def test_the_final_loss_is_the_held_out_one_where_there_is_one(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """One unfinished run without grades changes nothing; a finished one makes all training's."""
    graded, unfinished = make_run("a", [4.0]), make_run("b", [3.0], finished=False)
    plot_runs([graded, unfinished], tmp_path, say=silent)
    axes = charts[f"final-loss-by-parameters-{KIND}"]
    assert axes.get_ylabel() == "held-out loss after the last epoch (nats per token)"
    assert [point[0][1] for point in charts.drawn(axes).values()] == [2.0]

    old = make_run("c", [5.0], without=("held_out_loss",))
    plot_runs([graded, unfinished, old], tmp_path, say=silent)
    axes = charts[f"final-loss-by-parameters-{KIND}"]
    assert "training loss, mean of the last 500 steps" in axes.get_ylabel()
    assert [point[0][1] for point in charts.drawn(axes).values()] == [4.0, 3.0, 5.0]


def test_a_run_given_twice_is_drawn_once(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Two ways to one folder are one run."""
    run = make_run("a", [4.0])
    plot_runs([run, run.parent / "." / "a"], tmp_path)

    assert list(charts.drawn(charts[f"loss-by-step-{KIND}"])) == ["a", "held out"]


def test_runs_of_one_name_are_told_apart(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Two runs of one name are called by their folder too."""
    plot_runs([make_run("x/a", [4.0]), make_run("y/a", [3.0]), make_run("b", [2.0])], tmp_path)

    assert list(charts.drawn(charts[f"loss-by-time-{KIND}"])) == ["x/a", "y/a", "b"]


def test_the_held_out_loss_stands_beside_the_training_loss(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """By step, each run's held-out loss is a dashed line of its colour, told once in the legend."""
    plot_runs([make_run("a", [4.0] * 200), make_run("b", [3.0] * 300)], tmp_path)
    a, of_a, b, of_b, told = charts[f"loss-by-step-{KIND}"].lines

    assert (
        charts.points_of(of_a) == [[100.0, 2.0], [200.0, 2.0]] and len(charts.points_of(of_b)) == 3
    )
    assert (of_a.get_color(), of_b.get_color()) == (a.get_color(), b.get_color())
    assert of_a.is_dashed() and not a.is_dashed()
    assert (told.get_label(), charts.points_of(told)) == ("held out", [])
    assert len(charts[f"loss-by-time-{KIND}"].lines) == 2


def test_corpora_of_one_name_are_told_apart(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Other documents under the same name have charts of their own, called by more of the path."""
    runs = [
        make_run("a", [4.0], fingerprint="1" * 64, source="here/train.jsonl.xz"),
        make_run("b", [3.0], fingerprint="2" * 64, source="there/train.jsonl.xz"),
        make_run("c", [2.0], fingerprint="2" * 64, source="copy/train.jsonl.xz"),
    ]
    plot_runs(runs, tmp_path, only=["loss-by-time"])
    here, there = (charts[f"loss-by-time-{x}-train.jsonl.xz-ctx11-bpe263"] for x in WHERE)

    assert (list(charts.drawn(here)), list(charts.drawn(there))) == (["a"], ["b", "c"])
    assert here.get_title().startswith("here/train.jsonl.xz, n_ctx 11")


WHERE = ("here", "there")


def test_a_corpus_that_changed_is_told_by_its_fingerprint(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """Where even the path is the same, digits of the fingerprint stand behind it, or that none."""
    runs = [
        make_run("a", [4.0], fingerprint="1" * 64, source="here/tales.txt"),
        make_run("b", [3.0], fingerprint="2" * 64, source="here/tales.txt"),
        make_run("c", [3.0], source="here/tales.txt"),
    ]
    plot_runs(runs, tmp_path, only=["loss-by-time"])

    assert sorted(axes.get_title() for axes in charts.values()) == [
        "here/tales.txt (11111111), n_ctx 11, tokenizer bpe:263",
        "here/tales.txt (22222222), n_ctx 11, tokenizer bpe:263",
        "here/tales.txt (no fingerprint), n_ctx 11, tokenizer bpe:263",
    ]


def test_a_run_without_a_fingerprint_joins_its_source(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """It is drawn with the runs from where it is from, if all of those read the same documents."""
    runs = [
        make_run("a", [4.0], fingerprint="1" * 64, source="here/tales.txt"),
        make_run("b", [3.0], fingerprint="2" * 64, source="there/tales.txt"),
        make_run("c", [3.0], source="here/tales.txt"),
    ]
    plot_runs(runs, tmp_path, only=["loss-by-time"])

    assert sorted(list(charts.drawn(axes)) for axes in charts.values()) == [["a", "c"], ["b"]]


def test_no_two_pages_have_the_same_files(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Corpora whose names differ only in what no file name has are numbered."""
    plot_runs([make_run("a", [4.0], corpus="x y"), make_run("b", [3.0], corpus="x?y")], tmp_path)

    ending = "x-y-ctx11-bpe263"
    assert {
        name for e in (ending, f"{ending}-2") for name in charts.drawn(charts[f"loss-by-time-{e}"])
    } == {
        "a",
        "b",
    }


# Losses far beyond the others

BY = ("loss-by-step", "loss-by-time", "loss-by-tokens", "loss-by-flops")


def test_a_run_that_diverged_does_not_flatten_the_others(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """The axis ends near a blind guess's loss, ln 263 = 5.57; what is beyond is told by its size.

    So the charts of a run that diverged alone, and of none that did, show everything.
    """
    good, bad = make_run("good", [5.0] * 20 + [2.0] * 80), make_run("bad", [5.0] + [70_000.0] * 99)
    said: list[str] = []
    plot_runs([good, bad], tmp_path, say=said.append)
    for chart in BY:
        axes = charts[f"{chart}-{KIND}"]
        assert 2 - 0.5 < axes.get_ylim()[0] < 2 and 5.57 < axes.get_ylim()[1] < 8.4
        assert axes.get_title().endswith("\nbeyond the axis: bad (up to 70,000.0)")

    assert said == [f"{', '.join(BY)}: beyond the axis: bad (up to 70,000.0)"]
    for alone in (good, bad):
        plot_runs([alone], tmp_path, say=silent)
        axes = charts[f"final-loss-by-parameters-{KIND}"]
        assert "beyond" not in axes.get_title()
    plot_runs([good], tmp_path, say=silent)
    assert charts[f"loss-by-step-{KIND}"].get_ylim()[1] < 5.5


def test_a_curve_alone_ends_where_it_is_told(tmp_path: Path, charts: Any) -> None:
    """A run's own chart does the same, if it is told the loss of a blind guess."""
    rows = [{"step": s, "loss": 5.0 if s < 9 else 1e5} for s in range(1, 101)]
    loss_curve(rows, tmp_path / "whole.png")
    loss_curve(rows, tmp_path / "cut.png", guess=5.5)

    assert charts["whole"].get_ylim()[1] > 1e5 > 8.25 > charts["cut"].get_ylim()[1]
    assert charts["cut"].get_title().endswith("beyond the axis: the loss (up to 100,000.0)")


def test_only_the_charts_that_are_asked_for(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Names choose among the charts of every kind of run; what none of them names is not told."""
    said: list[str] = []
    only = ("loss-by-step", "accuracy-by-epoch")
    runs = [make_run("a", [4.0] * 100), make_run("b", [3.0] * 100, n_ctx=7)]
    plot_runs(runs, tmp_path, say=said.append, only=only)

    assert sorted(charts) == sorted(f"{c}-{e}" for c in only for e in (KIND, "tales-ctx7-bpe263"))
    assert said == []


# Files


def test_each_chart_is_a_png_and_an_svg(make_run: Make, tmp_path: Path) -> None:
    """All files are there, the images are large enough to read, and an SVG is always the same."""
    runs = [make_run("a", [4.0] * 3), make_run("b", [3.0], finished=False)]
    written = plot_runs(runs, tmp_path / "plots", say=silent)
    contents = {path: path.read_bytes() for path in written}

    names = [f"{chart}-{KIND}.{kind}" for chart in CHARTS for kind in ("png", "svg")]
    assert [path.name for path in written] == names
    assert {path.name for path in (tmp_path / "plots").iterdir()} == set(names)
    assert min(min(imread(path).shape[:2]) for path in written[::2]) > 700
    again = plot_runs(runs, tmp_path / "plots", ["svg"], say=silent)
    assert again == written[1::2]
    assert {path: path.read_bytes() for path in again} == {p: contents[p] for p in again}


def test_a_loss_curve_is_one_image(tmp_path: Path, charts: Any) -> None:
    """`loss_curve` draws each step, means and held-out losses, and refuses rows without a loss."""
    rows = [{"step": s, "loss": 5 / s} for s in range(1, 251)]
    rows.append({"step": 250, "accuracy": 0.5, "held_out_loss": 0.75})
    path = loss_curve(rows, tmp_path / "loss.png")

    assert path == tmp_path / "loss.png"
    lines = charts.drawn(charts["loss"])
    assert len(lines["training, each step"]) == 250
    assert len(lines["training, mean of 10 steps"]) == 25
    assert lines["held out"] == [[250.0, 0.75]]
    loss_curve(rows[:20], path)
    assert list(charts.drawn(charts["loss"])) == ["training, each step"]  # whose means are itself
    with pytest.raises(PvmlError, match="no row has one"):
        loss_curve(rows[-1:], path)


def test_a_curve_of_means_does_not_pass_for_each_step(tmp_path: Path, charts: Any) -> None:
    """A log with a row for each window is drawn as means, in the middles of the windows."""
    loss_curve([{"step": 10 * s, "loss": 5 / s} for s in range(1, 26)], tmp_path / "loss.png")

    lines = charts.drawn(charts["loss"])
    assert list(lines) == ["training, mean of 10 steps"]
    assert lines["training, mean of 10 steps"][0] == [5.5, 5.0]


def test_steps_that_are_not_logged_are_marked(make_run: Make, tmp_path: Path, charts: Any) -> None:
    """A log with a hole is told in the legend of every chart with its training loss."""
    path = make_run("a", [4.0] * 15)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    kept = [row for row in rows if row["step"] not in (3, 4)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    plot_runs([path], tmp_path, say=silent, only=["loss-by-time"])
    loss_curve(kept, tmp_path / "loss.png")

    told = "(2 of 15 steps are not in its log)"
    assert f"a {told}" in charts.drawn(charts[f"loss-by-time-{KIND}"])
    assert f"training, each step {told}" in charts.drawn(charts["loss"])


def test_a_folder_that_cannot_be_written_is_named(make_run: Make, tmp_path: Path) -> None:
    """Plots below a file are an error that names the plot."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunDirError, match="loss-by-step.* could not be written"):
        plot_runs([make_run("a", [3.0])], tmp_path / "file")


def test_no_screen_is_looked_for() -> None:
    """Importing the charts does not import pyplot, which keeps figures and looks for a screen."""
    code = "import pvml.plots.losses, sys; sys.exit('matplotlib.pyplot' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
