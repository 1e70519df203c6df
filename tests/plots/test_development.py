"""The picture of scores over training: what is asked for is drawn, or refused."""

import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import pvml.plots.development as development
from pvml.circuits.heads.over_training import Development
from pvml.errors import PvmlError

MADE = Development(
    run="made_$x$",
    steps=(0, 150, 300),
    scores={"induction 1.0": (0.0, 0.5, 0.9), "_gap": (math.nan, 0.1, 0.2)},
    loss_steps=tuple(range(1, 301)),
    losses=(math.nan, *(3.0 - step / 300 for step in range(2, 301))),
)


def test_loss_and_scores_share_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above each loss and the window means, below a line for each score, in one file."""
    drawn: list[Figure] = []
    save = development.save

    def kept(made: Figure, path: Path) -> Path:
        drawn.append(made)
        return save(made, path)

    monkeypatch.setattr(development, "save", kept)
    path = development.plot_development(MADE, tmp_path / "bump.svg")

    assert path.stat().st_size > 5000
    above, below = drawn[0].axes
    assert [len(line.get_xdata()) for line in above.lines] == [300, 30]
    assert list(below.lines[0].get_ydata()) == [0.0, 0.5, 0.9]
    labels = [text.get_text().strip() for text in below.get_legend().get_texts()]
    assert labels == ["induction 1.0", "_gap"]
    assert above.get_xlim() == below.get_xlim()


def test_only_known_scores_are_drawn(tmp_path: Path) -> None:
    """An unknown name, and no name, are errors that tell which there are; nothing is written."""
    for names in (["induction"], []):
        with pytest.raises(PvmlError, match="its scores are induction 1.0, _gap"):
            development.plot_development(MADE, tmp_path / "bump.png", names)
    assert not list(tmp_path.iterdir())
