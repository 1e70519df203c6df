"""What is kept of a finished run: figures by hand, and the same from the little that is kept."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pvml.errors import PvmlError, RunDirError
from pvml.plots.curves import read_curves
from pvml.runs.format import RunDir

# 90 steps at 4, 10 at 3, then 5 at 2 and 5 at 1
LOSSES = [4.0] * 90 + [3.0] * 10 + [2.0] * 5 + [1.0] * 5


@pytest.fixture
def outcomes() -> Any:
    import outcomes

    return outcomes


@pytest.mark.parametrize(
    ("steps", "window"), [(40_000, 500), (5_000, 500), (2_000, 200), (580, 58), (500, 50), (7, 1)]
)
def test_the_end_of_a_run_is_a_tenth_at_most(outcomes: Any, steps: int, window: int) -> None:
    """The notes' runs are judged by 500 steps, shorter ones by a tenth of theirs."""
    assert outcomes.end_window(steps) == window


def test_a_run_by_hand(outcomes: Any, make_finished: Any) -> None:
    """The last 11 of 110 steps, the 11 before; passes, minutes, the time of a step."""
    run = outcomes.read_outcome(make_finished("twin-d32-l4-h16-ctx128-5k-seed2", LOSSES, seed=2))

    assert (run.kind, run.experiment, run.seed) == ("twin", "d32-l4-h16-ctx128-5k", 2)
    assert run.window == 11
    # the last eleven losses: one of 3, five of 2, five of 1; before them nine of 3 and two of 4
    assert run.loss == pytest.approx(18 / 11, abs=1e-6)
    assert run.slope == pytest.approx(18 / 11 - 35 / 11, abs=1e-6)
    assert (run.steps, run.tokens, run.passes) == (110, 2420, 11.0)
    assert (run.minutes, run.step_seconds) == (3.0, 1.0)
    assert (run.accuracy, run.held_out_loss, run.bits_per_byte) == (0.11, 2.5, 1 + 1 / 110)
    assert run.bits_by_epoch == (1 + 1 / 55, 1 + 1 / 110)
    assert run.loss_by_position == (2.3333,) * 10
    assert run.text == "100 stories (0.2 MB), 7 of them held out; tokenizer bpe:263"


def test_a_thinned_log_is_means(outcomes: Any, make_finished: Any) -> None:
    """Rows of 5 steps, of so short a run, hold their mean; the last evaluation its positions."""
    rows = outcomes.thinned(RunDir.open(make_finished("twin-a", LOSSES)))
    stretches = [row for row in rows if "loss" in row]
    graded = [row for row in rows if "accuracy" in row]

    assert [row["step"] for row in stretches] == list(range(5, 111, 5))
    assert [row["loss"] for row in stretches] == [4.0] * 18 + [3.0, 3.0, 2.0, 1.0]
    assert {row["steps"] for row in stretches} == {5}
    assert ["held_out_loss_by_position" in row for row in graded] == [False, True]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)


def test_a_long_log_is_thinned_more(outcomes: Any, make_finished: Any) -> None:
    """From 5,000 steps on a row stands for 100."""
    losses = [step / 1000 for step in range(5000)]
    rows = outcomes.thinned(RunDir.open(make_finished("tinystories-a", losses)))
    kept = [row["loss"] for row in rows if "loss" in row]

    assert len(kept) == 50
    assert kept[0] == pytest.approx(fmean(losses[:100]))


def test_what_is_kept_tells_the_same(outcomes: Any, make_finished: Any, tmp_path: Path) -> None:
    """From the thinned folder come the outcome and the curves that the run itself gives."""
    path = make_finished("twin-a", LOSSES)
    kept = outcomes.collect(path, tmp_path / "results", n_stories=0)
    ours, theirs = (outcomes.read_outcome(one) for one in (kept, path))

    assert replace(ours, path=path) == theirs
    curves = [read_curves(one) for one in (kept, path)]
    assert curves[0].loss == pytest.approx(curves[1].loss)
    assert curves[0].windows.minutes == pytest.approx(curves[1].windows.minutes)
    assert curves[0].accuracy.tolist() == curves[1].accuracy.tolist()
    assert {file.name for file in kept.iterdir()} == {
        "config.json",
        "summary.json",
        "metrics.jsonl",
    }


def test_stories_are_asked_for_as_the_notes_did(outcomes: Any) -> None:
    """Two prompts, temperature 0.7, top-p 0.95, from seed 0 on, at most 250 tokens."""
    assert outcomes.PROMPTS == ("Once upon a time", "Lily went to the park and saw")
    args = outcomes.SETTINGS
    assert (args.temperature, args.top_p, args.seed, args.max_new_tokens) == (0.7, 0.95, 0, 250)


def test_stories_are_written_once(
    outcomes: Any, make_finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of as many stories as asked for are kept, and made again only for another run."""
    monkeypatch.setattr(outcomes, "SETTINGS", replace(outcomes.SETTINGS, max_new_tokens=9))
    path = make_finished("twin-a", LOSSES)
    kept = outcomes.collect(path, tmp_path / "results", n_stories=2)
    stories = json.loads((kept / "stories.json").read_text())
    assert stories["stories"] == 4 and 0 <= stories["stuck"] <= 1
    assert outcomes.read_outcome(kept).stories == stories

    monkeypatch.setattr(outcomes, "written", lambda run, n: {"stories": 99.0})
    assert outcomes.collect(path, tmp_path / "results", n_stories=2) == kept
    assert outcomes.read_outcome(kept).stories == stories
    (kept / "summary.json").write_text("{}")
    outcomes.collect(path, tmp_path / "results", n_stories=2)
    assert outcomes.read_outcome(kept).stories == {"stories": 99.0}


def test_only_finished_runs_of_experiments_count(outcomes: Any, make_finished: Any) -> None:
    """Others are not found by their name, or refused by their state."""
    done, part = make_finished("twin-a", LOSSES), make_finished("twin-b", LOSSES, finished=False)
    make_finished("storybook-d16", LOSSES)

    assert outcomes.find_runs([done.parent]) == [done, part]
    with pytest.raises(RunDirError, match="not finished"):
        outcomes.read_outcome(part)
    with pytest.raises(PvmlError, match="there is no folder nowhere"):
        outcomes.find_runs([Path("nowhere")])


def test_a_damaged_log_is_named(outcomes: Any, make_finished: Any) -> None:
    """A run without an evaluation lacks what the answers need, and the error says which run."""
    path = make_finished("twin-a", LOSSES)
    rows = [row for row in RunDir.open(path).rows() if "accuracy" not in row]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    with pytest.raises(RunDirError, match="twin-a lacks figures"):
        outcomes.read_outcome(path)
