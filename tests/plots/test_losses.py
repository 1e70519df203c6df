"""Charts from run directories: every run is drawn, or left out with a sentence; never fatal."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError, RunDirError
from pvml.plots import losses
from pvml.plots.curves import read_curves, window_ends, window_means
from pvml.plots.losses import loss_curve, plot_runs
from pvml.runs.format import RunDir

CHARTS = ["loss-by-step", "loss-by-time", "final-loss-by-parameters", "accuracy-by-epoch"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat"] * 3, 263)


@pytest.fixture
def finished(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Path]:
    """Make a run of these losses, one a second, with a grade every 100 steps."""

    def make(name: str, step_losses: list[float], n_ctx: int = 11, n_layers: int = 1) -> Path:
        cfg = Config(d_model=12, n_heads=3, n_layers=n_layers, n_ctx=n_ctx, d_vocab=263)
        run = RunDir.create(tmp_path / name, cfg=cfg, tokenizer=tokenizer, args={})
        for step, loss in enumerate(step_losses, start=1):
            run.log({"step": step, "loss": loss, "seconds": float(step)})
            if step % 100 == 0 or step == len(step_losses):
                run.log({"step": step, "accuracy": step / 1000, "epoch": (step - 1) // 100})
        run.finish({"seconds": float(len(step_losses))})
        return run.path

    return make


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """The axes of every chart that is saved, by its file's name."""
    seen: dict[str, Axes] = {}
    save = losses.save

    def keep(figure: Figure, path: Path) -> Path:
        seen[path.name] = figure.axes[0]
        return save(figure, path)

    monkeypatch.setattr(losses, "save", keep)
    return seen


def drawn(axes: Axes) -> dict[str, list[list[float]]]:
    """Each labelled line's points that are finite."""
    lines = {str(line.get_label()): line.get_xydata() for line in axes.lines}
    return {
        label: [[float(x), float(y)] for x, y in np.asarray(points) if np.isfinite(y)]
        for label, points in lines.items()
        if not label.startswith("_")
    }


# By hand


def test_windows_by_hand() -> None:
    """Means and last values of windows of 2; a short window counts, a NaN makes a gap."""
    values = np.array([1.0, 3.0, 5.0, np.nan, 9.0])

    np.testing.assert_array_equal(window_means(values, 2), [2.0, np.nan, 9.0])
    np.testing.assert_array_equal(window_ends(values, 2), [3.0, np.nan, 9.0])


def test_the_charts_show_the_runs_numbers(
    finished: Callable[..., Path], figures: dict[str, Axes], tmp_path: Path
) -> None:
    """Two runs of one n_ctx share four charts, whose points are their numbers."""
    runs = [finished("a", [4.0] * 100 + [2.0] * 400), finished("b", [3.0] * 200, n_layers=2)]
    plot_runs(runs, tmp_path / "plots")
    one, two, three, four = (figures[f"{chart}-ctx11-bpe263.png"] for chart in CHARTS)

    assert drawn(one) == {
        "a": [[100.0, 4.0], *[[100.0 * i, 2.0] for i in range(2, 6)]],
        "b": [[100.0, 3.0], [200.0, 3.0]],
    }
    assert drawn(two)["b"] == [[pytest.approx(100 / 60), 3.0], [pytest.approx(200 / 60), 3.0]]
    # a block: 12 x 12 d^2 = 1728 weights, 4 x 12 + 48 + 12 biases, 2 norms; then ln_final
    block = 12 * 12**2 + (4 * 12 + 48 + 12) + 4 * 12
    assert drawn(three) == {"a": [[block + 24.0, 2.4]], "b": [[2 * block + 24.0, 3.0]]}
    assert drawn(four)["b"] == [[0.0, 0.1], [1.0, 0.2]]
    assert one.get_title() == "n_ctx 11, tokenizer bpe:263"
    assert three.get_xscale() == "log"


# Contracts


def test_runs_of_another_n_ctx_get_charts_of_their_own(
    finished: Callable[..., Path], tmp_path: Path
) -> None:
    """Each n_ctx has its four PNG files, and each file is an image."""
    written = plot_runs([finished("a", [4.0]), finished("b", [3.0], n_ctx=7)], tmp_path / "plots")

    assert [path.name for path in written] == [
        f"{chart}-ctx{n_ctx}-bpe263.png" for n_ctx in (7, 11) for chart in CHARTS
    ]
    assert all(imread(path).shape[:2] > (700, 1100) for path in written)
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(
        path.name for path in written
    )


def test_broken_logs_are_drawn_with_their_gaps(
    finished: Callable[..., Path], figures: dict[str, Axes], tmp_path: Path
) -> None:
    """One step, NaN and a torn last line are drawn; gaps are counted in a sentence (case 49)."""
    one, nan = finished("one", [5.0]), finished("nan", [2.0] * 100 + [float("nan")] + [2.0] * 250)
    torn, empty = finished("torn", [3.0] * 100), finished("all-nan", [float("nan")] * 3)
    with (torn / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 101, "lo')
    said: list[str] = []
    plot_runs([one, nan, torn, empty], tmp_path / "plots", said.append)
    lines = drawn(figures["loss-by-step-ctx11-bpe263.png"])

    assert lines["one"] == [[1.0, 5.0]] and lines["torn"] == [[100.0, 3.0]]
    assert lines["nan"] == [[100.0, 2.0], [300.0, 2.0], [351.0, 2.0]]
    assert lines["all-nan"] == []
    assert said == [
        "nan: 1 of 351 losses are not finite: gaps",
        "all-nan: 3 of 3 losses are not finite: gaps",
    ]


def test_points_between_gaps_are_marked(
    finished: Callable[..., Path], figures: dict[str, Axes], tmp_path: Path
) -> None:
    """A point without a finite neighbour, invisible as a line, gets a marker."""
    run = finished("a", [2.0] * 100 + [float("nan")] + [2.0] * 250)
    plot_runs([run], tmp_path / "plots", lambda note: None)
    axes = figures["loss-by-step-ctx11-bpe263.png"]
    (marked,) = (line.get_xydata() for line in axes.lines if line.get_marker() == "o")

    assert np.asarray(marked).tolist() == [[100.0, 2.0]]


def test_what_cannot_be_drawn_is_left_out_with_a_sentence(
    finished: Callable[..., Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """An unfinished run, no run at all, a damaged log, a log without losses: each is told."""
    cfg = Config(d_model=12, n_heads=3, n_layers=0, n_ctx=11, d_vocab=263)
    unfinished = RunDir.create(tmp_path / "unfinished", cfg=cfg, tokenizer=tokenizer, args={})
    damaged, silent = finished("damaged", [3.0] * 3), finished("silent", [])
    lines = (damaged / "metrics.jsonl").read_text().splitlines(keepends=True)
    (damaged / "metrics.jsonl").write_text("nonsense\n" + "".join(lines))
    said: list[str] = []
    written = plot_runs(
        [unfinished.path, tmp_path / "nowhere", damaged, silent, finished("good", [3.0])],
        tmp_path / "plots",
        said.append,
    )

    assert len(written) == 4
    for note, expected in zip(
        said, ("not finished", "does not exist", "line 1 is not a JSON", "no loss"), strict=True
    ):
        assert note.startswith("left out:") and expected in note


def test_the_seeds_runs_can_be_drawn(tmp_path: Path) -> None:
    """A run in the seeds' older form, whose rows have no times, is drawn, and the guess is told."""
    path = tmp_path / "old"
    path.mkdir()
    model = {"d_model": 128, "n_heads": 4, "n_layers": 6, "n_ctx": 128, "d_head": 32, "d_mlp": 512}
    (path / "config.json").write_text(json.dumps({"args": {}, "model": model}))
    rows: list[dict[str, Any]] = [{"step": s, "loss": 9.0, "epoch": 0} for s in (1, 2, 3)]
    rows.append({"step": 3, "accuracy": 0.04, "epoch": 0})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "summary.json").write_text(json.dumps({"seconds": 120.0}))
    curves = read_curves(path)

    assert (curves.n_ctx, curves.tokenizer) == (128, "gpt2")
    assert curves.non_embedding == 14_122_321 - 2 * 128 * 50257 - 50257 - 128 * 128
    assert curves.by_minute.x.tolist() == [2.0]
    assert curves.notes == ["old: no times were logged: its seconds are spread evenly"]


def test_a_loss_curve_is_one_image(tmp_path: Path, figures: dict[str, Axes]) -> None:
    """`loss_curve` draws rows as they come, ignores grades, and refuses rows without a loss."""
    rows = [{"step": s, "loss": 5 / s} for s in range(1, 251)] + [{"step": 250, "accuracy": 0.5}]
    path = loss_curve(rows, tmp_path / "plots" / "loss.png")

    assert imread(path).shape[:2] > (700, 1100)
    assert len(drawn(figures["loss.png"])["each step"]) == 250
    assert len(drawn(figures["loss.png"])["mean of 100 steps"]) == 3
    with pytest.raises(PvmlError, match="no row has one"):
        loss_curve(rows[-1:], path)


def test_a_folder_that_cannot_be_written_is_named(
    finished: Callable[..., Path], tmp_path: Path
) -> None:
    """Plots below a file are an error that names the plot."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunDirError, match="loss-by-step.* could not be written"):
        plot_runs([finished("a", [3.0])], tmp_path / "file")


def test_no_screen_is_looked_for() -> None:
    """Importing the charts does not import pyplot, which keeps figures and looks for a screen."""
    code = "import pvml.plots.losses, sys; sys.exit('matplotlib.pyplot' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
