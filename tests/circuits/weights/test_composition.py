"""Composition scores: equal to dense products; planted pairs are found, random ones are not."""

import math
from typing import Any

import pytest
import torch as t

from pvml.circuits.weights.composition import composition_scores
from pvml.circuits.weights.maps import ov, qk
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

CFG = Config(d_model=48, n_heads=4, d_head=6, n_layers=2, n_ctx=8, d_vocab=60, attn_only=True)


@pytest.mark.parametrize("normalization", ["LN", "none"])
@pytest.mark.parametrize("norms", ["folded", "ignored"])
def test_scores_are_the_dense_ones(make_model: Any, normalization: str, norms: Any) -> None:
    """|M1 M2| / (|M1| |M2|) of matrices written out, for every pair of three layers and kind."""
    model = make_model(n_layers=3, normalization=normalization)
    space: dict[str, Any] = {"norms": norms}
    found = composition_scores(model, norms=norms, n_null=100)

    assert len(found) == 3 * 9 * 3
    for score in found:
        low = ov(model, score.writer, rows="stream", columns="stream", **space).map.dense()
        top = ov(model, score.reader, rows="stream", columns="stream", **space).map.dense()
        if score.kind != "V":
            top = qk(model, score.reader, queries="stream", keys="stream", **space).map.dense()
            top = top if score.kind == "Q" else top.T
        wanted = (low @ top).norm() / (low.norm() * top.norm())
        assert score.score == pytest.approx(float(wanted), rel=1e-10)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_a_planted_pair_is_found(kind: str) -> None:
    """Head 1.2 is made to read what 0.3 writes: that pair is beyond its null, no other is."""
    model = Transformer(CFG, seed=0)
    below, top = (block.attn for block in model.blocks)
    reads = {"Q": top.W_Q, "K": top.W_K, "V": top.W_V}[kind]
    with t.no_grad():
        reads[2] = below.W_O[3].T
    found = composition_scores(model, norms="ignored")

    (one,) = [score for score in found if score.beyond]
    assert (one.kind, one.writer, one.reader) == (kind, (0, 3), (1, 2))
    assert str(one).startswith(f"{kind}-composition of 1.2 with 0.3 (score 0.")
    assert composition_scores(model, norms="ignored") == found


def test_random_heads_do_not_compose() -> None:
    """Ten untrained models, 480 scores: none is beyond, and the null's mean is theirs."""
    scores = [s for seed in range(10) for s in composition_scores(Transformer(CFG, seed=seed))]

    assert not any(score.beyond for score in scores)
    own, null = (
        sum(x) / len(x) for x in zip(*((s.score, s.null_mean) for s in scores), strict=True)
    )
    assert own == pytest.approx(null, rel=0.02)


def test_heads_of_low_rank_do_not_look_composed() -> None:
    """Of rank 1 a pair's scores are spread widely: the null knows, because it keeps the ranks."""
    model = Transformer(CFG, seed=1)
    with t.no_grad():
        for block in model.blocks:
            for W in (block.attn.W_Q, block.attn.W_K, block.attn.W_V):
                W[:, :, 1:] = 0.0
    found = composition_scores(model)

    assert max(score.score for score in found) > 0.3
    assert not any(score.beyond for score in found)


def test_one_layer_composes_with_nothing(make_model: Any) -> None:
    """No pairs, no scores; a head that does nothing has no score."""
    assert composition_scores(make_model(n_layers=1)) == []
    model = make_model()
    model.blocks[0].attn.W_O.data[1] = 0.0
    silent = [s for s in composition_scores(model, n_null=100) if s.writer == (0, 1)]
    assert silent and all(s.score != s.score and s.p == 1.0 and not s.beyond for s in silent)


def test_too_small_a_null_is_refused(make_model: Any) -> None:
    """A hundred rotations at least."""
    with pytest.raises(PvmlError, match="at least 100 rotations, got 99"):
        composition_scores(make_model(), n_null=99)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(make_model: Any, value: float) -> None:
    """No pair is called undefined for them: the weight and its place are named."""
    model = make_model()
    model.blocks[0].attn.W_V.data[0, 3, 1] = value
    with pytest.raises(PvmlError, match=rf"blocks.0.attn.W_V holds {value} at \(0, 3, 1\)"):
        composition_scores(model)


def test_products_that_overflow_are_refused(make_model: Any) -> None:
    """Even in float64 there is a largest number."""
    model = make_model()
    for parameter in model.parameters():
        parameter.data *= 1e200
    with pytest.raises(PvmlError, match="too large for torch.float64"):
        composition_scores(model)
