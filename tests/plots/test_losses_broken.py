"""Broken logs: every run is drawn with its gaps, or left out with a sentence; never fatal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pvml.plots.losses import loss_curve, plot_runs

Make = Callable[..., Path]
NAN = float("nan")
KIND = "tales-ctx11-bpe263"
BROKEN: dict[str, list[float]] = {"damaged": [3.0] * 3, "odd": [3.0], "mute": []}


def silent(note: str) -> None:
    """For tests that are not about what is told."""


def test_broken_logs_are_drawn_with_their_gaps(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """One step, NaN, a torn last line and no summary are drawn; gaps are counted (case 49)."""
    one, nan = make_run("one", [5.0]), make_run("nan", [2.0] * 100 + [NAN] + [2.0] * 250)
    torn, part = make_run("torn", [3.0] * 100), make_run("part", [3.0] * 120, finished=False)
    with (torn / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 101, "lo')
    said: list[str] = []
    plot_runs([one, nan, torn, part], tmp_path, say=said.append)

    shown = charts.drawn(charts[f"loss-by-time-{KIND}"])
    assert shown["one"] == [[1 / 60, 5.0]]
    # windows of 10 steps, one of them with the gap
    assert [y for _, y in shown["nan"]] == [2.0] * 35 and len(shown["torn"]) == 20
    assert list(shown)[3] == "part (unfinished, step 120)"
    assert said == ["nan: 1 of 351 losses are not finite or beyond 1e+30: gaps"]


def test_losses_too_large_to_draw_are_gaps(make_run: Make, tmp_path: Path) -> None:
    """Losses whose axis would have no ticks are left out and counted, alone or among others."""
    huge = 1e308
    mixed, all_huge = make_run("mixed", [2.0] * 100 + [huge] * 50), make_run("huge", [huge] * 3)
    said: list[str] = []
    files = plot_runs([mixed, all_huge], tmp_path, ["png"], say=said.append)

    assert said[:2] == [
        "mixed: 50 of 150 losses are not finite or beyond 1e+30: gaps",
        "huge: 3 of 3 losses are not finite or beyond 1e+30: gaps",
    ]
    assert all(file.exists() for file in files)
    assert loss_curve([{"step": 1, "loss": huge}], tmp_path / "loss.png").exists()


def test_the_largest_losses_that_are_drawn(make_run: Make, tmp_path: Path) -> None:
    """Losses at the limit go through the drawing without a warning, beside small ones and alone."""
    runs = [make_run("both", [2.0] * 100 + [1e30]), make_run("alone", [-1e30] * 2)]
    said: list[str] = []

    assert plot_runs(runs, tmp_path, ["png"], say=said.append)
    assert [note.partition(": ")[2] for note in said] == ["beyond the axis: both (up to 1e+30)"]


def test_a_lone_point_and_an_unfinished_end_are_marked(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """A point without a finite neighbour, invisible as a line, is a dot; an end is a cross."""
    values = [2.0, NAN, 2.0, 2.0]
    plot_runs([make_run("a", values)], tmp_path, say=silent)
    (line,) = charts[f"loss-by-time-{KIND}"].lines
    assert (line.get_marker(), line.get_markevery()) == ("o", [0])

    plot_runs([make_run("b", values, finished=False)], tmp_path, say=silent)
    line, dots = charts[f"loss-by-time-{KIND}"].lines
    assert (line.get_marker(), line.get_markevery()) == ("x", [3])
    assert np.asarray(dots.get_xydata()).tolist() == [[1 / 60, 2.0]]


def test_a_chart_without_points_is_left_out(make_run: Make, charts: Any, tmp_path: Path) -> None:
    """Runs that logged nothing of what a chart shows are told, and a chart of none is not made."""
    old = make_run("old", [2.0], without=("held_out_loss_by_position", "seconds"))
    part = make_run("part", [2.0], finished=False)
    said: list[str] = []
    plot_runs([old, part], tmp_path, say=said.append)

    assert f"held-out-loss-by-position-{KIND}" not in charts
    assert list(charts.drawn(charts[f"accuracy-by-epoch-{KIND}"])) == ["old"]
    assert said[-2:] == [
        f"left out: held-out-loss-by-position-{KIND}: no run logged what it shows",
        "part: not in final-loss-by-parameters, accuracy-by-epoch, for which it logged no numbers",
    ]


def test_what_cannot_be_drawn_is_left_out_with_a_sentence(
    make_run: Make, charts: Any, tmp_path: Path
) -> None:
    """No run at all, a damaged log, a damaged config, a log without losses: each is told."""
    damaged, odd, mute = (make_run(name, losses) for name, losses in BROKEN.items())
    lines = (damaged / "metrics.jsonl").read_text().splitlines(keepends=True)
    (damaged / "metrics.jsonl").write_text("nonsense\n" + "".join(lines))
    (odd / "config.json").write_text('{"args": {}, "model": {"d_model": 0}}')
    said: list[str] = []
    runs = [tmp_path / "nowhere", damaged, odd, mute, make_run("good", [3.0])]
    plot_runs(runs, tmp_path, say=said.append)

    assert list(charts.drawn(charts[f"loss-by-time-{KIND}"])) == ["good"]
    expected = ("does not exist", "line 1 is not a JSON", "d_model must be", "no loss")
    for note, words in zip(said, expected, strict=True):
        assert note.startswith("left out:") and words in note
