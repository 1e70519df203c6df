"""A run's log as series: the numbers that were logged, and what is guessed where they were not."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.flops import training_flops
from pvml.plots.curves import (
    column,
    read_curves,
    smoothed,
    smoothing_window,
    window_ends,
    window_means,
    window_middles,
)

Make = Callable[..., Path]
NAN = float("nan")


def test_windows_by_hand() -> None:
    """Windows are steps 1 and 2, 3 and 4, 5; a short one counts, a NaN makes a gap."""
    steps, losses = np.arange(1.0, 6.0), np.array([1.0, 3.0, 5.0, NAN, 9.0])
    ends = window_ends(steps, 2)

    assert ends == [1, 3, 4]
    np.testing.assert_array_equal(window_means(losses, ends), [2.0, NAN, 9.0])
    assert window_middles(steps[ends], 2).tolist() == [1.5, 3.5, 5.0]
    assert window_ends(np.array([]), 2) == []
    assert smoothed(np.array([]), np.array([]))[0].x.tolist() == []


def test_windows_go_by_the_step_and_not_by_the_row() -> None:
    """Of steps 1, 4, 5, 6 in windows of 2, step 1 and 4 stand alone, in windows as the others."""
    steps = np.array([1.0, 4.0, 5.0, 6.0])

    assert window_ends(steps, 2) == [0, 1, 3]
    assert window_means(np.array([8.0, 6.0, 4.0, 2.0]), [0, 1, 3]).tolist() == [8.0, 6.0, 3.0]
    assert window_middles(steps[[0, 1, 3]], 2).tolist() == [1.0, 3.5, 5.5]


@pytest.mark.parametrize(
    ("steps", "window"), [(1, 1), (39, 1), (40, 2), (150, 5), (300, 10), (1999, 50), (2000, 100)]
)
def test_a_short_run_has_short_windows(steps: int, window: int) -> None:
    """Windows grow to 100 steps as long as 20 points are left; what is missing changes nothing."""
    numbers = np.arange(1.0, steps + 1)
    points, found = smoothed(numbers, numbers)

    assert found == smoothing_window(numbers[-1:]) == window
    assert len(points.x) >= min(steps, 20)
    assert smoothing_window(np.array([NAN])) == 1


def test_a_mean_stands_in_the_middle_of_what_it_is_of() -> None:
    """The means of a straight line lie on it: neither above nor below, at its ragged end too."""
    steps = np.arange(1.0, 2051.0)
    points, _ = smoothed(steps, 5 - steps / 1000)

    np.testing.assert_allclose(points.y, 5 - points.x / 1000)
    assert points.x[[0, -1]].tolist() == [50.5, 2025.5]


def test_a_column_holds_numbers_only() -> None:
    """What is missing, null, a text, a truth value, infinite or too large to draw is NaN."""
    rows: list[dict[str, Any]] = [{"a": 1}, {}, {"a": None}, {"a": "2"}, {"a": True}, {"a": 1e999}]
    rows += [{"a": number} for number in (-1e308, 10**400, 1e31, 1e30)]

    np.testing.assert_array_equal(column(rows, "a"), [1.0, *[NAN] * 8, 1e30])


def test_a_run_by_hand(make_run: Make) -> None:
    """Every series of a run of 150 steps, from what it logged."""
    curves = read_curves(make_run("a", [4.0] * 100 + [3.0] * 50))
    a_token = training_flops(Config(d_model=12, n_heads=3, n_layers=1, n_ctx=11, d_vocab=263)).total

    assert (curves.name, curves.corpus, curves.n_ctx) == ("a", "tales", 11)
    assert curves.tokenizer == "bpe:263"
    assert curves.unfinished_at is None and curves.notes == ()
    middles = [5.0 * window + 3 for window in range(30)]
    assert (curves.window, curves.loss.tolist()) == (5, [4.0] * 20 + [3.0] * 10)
    assert curves.windows.steps.tolist() == middles
    # nothing before the first step, and a step's share from each end to the next
    assert curves.windows.minutes == pytest.approx([step / 60 for step in middles])
    assert curves.windows.tokens == pytest.approx([22 * step for step in middles])
    assert curves.windows.flops == pytest.approx([22.0 * a_token * step for step in middles])
    assert curves.guess == math.log(263)
    assert curves.epochs.tokens.tolist() == [2200.0, 3300.0]
    assert curves.epoch_numbers.tolist() == [0.0, 1.0]
    assert curves.accuracy.tolist() == [0.1, 0.15]
    assert curves.final_held_out == 2.0 and curves.final_bits_per_byte == 1.0
    assert curves.by_position.tolist() == [2 + 1 / place for place in range(1, 11)]
    assert curves.last_steps_loss == pytest.approx(550 / 150)


def test_an_unfinished_run_has_what_it_logged(make_run: Make) -> None:
    """A run stopped in its first epoch says at which step, and has no grades yet."""
    curves = read_curves(make_run("a", [4.0] * 20, finished=False))

    assert curves.unfinished_at == 20
    assert curves.loss.tolist() == [4.0] * 20
    assert np.isnan(curves.final_held_out) and len(curves.by_position) == 0


def test_gaps_are_counted(make_run: Make) -> None:
    """Losses that are not finite, and steps that are not in the log, are told by their number."""
    path = make_run("a", [2.0, NAN, 2.0, NAN, 2.0])
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[1:]))

    assert read_curves(path).notes == (
        "a: 2 of 4 losses are not finite or beyond 1e+30: gaps",
        "a: 1 of 5 steps are not in its log",
    )


def test_a_log_of_means_lacks_nothing(make_run: Make) -> None:
    """One row for each window, as a bundled model's log has, is told as what it is."""
    path = make_run("a", [2.0] * 250)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] % 10 == 0]
    (path / "metrics.jsonl").write_text("".join(kept))
    curves = read_curves(path)

    assert curves.lacking == ""
    assert curves.notes == ("a: its log has a row for each 10 steps, with their mean loss",)
    (path / "metrics.jsonl").write_text("".join(kept[1:]))
    assert read_curves(path).lacking == "226 of 250 steps are not in its log"


def test_what_an_older_version_did_not_log_is_guessed(make_run: Make) -> None:
    """Without token counts and times they are spread over the steps, and this is told."""
    path = make_run("a", [2.0] * 150, without=("tokens", "seconds", "held_out_loss_by_position"))
    curves = read_curves(path)

    assert curves.windows.tokens[[0, -1]] == pytest.approx([3 * 22, 148 * 22])
    assert curves.windows.minutes[[0, -1]] == pytest.approx([3 / 60, 148 / 60])
    assert len(curves.by_position) == 0
    assert curves.notes == (
        "a: not every step logged token counts: its tokens are spread evenly over its steps",
        "a: not every step logged times: its seconds are spread evenly over its steps",
    )


@pytest.mark.parametrize("summary", [None, "nonsense"])
def test_what_cannot_be_guessed_is_a_gap(make_run: Make, summary: str | None) -> None:
    """Times that were not logged are unknown without a summary, or with a damaged one."""
    path = make_run("a", [2.0] * 3, without=("seconds",), finished=False)
    if summary is not None:
        (path / "summary.json").write_text(summary)
    curves = read_curves(path)

    assert np.isnan(curves.windows.minutes).all()
    assert curves.notes == ("a: not every step logged times: its seconds cannot be known",)


def test_the_seeds_runs_can_be_read(tmp_path: Path) -> None:
    """A run in the seeds' older form, whose rows have no times, is read, and the guess is told."""
    path = tmp_path / "old"
    path.mkdir()
    model = {"d_model": 128, "n_heads": 4, "n_layers": 6, "n_ctx": 128, "d_head": 32, "d_mlp": 512}
    (path / "config.json").write_text(json.dumps({"args": {"batch_size": 32}, "model": model}))
    rows: list[dict[str, Any]] = [{"step": s, "loss": 9.0, "epoch": 0} for s in (1, 2, 3)]
    rows.append({"step": 3, "accuracy": 0.04, "epoch": 0})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "summary.json").write_text(json.dumps({"seconds": 120.0}))
    curves = read_curves(path)

    assert (curves.corpus, curves.n_ctx, curves.tokenizer) == ("", 128, "gpt2")
    assert curves.non_embedding == 14_122_321 - 2 * 128 * 50257 - 50257 - 128 * 128
    # a point at the end of each of three steps of 40 seconds
    assert curves.windows.minutes == pytest.approx([2 / 3, 4 / 3, 2.0])
    assert curves.windows.tokens == pytest.approx([32.0 * 128, 2 * 32 * 128, 3 * 32 * 128])
    assert len(curves.notes) == 2


def test_a_run_without_losses_or_steps_is_refused(make_run: Make) -> None:
    """A log with no loss, or a loss with no step, is an error that names the run."""
    with pytest.raises(PvmlError, match="silent logged no loss"):
        read_curves(make_run("silent", []))
    with pytest.raises(PvmlError, match="odd is damaged: a row .* has a loss and no step"):
        read_curves(make_run("odd", [2.0], without=("step",)))
