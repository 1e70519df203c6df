"""Grids of all heads' scores: the numbers in their cells, the nulls beside them, the frames."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from pvml.circuits.heads.names import HeadScore, RandomHeads
from pvml.circuits.weights.copying import CopyingScore
from pvml.errors import PvmlError
from pvml.plots.head_scores import score_grids, score_text

SURELY = "p\N{NO-BREAK SPACE}≤\N{NO-BREAK SPACE}0.001, corrected for the scores tried"


def copying(layer: int, head: int, score: float | None, p: float = 1.0) -> CopyingScore:
    return CopyingScore(
        layer=layer, head=head, score=score, null_mean=-0.001, null_spread=0.13, p=p
    )


def induction(layer: int, head: int, score: float, p: float = 1.0) -> HeadScore:
    return HeadScore(
        kind="induction",
        text="repeated",
        layer=layer,
        head=head,
        score=score,
        null_mean=0.05,
        null_spread=0.02,
        p=p,
        ahead=True,
    )


COPYING = [copying(0, 0, -0.31), copying(0, 1, 0.93, 1e-9), copying(1, 0, None), copying(1, 1, 0.2)]


def frames(saved: Any) -> list[tuple[float, float]]:
    """Where the frames' lower left corners are (inches)."""
    patches = saved[-1].axes[0].patches
    return [p.get_xy() for p in patches if isinstance(p, Rectangle) and not p.get_fill()]


def test_scores_and_nulls_are_in_their_cells(tmp_path: Path, saved: Any) -> None:
    """A grid for each, with a row for a layer; an undefined score is an empty cell with a dash."""
    score_grids(COPYING, tmp_path / "grid.png")
    score, null = (image.get_array() for image in saved[-1].axes[0].images)

    assert score.filled(9).tolist() == [[-0.31, 0.93], [9, 0.2]]
    assert null.tolist() == [[-0.001] * 2] * 2
    assert {"-0.31", "+0.93", "–", "+0.20", "+0.00\n±0.13", "random heads"} <= set(saved.texts)
    assert not any("nan" in text for text in saved.texts)


def test_only_what_is_beyond_its_null_is_framed(tmp_path: Path, saved: Any) -> None:
    """One frame, where head 1 of layer 0 is, whose number is bold; the caption counts."""
    score_grids(COPYING, tmp_path / "grid.png")
    texts = saved.texts
    (corner,) = frames(saved)
    x, y = texts["+0.93"].get_position()

    assert (corner[0] < x < corner[0] + 0.44) and (corner[1] < y < corner[1] + 0.36)
    assert texts["+0.93"].get_fontweight() == "bold"
    assert texts["+0.20"].get_fontweight() == "normal"
    (caption,) = (text.replace("\n", " ") for text in texts if text.startswith("Framed"))
    assert f"1 of 4 ({SURELY}); 1 undefined (–): every eigenvalue is 0" in caption


def test_both_nulls_of_attention_scores_are_shown(tmp_path: Path, saved: Any) -> None:
    """Shuffled tokens, and random heads where they were asked, on the scale of the scores."""
    asked = RandomHeads(mean=0.4, spread=0.03, p=1e-9)
    scores = [replace(induction(0, 0, 0.9, 1e-9), random=asked), induction(0, 1, 0.3, 1e-9)]
    score_grids(scores, tmp_path / "one.png")
    assert len(saved[-1].axes[0].images) == 2
    scores[1] = replace(scores[1], random=asked)
    score_grids(scores, tmp_path / "both.png")
    images = saved[-1].axes[0].images

    assert [image.get_array().tolist() for image in images] == [
        [[0.9, 0.3]],
        [[0.05] * 2],
        [[0.4] * 2],
    ]
    assert {image.get_clim() for image in images} == {(0.0, 1.0)}
    assert len(frames(saved)) == 1  # random heads do as much as 0.1
    assert "0.40\n±0.03" in saved.texts


def test_a_null_may_be_undefined_too(tmp_path: Path, saved: Any) -> None:
    """Where an unembedding of zeros leaves every eigenvalue 0, dashes stand for score and null."""
    nothing = replace(copying(0, 0, None), null_mean=np.nan, null_spread=np.nan)
    score_grids([nothing, copying(0, 1, 0.2)], tmp_path / "grid.png")

    assert not any("nan" in text for text in saved.texts)
    assert "–" in saved.texts
    assert score_text([nothing]).count("layer 0     –") == 3


def test_large_models_are_drawn_without_numbers(tmp_path: Path, saved: Any) -> None:
    """From 17 heads on only colours and frames are left; beyond 48 a picture is refused."""
    scores = [induction(0, head, 0.3) for head in range(49)]
    score_grids(scores[:17], tmp_path / "many.png")

    assert "0.30" not in saved.texts and "16" in saved.texts
    with pytest.raises(PvmlError, match="1 layers of 49 heads are too many"):
        score_grids(scores, tmp_path / "more.png")


def test_a_terminal_shows_the_numbers() -> None:
    """Three blocks, a star for what is beyond, a dash for what is undefined."""
    assert score_text(COPYING) == "\n".join(
        [
            "Copying: every head's score beside its nulls",
            "copying score (-1 to 1)",
            "",
            "score",
            "   head     0     1",
            "layer 0 -0.31 +0.93*",
            "layer 1     – +0.20",
            "",
            "random heads, mean",
            "   head     0     1",
            "layer 0 +0.00 +0.00",
            "layer 1 +0.00 +0.00",
            "",
            "random heads, spread",
            "   head     0     1",
            "layer 0  0.13  0.13",
            "layer 1  0.13  0.13",
            "",
            "* beyond its nulls by enough to be named: 1 of 4 "
            "(p\N{NO-BREAK SPACE}≤\N{NO-BREAK SPACE}0.001, corrected for the",
            "scores tried); 1 undefined (–): every eigenvalue is 0",
        ]
    )


def test_a_terminal_breaks_rows_of_heads() -> None:
    """Twelve heads fit in 80 cells; the thirteenth follows below, under its own number."""
    lines = score_text([induction(11, head, head / 100) for head in range(13)]).splitlines()

    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("   head     0 ") for line in lines) == 3
    assert lines.count("   head    12") == 3
    assert "layer 11 0.12" in lines


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    """No score, several kinds, a head twice, NaN and infinity: each an error, and no file."""
    path = tmp_path / "x.png"
    previous = replace(induction(0, 1, 0.5), kind="previous-token")
    for scores, words in (
        ([], "no head's score"),
        ([induction(0, 0, 0.5), previous], "one kind, got induction .* previous-token"),
        ([induction(0, 0, 0.5)] * 2, "each head once"),
        ([induction(3, 1, np.nan)], "3.1 is nan"),
        ([replace(copying(0, 0, 0.5), null_spread=np.inf)], "0.0 is inf"),
    ):
        with pytest.raises(PvmlError, match=words):
            score_grids(scores, path)
    assert not list(tmp_path.iterdir())
