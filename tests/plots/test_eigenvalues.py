"""Eigenvalues in the complex plane: each dot where it belongs, each score beside its null."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as t
from matplotlib.image import imread

from pvml.circuits.weights.copying import CopyingScore, copying_score
from pvml.errors import PvmlError
from pvml.plots.eigenvalues import eigenvalue_planes, eigenvalue_text

EIGENVALUES = t.tensor(
    [
        [[2.0, -1.0, 1j, -1j], [3.0, 1.0, 1.0, 0.5]],
        [[0.0, 0.0, 0.0, 0.0], [-1.0, -0.01, 0.0, 0.0]],
    ]
)
"""Of two layers of two heads: one of all kinds, one that copies, one nilpotent, one negative."""


def scores_of(eigenvalues: t.Tensor, p: float = 1.0) -> list[CopyingScore]:
    """Each head's real score, beside a null of 0.05 ± 0.10."""
    found = copying_score(eigenvalues)
    return [
        CopyingScore(
            layer=layer,
            head=head,
            score=None if found[layer, head].isnan() else float(found[layer, head]),
            null_mean=0.05,
            null_spread=0.1,
            p=p,
        )
        for layer in range(len(found))
        for head in range(found.shape[1])
    ]


SCORES = [
    score if (score.layer, score.head) != (0, 1) else replace(score, p=1e-9)
    for score in scores_of(EIGENVALUES)
]


def dots(saved: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where the last figure has its dots on the right, and where those on the left (inches)."""
    right, left = saved[-1].axes[0].collections[-2:]
    return np.asarray(right.get_offsets()), np.asarray(left.get_offsets())


def test_dots_are_where_their_numbers_are(tmp_path: Path, saved: Any) -> None:
    """With an even radius of one inch, 2 and -1 lie 1.5 inches apart, and 1j half an inch up."""
    eigenvalue_planes(EIGENVALUES, SCORES[:1], tmp_path / "one.png", log_radius=False)
    right, left = dots(saved)

    (two, up, down), (minus,) = right, left
    assert two - minus == pytest.approx([1.5, 0.0])
    assert two - up == pytest.approx([1.0, -0.5], abs=1e-6)
    assert up - down == pytest.approx([0.0, 1.0], abs=1e-6)


def test_a_logarithmic_radius(tmp_path: Path, saved: Any) -> None:
    """A hundredth of the largest is a third of the way out; nothing at all lies in the middle."""
    eigenvalue_planes(EIGENVALUES, SCORES[3:], tmp_path / "one.png")
    right, left = dots(saved)

    assert left[0] - right[0] == pytest.approx([-1.0, 0.0], abs=1e-6)
    assert left[1] - right[0] == pytest.approx([-1 / 3, 0.0], abs=1e-6)
    assert {"1", "0.1", "0.01"} <= set(saved.texts)


def test_every_score_stands_beside_its_null(tmp_path: Path, saved: Any) -> None:
    """All heads are named with score and null; bold is only the one beyond it; none is NaN."""
    eigenvalue_planes(EIGENVALUES, SCORES, tmp_path / "all.png")
    texts = saved.texts
    names = [text for text in texts if "random heads +0.05 ± 0.10" in text]

    assert [name.splitlines()[0] for name in names] == [
        "0.0:  copying score +0.20",
        "0.1:  copying score +1.00",
        "1.0:  copying score undefined",
        "1.1:  copying score -1.00",
    ]
    assert [texts[name].get_fontweight() == "bold" for name in names] == [False, True, False, False]
    assert "all are 0" in texts
    assert not any("nan" in text for text in texts)
    assert any("1 of 4 here" in text.replace("\n", " ") for text in texts)


def test_an_undefined_score_has_no_dots(tmp_path: Path, saved: Any) -> None:
    """A nilpotent head's zeros are told in words, not drawn as if they were measured."""
    eigenvalue_planes(EIGENVALUES, SCORES[2:3], tmp_path / "none.png")

    assert [len(some) for some in dots(saved)] == [0, 0]


def test_a_null_may_be_undefined_too() -> None:
    """Where an unembedding of zeros leaves every eigenvalue 0, random heads have no score."""
    score = replace(SCORES[2], null_mean=float("nan"), null_spread=float("nan"))

    assert "1.0    undefined: all are 0           –  undefined" in eigenvalue_text(
        EIGENVALUES, [score]
    )


def test_many_heads_fit(tmp_path: Path, saved: Any) -> None:
    """Rows of twelve for the heads of layers of twelve, each small, each still with both lines."""
    values = t.complex(*t.randn(2, 2, 12, 3, generator=t.Generator().manual_seed(0)))
    path = eigenvalue_planes(values, scores_of(values), tmp_path / "many.png")
    height, width, _ = imread(path).shape

    assert width > 2.5 * height
    assert sum("+0.05 ± 0.10" in text for text in saved.texts) == 24


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    """Two SVGs of one model are equal, byte for byte."""
    first, second = (
        eigenvalue_planes(EIGENVALUES, SCORES, tmp_path / name) for name in ("a.svg", "b.svg")
    )

    assert first.read_bytes() == second.read_bytes()


def test_a_terminal_shows_angles() -> None:
    """From negative on the left to positive on the right, each angle by its share of the size."""
    assert eigenvalue_text(EIGENVALUES, SCORES) == "\n".join(
        [
            "Eigenvalues of the OV circuits by their angle, weighted by their size",
            "head   negative        positive   score  random heads",
            "0.0    ▄          █           █   +0.20  +0.05 ± 0.10",
            "0.1   *                       █   +1.00  +0.05 ± 0.10",
            "1.0    undefined: all are 0           –  +0.05 ± 0.10",
            "1.1    █                          -1.00  +0.05 ± 0.10",
            "* copies more than random heads do (p\N{NO-BREAK SPACE}≤\N{NO-BREAK SPACE}0.001, "
            "corrected for the scores tried)",
        ]
    )


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    """No score, no such head, one twice, NaN, another model's, too many: each an error, no file."""
    broken = EIGENVALUES.clone()
    broken[0, 0, 0] = t.nan
    many = t.ones(13, 12, 1, dtype=t.complex64)
    path = tmp_path / "x.png"
    with pytest.raises(PvmlError, match="no head's copying score"):
        eigenvalue_planes(EIGENVALUES, [], path)
    with pytest.raises(PvmlError, match="none of 1.1"):
        eigenvalue_planes(EIGENVALUES[:1], SCORES[3:], path)
    with pytest.raises(PvmlError, match="each head once"):
        eigenvalue_planes(EIGENVALUES, [*SCORES, SCORES[0]], path)
    with pytest.raises(PvmlError, match="0.0 is NaN"):
        eigenvalue_planes(broken, SCORES, path)
    with pytest.raises(PvmlError, match=r"score of 0.2\d*, and these eigenvalues one of 1.000"):
        eigenvalue_planes(t.ones_like(EIGENVALUES), SCORES[:1], path)
    with pytest.raises(PvmlError, match="156 planes are too many"):
        eigenvalue_planes(many, scores_of(many), path)
    with pytest.raises(PvmlError, match="at least 60"):
        eigenvalue_text(EIGENVALUES, SCORES, width=59)
    assert not list(tmp_path.iterdir())
