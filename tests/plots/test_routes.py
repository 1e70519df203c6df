"""Bars of a logit or a score that was taken apart: in proportion, with all that they add up to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as t
from matplotlib.image import imread
from rich.cells import cell_len

from pvml.circuits.paths.logit_paths import Expansion, PathTerm, expand
from pvml.circuits.paths.logit_paths import Path as Way
from pvml.circuits.paths.routes import decompose
from pvml.circuits.paths.score_paths import expand_score
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.plots.canvas import AGAINST, FOR
from pvml.plots.routes import Sum, logit_sum, score_sum, sum_bars, sum_text


def sum_of(*terms: tuple[str, float], others: float = 0.0, n_others: int = 0) -> Sum:
    return Sum(
        title="logit of '$a_1$' after ' b'",
        unit="adds to the logit (nats)",
        terms=terms,
        n_others=n_others,
        others=others,
        own=sum(value for _, value in terms) + others,
        check="2 paths add up to the logits: off by at most 1.0e-16 of the largest",
        frozen=("attention patterns",),
    )


def expansion() -> Expansion:
    """Four terms of the logits of two tokens: 4, -2, 1 and 0.5 for the first, less for the other.

    Their sum is the model's own to the last digit.
    """
    streams = {(): 4.0, ((0, 0),): -2.0, ((0, 1),): 1.0}
    vectors = t.tensor([[1.0, 0.5]], dtype=t.float64)
    return Expansion(
        position=7,
        paths=tuple(
            Way(source="token", heads=heads, stream=t.tensor([size], dtype=t.float64))
            for heads, size in streams.items()
        ),
        constants=(PathTerm(name="b_U", path=None, vector=0.5 * vectors[0]),),
        logits=3.5 * vectors[0],
        frozen=("attention patterns",),
        readout=vectors,
    )


def share(path: Path, colour: str) -> float:
    """The share of the picture that has a colour, given as #rrggbb."""
    wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return float((np.abs(imread(path)[..., :3] - wanted).max(-1) < 0.03).mean())


def test_bars_for_and_against(tmp_path: Path) -> None:
    """What is added is blue, what is taken off is orange, in proportion."""
    path = sum_bars(sum_of(("token", 3.0), ("head 0.1", -1.0)), tmp_path / "bars.png")

    assert share(path, FOR) / share(path, AGAINST) == pytest.approx(3, rel=0.1)


def test_a_bar_for_each_term_and_what_they_add_up_to(tmp_path: Path, saved: Any) -> None:
    """The largest on top, then the others, the sum, and the model's own number."""
    sum_bars(logit_sum(expansion(), 0, texts=[" cat", "dog"], most=2), tmp_path / "bars.svg")
    (axes,) = saved[-1].axes
    widths = {
        label.get_text(): bar.get_width()
        for label, bar in zip(axes.get_yticklabels(), axes.patches, strict=True)
    }

    assert widths == {
        "token": 4.0,
        "token > 0.0": -2.0,
        "2 others": 1.5,
        "sum": 3.5,
        "the model's own": 3.5,
    }
    assert axes.get_xlabel() == "adds to the logit (nats)"
    assert "Logit of '·cat' at position 7" in saved.texts
    assert any("off by at most 0.0e+00" in text for text in saved.texts)


def test_pruned_paths_are_among_the_others() -> None:
    """What `pruned` added up is told as so many others, not as a term called the rest."""
    found = logit_sum(expansion().pruned(1.5, 0), 0)

    assert [name for name, _ in found.terms] == ["token", "token > 0.0", "b_U"]
    assert (found.n_others, found.others, found.total) == (1, 1.0, 3.5)


def test_a_difference_of_two_tokens() -> None:
    """Every term is that of the one less that of the other."""
    found = logit_sum(expansion(), 0, 1)

    assert found.terms[:2] == (("token", 2.0), ("token > 0.0", -1.0))
    assert found.title == "Logit of token 0 minus token 1 at position 7"


def test_real_sums_are_the_models_own() -> None:
    """Of a real model: paths, routes and score pairs add up to its number, few shown or many."""
    cfg = Config(d_model=12, n_heads=2, n_layers=2, n_ctx=8, d_vocab=11, attn_only=True)
    model, tokens = Transformer(cfg, seed=0).double(), t.tensor([[1, 5, 3, 5]])
    paths = expand(model, tokens, quiet=True)
    sums = [
        logit_sum(paths, 4, most=3),
        logit_sum(paths.pruned(1e-3, 4), 4, most=3),
        logit_sum(decompose(model, tokens), 4, 2, most=100),
        score_sum(expand_score(model, tokens, (1, 0), 3, 1, quiet=True), most=3),
    ]

    for found in sums:
        assert found.total == pytest.approx(found.own, abs=1e-12)
    assert sums[0].n_others == len(list(paths.terms)) - 3 == sums[1].n_others
    assert sums[2].n_others == 0
    assert "  ×  " in sums[3].terms[0][0] and "|q| |k|" in sums[3].caption


def test_a_terminal_shows_bars_from_the_middle() -> None:
    """Names, numbers and bars in columns; under a line what they add up to, and the sum check."""
    found = sum_of(("token > 0.1", 3.0), ("b_U", -1.0), others=-0.5, n_others=12)

    assert sum_text(found, width=60) == "\n".join(
        [
            "logit of '$a_1$' after ' b': adds to the logit (nats)",
            "token > 0.1        +3.0000                 │███████████████",
            "b_U                -1.0000            █████│",
            "12 others          -0.5000              ▐██│",
            "--------------------------",
            "sum                +1.5000                 │███████▌",
            "the model's own    +1.5000                 │███████▌",
            "2 paths add up to the logits: off by at most 1.0e-16 of the",
            "largest. Frozen: attention patterns.",
        ]
    )


def test_long_names_are_cut(tmp_path: Path, saved: Any) -> None:
    """A virtual head of many heads keeps its bar: its name ends in an ellipsis."""
    name = "token" + " > 11.10" * 30
    sum_bars(sum_of((name, 1.0)), tmp_path / "long.png")
    label = saved[-1].axes[0].get_yticklabels()[0].get_text()

    assert len(label) == 44 and label.endswith("…")
    assert max(map(cell_len, sum_text(sum_of((name, 1.0))).splitlines())) <= 80


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    """NaN, infinity, no term, too many bars, ids that are not there: errors, and no file."""
    path, broken = tmp_path / "x.png", expansion()
    broken.logits[0] = t.nan
    with pytest.raises(PvmlError, match="the model's own is nan"):
        logit_sum(broken, 0)
    with pytest.raises(PvmlError, match="head is inf"):
        sum_text(sum_of(("head", float("inf"))))
    with pytest.raises(PvmlError, match="no term"):
        sum_bars(sum_of(), path)
    with pytest.raises(PvmlError, match="at least 1 term"):
        logit_sum(expansion(), 0, most=0)
    with pytest.raises(PvmlError, match="1 texts, and none for token 1"):
        logit_sum(expansion(), 1, texts=["a"])
    with pytest.raises(PvmlError, match="101 bars are too many"):
        sum_bars(sum_of(*((str(i), 1.0) for i in range(101))), path)
    with pytest.raises(PvmlError):
        logit_sum(expansion(), 2)
    with pytest.raises(PvmlError, match="png or svg"):
        sum_bars(replace(sum_of(("a", 1.0)), title="b"), tmp_path / "x.pdf")
    assert not list(tmp_path.iterdir())
