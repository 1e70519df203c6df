"""What is kept of a finished run: figures by hand, and the same from the little that is kept."""

import json
import math
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

    others = {"stories": 99, "ended": 0.5, "stuck": 0.25}
    monkeypatch.setattr(outcomes, "written", lambda run, n: others)
    assert outcomes.collect(path, tmp_path / "results", n_stories=2) == kept
    assert outcomes.read_outcome(kept).stories == stories
    (kept / "summary.json").write_text("{}")
    outcomes.collect(path, tmp_path / "results", n_stories=2)
    assert outcomes.read_outcome(kept).stories == others


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


def test_a_run_under_another_seeds_name_is_refused(outcomes: Any, make_finished: Any) -> None:
    """A folder's name says the seed, and none says 0: a copy cannot take another run's place."""
    path = make_finished("twin-a", LOSSES)

    for there, name, told in (
        (path, "twin-a-seed7", "name of seed 7, and its settings say seed 0"),
        (make_finished("twin-b-seed3", LOSSES, seed=3), "twin-b", "name of seed 0, and .* seed 3"),
    ):
        renamed = there.rename(there.parent / name)
        with pytest.raises(RunDirError, match=f"{name} has the {told}"):
            outcomes.read_outcome(renamed)


@pytest.mark.parametrize(
    ("row", "damage", "told"),
    [
        (
            -1,
            {"bits_per_byte": math.nan},
            "bits_per_byte must be a finite number above 0, not 'nan",
        ),
        (-1, {"bits_per_byte": None}, "bits_per_byte must be a finite number above 0, not 'None'"),
        (-1, {"accuracy": 1.5}, "accuracy must be a number from 0 to 1"),
        (-1, {"held_out_loss_by_position": [1.0, None]}, "by_position must be a list of finite"),
        (0, {"loss": "4.0"}, "loss must be a finite number, not '4.0'"),
        (0, {"seconds": None}, "seconds must be a finite number of at least 0"),
        (5, {"step": 5}, "of two rows with loss, step 5 follows step 5"),
        (-2, {"tokens": 7}, "ends with loss at tokens 7, and summary.json says 2,420"),
    ],
)
def test_a_log_with_a_bad_figure_is_refused(
    outcomes: Any, make_finished: Any, row: int, damage: dict[str, Any], told: str
) -> None:
    """The figure is named with what it must be, in the run and in what is kept of it."""
    log = make_finished("twin-a", LOSSES) / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows[row] |= damage
    log.write_text("".join(json.dumps(one) + "\n" for one in rows))

    with pytest.raises(RunDirError, match=f"twin-a/metrics.jsonl.*{told}"):
        outcomes.read_outcome(log.parent)


def test_a_doubled_log_is_refused(outcomes: Any, make_finished: Any, tmp_path: Path) -> None:
    """Of a run, and of what is kept of it: the end of the kept log alone, twice, is damage, too."""
    path = make_finished("twin-a", LOSSES)
    kept = outcomes.collect(path, tmp_path / "results", n_stories=0) / "metrics.jsonl"
    *_, end = kept.read_text().splitlines()
    kept.write_text(kept.read_text() + end + "\n")
    with pytest.raises(RunDirError, match="it tells its end 2 times"):
        outcomes.read_outcome(kept.parent)

    log = path / "metrics.jsonl"
    log.write_text("".join(f"{line}\n{line}\n" for line in log.read_text().splitlines()))
    with pytest.raises(RunDirError, match="step 1 follows step 1"):
        outcomes.read_outcome(path)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("summary.json", '"steps": 110', '"steps": 0', "steps must be a whole number of at least"),
        (
            "summary.json",
            '"seconds": 180.0',
            '"seconds": 0',
            "seconds must be a finite number above",
        ),
        ("summary.json", '"tokens": 2420', '"others": 1', "summary.json has no tokens"),
        ("config.json", '"bytes": 200000', '"bytes": "much"', "bytes must be a whole number"),
        ("config.json", '"seed": 0', '"seed": null', "seed must be a whole number"),
    ],
)
def test_a_summary_or_config_with_a_bad_figure_is_refused(
    outcomes: Any, make_finished: Any, file: str, old: str, new: str, told: str
) -> None:
    """The file is named, and the figure with what it must be."""
    path = make_finished("twin-a", LOSSES)
    text = (path / file).read_text()
    assert old in text
    (path / file).write_text(text.replace(old, new))

    with pytest.raises(RunDirError, match=told):
        outcomes.read_outcome(path)
