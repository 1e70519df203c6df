"""Runs to draw, made by writing their logs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

Make = Callable[..., Path]


class Saved(list[Figure]):
    """The figures that were saved, in order."""

    @property
    def texts(self) -> dict[str, Text]:
        """What is written in the last one, title and caption included."""
        written = [text for axes in self[-1].axes for text in axes.texts] + self[-1].texts
        return {text.get_text(): text for text in written}


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Saved:
    """Every figure that is saved from now on, so that a test can ask what is drawn where."""
    kept, really = Saved(), Figure.savefig

    def keep(made: Figure, *args: Any, **kwargs: Any) -> None:
        kept.append(made)
        really(made, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return kept


class Charts(dict[str, Axes]):
    """The axes of every chart of losses, by its file's name without the ending."""

    @staticmethod
    def points_of(line: Line2D) -> list[list[float]]:
        """A line's points that are finite."""
        return [[float(x), float(y)] for x, y in np.asarray(line.get_xydata()) if np.isfinite(y)]

    @classmethod
    def drawn(cls, axes: Axes) -> dict[str, list[list[float]]]:
        """The points of each labelled line."""
        return {
            label: cls.points_of(line)
            for line in axes.lines
            for label in [str(line.get_label())]
            if not label.startswith("_")
        }


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> Charts:
    """Every chart of losses from now on; no file is written."""
    from pvml.plots import canvas, losses

    seen = Charts()

    def keep(figure: Figure, path: Path) -> Path:
        seen[path.stem] = figure.axes[0]
        return path

    monkeypatch.setattr(canvas, "save", keep)
    monkeypatch.setattr(losses, "save", keep)
    return seen


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from pvml.data.tokenizer import Tokenizer

    return Tokenizer.train(["the cat sat on the mat"] * 3, 263)


@pytest.fixture
def make_run(tokenizer: Any, tmp_path: Path) -> Make:
    """Make a run of these losses, one a second, 22 tokens a step, graded every 100 steps.

    The held-out loss is always 2, or a little more at earlier positions; bits per byte are 1.
    """
    from pvml.config import Config
    from pvml.runs.format import RunDir

    def make(
        name: str,
        losses: list[float],
        *,
        n_ctx: int = 11,
        n_layers: int = 1,
        corpus: str | None = None,
        source: str = "",
        fingerprint: str = "",
        finished: bool = True,
        without: tuple[str, ...] = (),
    ) -> Path:
        cfg = Config(d_model=12, n_heads=3, n_layers=n_layers, n_ctx=n_ctx, d_vocab=263)
        stem = source.rpartition("/")[2].partition(".")[0] or "tales"
        named = {"name": stem if corpus is None else corpus, "source": source}
        data = {**named, "fingerprint": fingerprint}
        args, data = {"batch_size": 2}, {key: value for key, value in data.items() if value}
        run = RunDir.create(tmp_path / name, cfg=cfg, tokenizer=tokenizer, args=args, data=data)
        for step, loss in enumerate(losses, start=1):
            now = {"step": step, "epoch": (step - 1) // 100, "tokens": 22 * step}
            now["seconds"] = float(step)
            grades = {
                "accuracy": step / 1000,
                "held_out_loss": 2.0,
                "bits_per_byte": 1.0,
                "held_out_loss_by_position": [2 + 1 / place for place in range(1, n_ctx)],
            }
            rows = [{**now, "loss": loss}]
            if step % 100 == 0 or (finished and step == len(losses)):
                rows.append({**now, **grades})
            for row in rows:
                run.log({key: value for key, value in row.items() if key not in without})
        if finished:
            run.finish({"seconds": float(len(losses))})
        return run.path

    return make
