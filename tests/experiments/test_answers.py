"""The page about the experiments: from kept figures alone, and the committed one is up to date."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.train import ModelFlags
from pvml.errors import PvmlError

LOSSES = [4.0] * 100 + [2.0] * 100


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script; its experiments' models are of the shape that `make_finished` makes."""
    import answers
    from definitions import load_experiments

    tiny = ModelFlags(d_model=12, n_heads=3, n_layers=1, n_ctx=11)
    small = {name: replace(one, model=tiny) for name, one in load_experiments().items()}
    monkeypatch.setattr(answers, "load_experiments", lambda: small)
    return answers


def test_the_committed_page_is_what_the_command_writes(root: Path, tmp_path: Path) -> None:
    """Text and charts' names follow from experiments/results and nothing else."""
    import answers

    written = tmp_path / "13-experiments.md"
    assert answers.main(["--page", str(written)]) == 0
    committed = root / "docs" / "13-experiments.md"

    assert written.read_text() == committed.read_text()
    charts = [
        {path.name for path in (page.parent / "images" / "experiments").glob("*")}
        for page in (written, committed)
    ]
    assert charts[0] == charts[1]


def test_results_stay_small(root: Path) -> None:
    """What is kept of all runs is under a megabyte, and the charts are under two."""
    for folder, most in (("experiments/results", 1e6), ("docs/images/experiments", 2e6)):
        sizes = [path.stat().st_size for path in (root / folder).rglob("*") if path.is_file()]
        assert sum(sizes) < most


def test_from_runs_to_the_page(
    answers: Any, make_finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Collected runs make a table, charts and verdicts; the runs themselves make the same page."""
    for name in ("d32-l4-h16-ctx128-5k", "d128-l6-h4-ctx128-5k"):
        make_finished(f"twin-{name}", LOSSES)
        make_finished(f"twin-{name}-seed1", [loss + 0.5 for loss in LOSSES], seed=1)
    runs = make_finished("twin-d256-l8-h8-ctx128-5k", LOSSES, finished=False).parent
    results, page = tmp_path / "results", tmp_path / "page.md"

    assert answers.main(["--collect", str(runs), "--results", str(results), "--stories", "0"]) == 0
    assert "twin-d256-l8-h8-ctx128-5k is not finished" in capsys.readouterr().out
    assert len(list(results.iterdir())) == 4
    assert answers.main(["--results", str(results), "--page", str(page)]) == 0
    text = page.read_text()
    images = sorted((tmp_path / "images" / "experiments").iterdir())
    assert text == answers.page(answers.by_experiment([runs]), images)

    assert (
        "| d32-l4-h16-ctx128-5k | 0, 1 | 11 | 200 | 0.0 M | 20.00 | 2.250 ± 0.354 | "
        "1.005 ± 0.000 | 0.200 ± 0.000 | 3.0 | 1.00 | +0.000 |" in text
    )
    assert "| d256-l8-h8-ctx128-5k | - |" in text
    assert "loss, mean of the last tenth of the steps" in text
    assert "**More capacity helps at the same steps: open.**" in text
    assert "Here: Not run yet: d256-l8-h8-ctx128-20k, d128-l6-h4-ctx128-20k." in text
    assert len(images) == 4
    assert all(f"](images/experiments/{path.name})" in text for path in images)


def test_the_notes_windows_are_told_in_the_head(answers: Any, make_outcome: Any) -> None:
    """Originals are judged by 500 steps, and stand in a table of their own."""
    from answers_page import page

    name = "d128-l6-h4-ctx128-5k"
    run = make_outcome(name, kind="tinystories", steps=5000, window=500)
    text = page({"twin": {}, "tinystories": {name: {0: run}}}, [])

    assert "## The originals" in text
    assert "loss, mean of the last 500 steps | bits per byte" in text
    assert "None has run yet." in text


def test_old_charts_are_removed(answers: Any, make_finished: Any, tmp_path: Path) -> None:
    """A chart that the runs make no more does not stay."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "loss-by-step-old.png").touch()
    runs = answers.by_experiment([make_finished("twin-d32-l4-h16-ctx128-5k", LOSSES).parent])
    made = answers.draw(runs, folder)

    assert {path.name for path in folder.iterdir()} == {path.name for path in made}
    assert sorted(path.stem.split("-ctx")[0] for path in made) == [
        "accuracy-by-epoch-tales",
        "final-loss-by-parameters-tales",
        "loss-by-step-tales",
        "loss-by-time-tales",
    ]


def test_a_damaged_run_is_left_out_and_told(
    answers: Any, make_finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Collecting goes on past it, and the exit code is 1; a folder that is not there is 2."""
    bad, good = (make_finished(f"twin-{name}", LOSSES) for name in ("a", "b"))
    (bad / "metrics.jsonl").write_text("nonsense\n{}\n")
    results = tmp_path / "results"
    arguments = ["--collect", str(bad.parent), "--results", str(results), "--stories", "0"]

    assert answers.main(arguments) == 1
    assert "twin-a" in capsys.readouterr().err
    assert [path.name for path in results.iterdir()] == [good.name]
    assert answers.main([str(tmp_path / "nowhere")]) == 2


def test_what_is_left_out_is_told(
    answers: Any, make_finished: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of no experiment, and one that is not finished; the others make the page."""
    good = make_finished("twin-d32-l4-h16-ctx128-5k", LOSSES)
    make_finished("twin-d31", LOSSES)
    make_finished("twin-d32-l4-h4-ctx128-20k", LOSSES, finished=False)

    assert list(answers.by_experiment([good.parent])["twin"]) == ["d32-l4-h16-ctx128-5k"]
    told = capsys.readouterr().err
    assert "twin-d31: there is no experiment d31, but d32-l4-h16-ctx128-5k, " in told
    assert "twin-d32-l4-h4-ctx128-20k is not finished" in told


def test_no_run_takes_anothers_place(
    answers: Any, make_finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders of one name are refused, and a model that is not the one of its name."""
    from definitions import load_experiments

    run = make_finished("twin-d32-l4-h16-ctx128-5k", LOSSES)
    shutil.copytree(run, tmp_path / "copies" / run.name)
    with pytest.raises(PvmlError, match="are both seed 0 of d32-l4-h16-ctx128-5k: give one"):
        answers.by_experiment([run, tmp_path / "copies"])

    monkeypatch.setattr(answers, "load_experiments", load_experiments)
    with pytest.raises(PvmlError, match=r"another model: d_model 12 \(not 32\)"):
        answers.by_experiment([run])


def test_a_forged_figure_makes_no_page(
    answers: Any, make_finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the folder is named, and nothing is written."""
    run = make_finished("twin-d32-l4-h16-ctx128-5k", LOSSES)
    log = run / "metrics.jsonl"
    log.write_text(log.read_text().replace('"bits_per_byte": 1.005', '"bits_per_byte": NaN'))

    assert answers.main([str(run), "--page", str(tmp_path / "page.md")]) == 2
    assert f"answers: {log}: a row with accuracy is damaged" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()
