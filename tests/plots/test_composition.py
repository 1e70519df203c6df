"""The graph of composition: arrows only beyond the null, from writer to reader, and all counted."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import FancyArrowPatch

from pvml.circuits.held import Head
from pvml.circuits.weights.composition import CompositionScore, Kind
from pvml.errors import PvmlError
from pvml.plots.composition import composition_graph, composition_text


def score(
    kind: Kind, writer: Head, reader: Head, value: float, p: float = 1e-9
) -> CompositionScore:
    return CompositionScore(
        kind=kind,
        writer=writer,
        reader=reader,
        score=value,
        null_mean=0.1,
        null_spread=0.01,
        p=p,
    )


SCORES = [
    score("Q", (0, 0), (1, 0), 0.11, p=1.0),
    replace(score("Q", (0, 0), (1, 1), math.nan, p=1.0), null_mean=math.nan),
    score("K", (0, 0), (1, 0), 0.2),
    score("K", (0, 1), (1, 0), 0.5),
    score("K", (0, 1), (1, 1), 0.12, p=0.5),
]


def arrows(saved: Any) -> list[FancyArrowPatch]:
    return [p for p in saved[-1].axes[0].patches if isinstance(p, FancyArrowPatch)]


def test_arrows_lead_from_writer_to_reader(tmp_path: Path, saved: Any) -> None:
    """Two arrows, both of K-composition, each from one head's circle to the other's, upward."""
    composition_graph(SCORES, tmp_path / "graph.png")
    heads: dict[str, list[Any]] = {}
    for text in saved[-1].axes[0].texts:
        heads.setdefault(text.get_text(), []).append(text.get_position())
    weak, strong = arrows(saved)

    assert weak._posA_posB == [heads["0.0"][1], heads["1.0"][1]]
    assert strong._posA_posB == [heads["0.1"][1], heads["1.0"][1]]
    assert heads["0.0"][1][1] < heads["1.0"][1][1]
    assert {text for text in saved.texts if text.startswith("layer")} == {"layer 0", "layer 1"}


def test_width_is_the_score_above_its_null(tmp_path: Path, saved: Any) -> None:
    """The strongest is 0.4 above and as wide as can be; a quarter of that adds a quarter."""
    composition_graph(SCORES, tmp_path / "graph.png")
    weak, strong = arrows(saved)

    assert strong.get_linewidth() == 3.5
    assert weak.get_linewidth() == pytest.approx(0.5 + 3 * 0.25)


def test_what_is_not_drawn_is_counted(tmp_path: Path, saved: Any) -> None:
    """The caption tells how many of each kind are beyond, undefined, or left out as the weaker."""
    composition_graph(SCORES, tmp_path / "graph.png", most=1)
    (caption,) = (text.replace("\n", " ") for text in saved.texts if "random rotations" in text)

    assert len(arrows(saved)) == 1
    assert "Q-composition: 0 of 2 beyond random rotations, 1 undefined." in caption
    assert "K-composition: 2 of 3 beyond random rotations, the strongest 1 drawn." in caption


def test_nothing_beyond_is_a_picture_too(tmp_path: Path, saved: Any) -> None:
    """Heads without a single arrow, and a caption that says so."""
    path = composition_graph(SCORES[:1], tmp_path / "graph.svg")

    assert not arrows(saved)
    assert path.read_text().startswith("<?xml")
    assert any("0 of 1 beyond" in text for text in saved.texts)


def test_the_order_of_the_scores_is_of_no_account(tmp_path: Path) -> None:
    """The same scores the other way round are the same file, and the same text."""
    one = composition_graph(SCORES, tmp_path / "one.svg")
    other = composition_graph(SCORES[::-1], tmp_path / "other.svg")

    assert one.read_bytes() == other.read_bytes()
    assert composition_text(SCORES) == composition_text(SCORES[::-1])


def test_a_terminal_lists_the_pairs() -> None:
    """Each kind with its count; the pair farthest above its null first, with the longest bar."""
    assert composition_text(SCORES) == "\n".join(
        [
            "Which heads read what lower heads wrote",
            "",
            "Q-composition: 0 of 2 beyond random rotations, 1 undefined (read for queries)",
            "",
            "K-composition: 2 of 3 beyond random rotations (read for keys)",
            "writer   reader   score  turned at random   above",
            "0.1    > 1.0      0.500  0.100 ± 0.010   +0.400  ████████████████████████████",
            "0.0    > 1.0      0.200  0.100 ± 0.010   +0.100  ███████",
            "",
            "beyond: p\N{NO-BREAK SPACE}≤\N{NO-BREAK SPACE}0.001, corrected for the scores tried",
        ]
    )


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    """No score, a pair twice, infinity, no arrow allowed, too many heads: errors, and no file."""
    path = tmp_path / "x.png"
    many = [score("Q", (0, head), (1, head), 0.1, p=1.0) for head in range(201)]
    for scores, words in (
        ([], "no composition score"),
        ([SCORES[0]] * 2, "each pair once"),
        ([score("V", (0, 0), (1, 0), math.inf)], "no score to draw: V-composition of 1.0"),
        (many, "402 heads are too many"),
    ):
        with pytest.raises(PvmlError, match=words):
            composition_graph(scores, path)
    with pytest.raises(PvmlError, match="at least 1 arrow"):
        composition_graph(SCORES, path, most=0)
    assert not list(tmp_path.iterdir())
