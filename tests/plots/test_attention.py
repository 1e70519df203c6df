"""Attention grids: a file for any tokens, with the right cells in it."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from pvml.errors import PvmlError
from pvml.plots.attention import attention_grids


def lower(n: int, seed: int = 0) -> np.ndarray:
    pattern = np.tril(np.random.RandomState(seed).rand(n, n))
    return pattern / pattern.sum(1, keepdims=True)


def dark_blue(path: Path) -> float:
    """The share of the picture that has the colour of a cell with all attention."""
    picture = imread(path)[..., :3]
    return float((np.abs(picture - [0.031, 0.188, 0.420]).max(-1) < 0.05).mean())


def test_attention_is_dark_where_it_is(tmp_path: Path) -> None:
    """A head that only reads itself draws its diagonal dark: 1 / n of the grid, not the rest."""
    names = list("abcde")
    diagonal = attention_grids({"0.0": np.eye(5)}, names, tmp_path / "eye.png")
    spread = attention_grids({"0.0": np.full((5, 5), 0.2)}, names, tmp_path / "spread.png")

    assert 0.03 < dark_blue(diagonal) < 0.2
    assert dark_blue(spread) < 0.005


def test_the_future_is_empty(tmp_path: Path) -> None:
    """Cells above the diagonal are not drawn, whatever they hold."""
    names = list("abcde")
    full = np.ones((5, 5))
    drawn = attention_grids({"x": full}, names, tmp_path / "full.png")
    lower_only = attention_grids({"x": np.tril(full)}, names, tmp_path / "lower.png")

    assert drawn.read_bytes() == lower_only.read_bytes()


@pytest.mark.parametrize("n_heads", [1, 3])
def test_awkward_tokens_are_drawn(tmp_path: Path, n_heads: int) -> None:
    """Dollars, emoji, newlines, backslashes and halves of characters are labels like any other."""
    texts = ["$", "$x$", " \U0001f642", "\n", "\\frac", "\ufffd", "_^{", ""]
    patterns = {f"0.{head} $a_$": lower(len(texts), head) for head in range(n_heads)}
    path = attention_grids(patterns, texts, tmp_path / "grid.png")

    assert imread(path).shape[1] > 300 * n_heads


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """No pattern at all, or one of another size than the tokens, is an error and leaves no file."""
    with pytest.raises(PvmlError, match="no pattern"):
        attention_grids({}, ["a"], tmp_path / "a.png")
    with pytest.raises(PvmlError, match=r"'0.1' has shape \(3, 3\), for 2 tokens"):
        attention_grids({"0.1": lower(3)}, ["a", "b"], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
