"""Excerpts of circuits: the right entries, under the right tokens, in colours centred at 0."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch as t
from matplotlib.image import imread
from rich.cells import cell_len

from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.maps import Circuit, Space
from pvml.circuits.weights.scales import TypicalScale
from pvml.errors import PvmlError
from pvml.plots.excerpts import excerpt_map, excerpt_text

TEXTS = [" cat", "\n", "$x$", "\x00", "中", ""]
AWKWARD = ["$\\frac{", "\U0001f642", "\u202eabc", "x" * 300, "עברית", "\ud800", "_^{", "e\u0301"]


def circuit(
    left: t.Tensor, right: t.Tensor, name: str = "OV 0.1", columns: Space = "vocabulary"
) -> Circuit:
    return Circuit(
        name=name,
        map=FactoredMap(left, right),
        rows="vocabulary",
        columns=columns,
        holds=("LayerNorms: taken for nothing", "biases: left out"),
    )


TABLE = circuit(t.arange(6.0)[:, None], t.tensor([[-2.0, 1.0, 0.0, 0.5, 0.25, 1.0]]))
"""Entry (i, j) is i times (-2, 1, 0, 0.5, 0.25, 1)[j]."""


def test_the_chosen_entries_are_drawn(tmp_path: Path, saved: Any) -> None:
    """Rows and columns in the order asked for, numbers in the cells, the scale even about 0."""
    excerpt_map(TABLE, [2, 1], [0, 3, 1], tmp_path / "ov.png", texts=TEXTS)
    (image,) = saved[-1].axes[0].images
    texts = saved.texts

    assert image.get_array().tolist() == [[-4.0, 1.0, 2.0], [-2.0, 0.5, 1.0]]
    assert image.get_clim() == (-4.0, 4.0)
    assert {"-4.00", "+1.00", "+2.00", "-2.00", "+0.50"} <= set(texts)
    assert (texts["-4.00"].get_color(), texts["+0.50"].get_color()) == ("white", "black")


def test_tokens_stand_at_their_rows_and_columns(tmp_path: Path, saved: Any) -> None:
    """A dot for a space and an escape for a newline; the first row is the upper one."""
    excerpt_map(TABLE, [0, 1], [3, 2], tmp_path / "ov.png", texts=TEXTS)
    x, y = {}, {}
    for name, text in saved.texts.items():
        x[name], y[name] = text.get_position()

    assert y["·cat"] > y["\\n"] and x["·cat"] == x["\\n"] < 0
    assert x["\\x00"] < x["$x$"] and y["\\x00"] == y["$x$"]
    assert {"token that is read", "token whose logit it changes"} <= set(saved.texts)
    assert any("LayerNorms: taken for nothing; biases: left out" in text for text in saved.texts)


def test_a_circuit_says_what_its_axes_are(tmp_path: Path, saved: Any) -> None:
    """Queries and keys for QK; directions of the stream are not called tokens."""
    left, right = TABLE.map.left, TABLE.map.right
    excerpt_map(circuit(left, right, "QK 0.1"), [0], [1], tmp_path / "qk.png", texts=TEXTS)
    assert {"query: token", "key: token"} <= set(saved.texts)

    stream = circuit(left, right, "OV 0.1", columns="stream")
    excerpt_map(stream, [0], [5], tmp_path / "ov.png", texts=TEXTS[:1])
    assert {"direction of the stream that is written", "5"} <= set(saved.texts)


def test_the_whole_table_is_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a vocabulary of a million, four entries: no row, column or dense matrix is asked for."""
    for name in ("rows", "columns", "dense"):
        monkeypatch.delattr(FactoredMap, name)
    huge = circuit(t.ones(1_000_000, 2), t.ones(2, 1_000_000))

    assert "+2.00" in excerpt_text(huge, [999_999, 0], [5, 999_998])
    assert excerpt_map(huge, [7, 8], [999_999, 0], tmp_path / "huge.png").exists()


def test_many_rows_fit_and_more_are_refused(tmp_path: Path, saved: Any) -> None:
    """Sixty-four are drawn without numbers; sixty-five are an error."""
    one = circuit(t.ones(65, 1), t.ones(1, 65))
    path = excerpt_map(one, range(64), range(2), tmp_path / "tall.png")
    height, width, _ = imread(path).shape

    assert height > 1.5 * width
    assert "+1.00" not in saved.texts
    with pytest.raises(PvmlError, match="at most 64 columns in a picture, got 65"):
        excerpt_map(one, [0], range(65), tmp_path / "wide.png")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_awkward_tokens_are_drawn(tmp_path: Path, ending: str) -> None:
    """Formulas, emoji, control signs, long and foreign tokens are labels; nothing warns."""
    ids = range(len(AWKWARD))
    one = circuit(t.randn(8, 1, generator=t.Generator().manual_seed(0)), t.ones(1, 8))
    path = excerpt_map(one, ids, ids, tmp_path / f"odd.{ending}", texts=AWKWARD)
    lines = excerpt_text(one, ids, ids, texts=AWKWARD).splitlines()

    assert path.stat().st_size > 1000
    assert max(map(cell_len, lines)) <= 80
    assert not any("\u202e" in line for line in lines)


def test_zero_and_huge_entries_are_drawn(tmp_path: Path, saved: Any) -> None:
    """A table of zeros is white; numbers are true ones, in the picture and in the terminal."""
    for entry, told in (
        (0.0, "+0.00"),
        (0.25, "+0.250"),
        (0.0627, "+0.0627"),
        (1234.6, "+1235"),
        (2e9, "+2.0e9"),
        (-3.25e-5, "-3.2e-5"),
        (4e-20, "+4e-20"),
    ):
        one = circuit(t.full((1, 1), entry, dtype=t.float64), t.ones(1, 1, dtype=t.float64))
        excerpt_map(one, [0], [0], tmp_path / "one.png")
        assert told in saved.texts
        assert f" {told}" in excerpt_text(one, [0], [0])


def test_units_say_which_stds_are_left_out(tmp_path: Path, saved: Any) -> None:
    """Beside the colours and over the table, how many; under it which, and what they come to."""
    left, right = TABLE.map.left, TABLE.map.right
    stds = ("blocks.0.ln1", "ln_final")
    scale = TypicalScale(factor=17.25, low=12.0, high=24.5, n_positions=1500)
    made = replace(TABLE, left_out=stds)
    text = " ".join(excerpt_text(made, [1], [0], scale=scale).split())
    excerpt_map(made, [1], [0], tmp_path / "ov.png", scale=scale)
    label = " ".join(saved[-1].axes[1].get_ylabel().split())
    assert "added to the logit (nats × 2 stds)" in text and "(nats × 2 stds)" in label
    for shown in (text, " ".join(" ".join(saved.texts).split())):
        assert (
            "For nats, divide by the stds that are left out (blocks.0.ln1, ln_final), typically "
            "× 17.2 (median of 1,500 positions; four fifths are between 12 and 24.5)."
        ) in shown
    asked = replace(circuit(left, right, "QK 0.1"), left_out=("blocks.0.ln1",) * 2)
    assert "score of the key (q · k × 2 stds)" in excerpt_text(asked, [1], [0])


def test_a_terminal_shows_numbers_and_shades() -> None:
    """Columns of eight cells, shades by size; what does not fit follows below with its rows."""
    columns = [0, 1, 2, 3, 4, 5]
    assert excerpt_text(TABLE, [2, 1], columns, texts=TEXTS, width=60) == "\n".join(
        [
            "OV 0.1: 2 × 6 entries of 6 × 6",
            "rows: token that is read",
            "columns: token whose logit it changes",
            "entries: added to the logit (nats)",
            "",
            "        ·cat       \\n      $x$     \\x00       中       ''",
            "$x$   -4.00█   +2.00▒   +0.00    +1.00░   +0.50░   +2.00▒",
            "\\n    -2.00▒   +1.00░   +0.00    +0.50░   +0.25    +1.00░",
            "",
            "Holds with LayerNorms: taken for nothing; biases: left out.",
        ]
    )
    folded = excerpt_text(TABLE, [2, 1], columns * 2, texts=TEXTS, width=60).splitlines()
    assert sum(line.startswith("$x$ ") for line in folded) == 2


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    """Nothing chosen, ids that are not there, texts that end early, overflow: errors, no file."""
    path = tmp_path / "x.png"
    with pytest.raises(PvmlError, match="at least one row and one column"):
        excerpt_map(TABLE, [], [0], path)
    with pytest.raises(PvmlError, match="column ids run from 0 to 5, got 6"):
        excerpt_map(TABLE, [0], [6], path)
    with pytest.raises(PvmlError, match="row ids run from 0 to 5, got -1"):
        excerpt_map(TABLE, [-1], [0], path)
    with pytest.raises(PvmlError, match="2 texts, and none for token 5"):
        excerpt_map(TABLE, [5], [0], path, texts=TEXTS[:2])
    for dtype in (t.float32, t.float64):
        huge = circuit(t.full((1, 1), 1e30, dtype=dtype), t.full((1, 1), 1e30, dtype=dtype))
        with pytest.raises(PvmlError, match=r"OV 0.1 is beyond 1e.30|too large for torch.float32"):
            excerpt_map(huge, [0], [0], path)
    assert not list(tmp_path.iterdir())
