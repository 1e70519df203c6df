"""Bars of a decomposed logit."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from pvml.errors import PvmlError
from pvml.plots.routes import term_bars


def share(path: Path, colour: tuple[float, float, float]) -> float:
    return float((np.abs(imread(path)[..., :3] - colour).max(-1) < 0.03).mean())


BLUE, RED = (0.122, 0.467, 0.706), (0.839, 0.153, 0.157)


def test_bars_for_and_against(tmp_path: Path) -> None:
    """What is added is blue, what is taken off is red, in proportion."""
    values = [("token", 3.0), ("head 0.1", -1.0)]
    path = term_bars(values, "logit of '$a_1$' after ' b'", tmp_path / "bars.png")

    assert share(path, BLUE) / share(path, RED) == pytest.approx(3, rel=0.1)


def test_more_terms_make_a_taller_picture(tmp_path: Path) -> None:
    """Every term gets a line of its own."""
    few = term_bars([("a", 1.0)], "few", tmp_path / "few.png")
    many = term_bars([(f"head 0.{i}", 0.0) for i in range(31)], "many", tmp_path / "many.png")

    assert imread(many).shape[0] > 3 * imread(few).shape[0]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    """No term is an error."""
    with pytest.raises(PvmlError, match="no term"):
        term_bars([], "none", tmp_path / "none.png")
