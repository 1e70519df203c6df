"""Attention grids: a file for any tokens, with the right cells in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.cells import cell_len

from pvml.errors import PvmlError
from pvml.plots.attention import attention_grids, attention_text


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


def test_all_heads_of_a_layer_share_their_labels(tmp_path: Path, saved: Any) -> None:
    """Six heads stand in rows of four: the tokens are beside the first and under the last of each.

    Beside two grids and under four, so each token is written six times.
    """
    heads = {f"0.{head}": lower(3, head) for head in range(6)}
    attention_grids(heads, ["one", " two", "three"], tmp_path / "layer.png", title="layer 0")
    written = [text.get_text() for text in saved[-1].axes[0].texts]

    assert written.count("·two") == 6
    assert [image.get_array().shape for image in saved[-1].axes[0].images] == [(3, 3)] * 6
    assert "layer 0" in saved.texts and set(heads) <= set(saved.texts)


def test_a_long_token_is_cut(tmp_path: Path, saved: Any) -> None:
    """Sixteen signs at most, the last of them an ellipsis."""
    attention_grids({"0.0": lower(2)}, ["x" * 200, "y"], tmp_path / "long.png")

    assert "x" * 15 + "…" in saved.texts


def test_a_terminal_shows_shades_and_the_most_read() -> None:
    """Two cells a share, in quarters; behind each row what it reads most, and how much."""
    pattern = np.array([[1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.1, 0.5, 0.4]])

    assert attention_text({"0.1 $": pattern}, ["The", " cat", "\n"]) == "\n".join(
        [
            "0.1 $",
            "       0 1 2",
            "0 The  ██      0 The  1.00",
            "1 ·cat ▓▓░░    0 The  0.70",
            "2 \\n     ▒▒▒▒  1 ·cat 0.50",
            "",
            "rows read columns; on the right what each reads most",
            "shares of attention from: ░ 0.125, ▒ 0.375, ▓ 0.625, █ 0.875",
        ]
    )


@pytest.mark.parametrize("n", [1, 9, 10, 30, 41])
def test_a_terminal_is_never_too_narrow(n: int) -> None:
    """Whatever the number and the script of the tokens, no line is longer than 80 cells."""
    texts = [("中文" * 9, "\x1b[2J", "עברית", "e\u0301" * 40, "")[i % 5] for i in range(n)]
    lines = attention_text({"0.0": lower(n)}, texts).splitlines()

    assert max(map(cell_len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)


def test_shares_are_shares(tmp_path: Path) -> None:
    """NaN where a head can look, and more than 1, are refused; what is masked may hold anything."""
    for wrong in (np.nan, 1.5, -0.5, np.inf):
        pattern = np.eye(3)
        pattern[2, 1] = wrong
        with pytest.raises(PvmlError, match=f"holds {wrong:g}, and shares"):
            attention_grids({"0.0": pattern}, list("abc"), tmp_path / "a.png")
    masked = np.eye(3)
    masked[0, 2] = np.nan
    attention_grids({"0.0": masked}, list("abc"), tmp_path / "masked.png")


def test_too_much_is_refused(tmp_path: Path) -> None:
    """More grids or tokens than can be read are an error that tells the limits."""
    with pytest.raises(PvmlError, match="1 patterns of 97 tokens .* 144 of 96"):
        attention_grids({"0.0": lower(97)}, ["x"] * 97, tmp_path / "a.png")
    with pytest.raises(PvmlError, match="145 patterns"):
        attention_grids({str(i): lower(1) for i in range(145)}, ["x"], tmp_path / "a.png")
    with pytest.raises(PvmlError, match="60 tokens are too many for a width of 80"):
        attention_text({"0.0": lower(60)}, ["longer token"] * 60)
