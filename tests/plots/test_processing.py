"""Every figure that is made from a processed model says how its weights were processed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.circuits.heads.scores import head_scores
from pvml.circuits.paths.logit_paths import expand
from pvml.circuits.paths.score_paths import expand_score
from pvml.circuits.weights.composition import composition_scores
from pvml.circuits.weights.copying import copying_scores, ov_eigenvalues
from pvml.circuits.weights.maps import ov
from pvml.modules.transformer import Transformer
from pvml.patching.metric import LogitDifference
from pvml.patching.sweep import patch_activations
from pvml.plots.attention import attention_grids
from pvml.plots.composition import composition_graph, composition_text
from pvml.plots.eigenvalues import eigenvalue_planes, eigenvalue_text
from pvml.plots.excerpts import excerpt_map, excerpt_text
from pvml.plots.head_scores import score_grids, score_text
from pvml.plots.patching import patch_map, patch_text
from pvml.plots.routes import logit_sum, score_sum, sum_bars, sum_text
from pvml.processing.rewrite import process

Draw = Callable[[Transformer, Path], str]
"""Draws a figure of a model into a file; the figure in text."""
ROW = t.arange(7)[None]


def _heads(model: Transformer, path: Path) -> str:
    kinds: Any = {"kinds": ["previous-token"], "texts": ["natural"], "n_random": 0}
    scores = head_scores(model, t.arange(11).repeat(3, 1), **kinds)
    score_grids(scores, path)
    return score_text(scores)


def _eigenvalues(model: Transformer, path: Path) -> str:
    values, scores = ov_eigenvalues(model), copying_scores(model, n_null=100)
    eigenvalue_planes(values, scores, path)
    return eigenvalue_text(values, scores)


def _composition(model: Transformer, path: Path) -> str:
    scores = composition_scores(model, n_null=100)
    composition_graph(scores, path)
    return composition_text(scores)


def _excerpt(model: Transformer, path: Path) -> str:
    circuit = ov(model, (1, 0))
    excerpt_map(circuit, [1, 2], [3], path)
    return excerpt_text(circuit, [1, 2], [3])


def _paths(model: Transformer, path: Path) -> str:
    made = logit_sum(expand(model, ROW, quiet=True), 3, most=2)
    sum_bars(made, path)
    return sum_text(made)


def _scores(model: Transformer, path: Path) -> str:
    made = score_sum(expand_score(model, ROW, (1, 0), 6, 2, quiet=True), most=2)
    sum_bars(made, path)
    return sum_text(made)


def _attention(model: Transformer, path: Path) -> str:
    _, cache = model.run_with_cache(ROW, names_filter="*.0.attn.attn_pattern")
    pattern = cache["blocks.0.attn.attn_pattern"]
    grids = {"0.1": pattern[0, 1].numpy()}
    attention_grids(grids, ["a"] * 7, path, processing=model.processing)
    return ""


def _patching(model: Transformer, path: Path) -> str:
    found = patch_activations(model, ROW, ROW.flip(1), LogitDifference(answer=3, wrong=11))
    patch_map(found, path)
    return patch_text(found)


@pytest.mark.parametrize(
    "draw",
    [
        _heads,
        _eigenvalues,
        _composition,
        _excerpt,
        _paths,
        _scores,
        _attention,
        _patching,
    ],
)
def test_the_figure_says_so(make_model: Any, tmp_path: Path, saved: Any, draw: Draw) -> None:
    """In its caption, in text too; a figure of a model as it was trained says nothing of it."""
    model = make_model(attn_only=True).requires_grad_(False)
    plain = draw(model, tmp_path / "plain.svg")
    told = " ".join(" ".join(saved.texts).split())
    assert "processed" not in told and "processed" not in plain
    text = draw(process(model).model, tmp_path / "processed.svg")
    told = " ".join(" ".join(saved.texts).split())

    said = (
        "processed: fold_layer_norm, centre_writing_weights, centre_unembedding, fold_value_biases"
    )
    assert said in told
    assert said in " ".join(text.split()) or not text
