"""Copying scores: eigenvalues are those of the written-out circuit; random heads do not copy."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch as t

from pvml.circuits import two_routes
from pvml.circuits.weights import copying
from pvml.circuits.weights.copying import copying_score, copying_scores, ov_eigenvalues
from pvml.circuits.weights.maps import ov
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer


def test_scores_by_hand() -> None:
    """All positive 1, all negative -1, a quarter turn 0, 3 ± 4i 0.6, nothing no score (case 42)."""
    scores = copying_score(
        t.tensor([[3, 1], [-3, -1], [1j, -1j], [3 + 4j, 3 - 4j], [0, 0]], dtype=t.complex128)
    )
    assert scores[:4].tolist() == [1.0, -1.0, 0.0, 0.6] and math.isnan(scores[4])


def test_the_worked_examples_head_copies() -> None:
    """Its OV table has positive eigenvalues only: score 1, which none of 1,000 random heads has."""
    (found,) = copying_scores(two_routes.as_model())

    assert found.score == pytest.approx(1.0) and found.beyond
    assert found.p == 1 / 1001 and 0.3 < found.null_spread < 0.36
    assert str(found).startswith("0.0 (score 1.00; random heads ")


def test_the_p_counts_the_heads_tried() -> None:
    """The same head as one of 2 layers of 3, the others silent: 6 times what it has alone."""
    alone = two_routes.as_model()
    model = Transformer(replace(alone.cfg, n_layers=2, n_heads=3), seed=0).double()
    with t.no_grad():
        model.embed.W_E.copy_(alone.embed.W_E)
        model.unembed.W_U.copy_(alone.unembed.W_U)
        for block in model.blocks:
            block.attn.W_O.zero_()
        model.blocks[0].attn.W_V[1] = alone.blocks[0].attn.W_V[0]
        model.blocks[0].attn.W_O[1] = alone.blocks[0].attn.W_O[0]
    found = copying_scores(model)

    assert found[1].score == pytest.approx(1.0)
    assert found[1].p == pytest.approx(6 / 1001, rel=1e-9)


@pytest.mark.parametrize("normalization", ["LN", "none"])
@pytest.mark.parametrize("norms", ["folded", "ignored"])
def test_eigenvalues_are_those_of_the_circuit(
    make_model: Any, normalization: str, norms: Any
) -> None:
    """Of every head, whatever is done with LayerNorm: those of the factored map."""
    model = make_model(normalization=normalization)
    found = ov_eigenvalues(model, norms)

    assert found.shape == (2, 3, 5)
    for layer in range(2):
        for head in range(3):
            wanted = ov(model, (layer, head), norms=norms).map.eigenvalues()
            ours, theirs = (
                sorted((round(v.real, 9), round(abs(v.imag), 9)) for v in values.tolist())
                for values in (found[layer, head], wanted)
            )
            assert ours == theirs


def test_random_heads_are_not_called_copying() -> None:
    """Sixteen heads with d_head 2, as the seeds' smallest run has: scores up to 1, none beyond."""
    cfg = Config(d_model=32, n_heads=16, d_head=2, n_layers=2, n_ctx=8, d_vocab=60, attn_only=True)
    found = copying_scores(Transformer(cfg, seed=0))

    assert max(score.score or 0.0 for score in found) > 0.9
    assert 0.5 < found[0].null_spread < 0.8
    assert not any(score.beyond for score in found)


def test_a_planted_head_is_found() -> None:
    """One head of a random model is made to copy: it is beyond its null, no other is."""
    cfg = Config(d_model=32, n_heads=4, d_head=8, n_layers=2, n_ctx=8, d_vocab=60, attn_only=True)
    model = Transformer(cfg, seed=0)
    attn = model.blocks[1].attn
    with t.no_grad():
        # what it reads through the embedding it writes through the unembedding
        through = t.linalg.pinv(model.unembed.W_U @ model.embed.W_E)
        attn.W_O[2] = attn.W_V[2].T @ through
    found = copying_scores(model)

    assert [(score.layer, score.head) for score in found if score.beyond] == [(1, 2)]
    again = copying_scores(model)
    assert again == found and copying_scores(model, seed=1) != found


def test_a_head_that_does_nothing_has_no_score(make_model: Any) -> None:
    """Zeroed, or writing only what it never reads (nilpotent): undefined, p 1, said in words."""
    model = make_model(normalization="none")
    attn = model.blocks[0].attn
    attn.W_O.data[1] = 0.0
    with t.no_grad():
        # what comes back by way of the vocabulary is taken out of what is written
        back = (model.unembed.W_U @ model.embed.W_E) @ attn.W_V[2]
        attn.W_O[2] -= attn.W_O[2] @ back @ t.linalg.pinv(back)
    assert float(attn.W_O[2].detach().norm()) > 0.1
    for dtype in (t.float64, t.float32):
        for silent in copying_scores(model.to(dtype))[1:3]:
            assert silent.score is None and silent.p == 1.0 and not silent.beyond
            told = f"0.{silent.head} (score undefined: every eigenvalue is 0)"
            assert str(silent) == told
    assert copying_scores(make_model(n_layers=0)) == []


def test_too_small_a_null_is_refused(make_model: Any) -> None:
    """A hundred random heads at least."""
    with pytest.raises(PvmlError, match="at least 100 random heads, got 99"):
        copying_scores(make_model(), n_null=99)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heads_of_one_number_have_a_null(seed: int) -> None:
    """d_head 1: an eigenvalue is a number, whose sign is the score; random ones average to 0."""
    cfg = Config(d_model=16, n_heads=4, d_head=1, n_layers=2, n_ctx=8, d_vocab=60, attn_only=True)
    found = copying_scores(Transformer(cfg, seed=seed))

    assert {abs(score.score or 0.0) for score in found} == {1.0}
    assert all(abs(score.null_mean) < 0.2 for score in found)
    assert all(0.95 < score.null_spread < 1.05 for score in found)


def test_random_heads_without_a_score_are_left_out(
    monkeypatch: pytest.MonkeyPatch, make_model: Any
) -> None:
    """Counted and said, the others' mean is kept; p is 1 where too few remain, or none does."""
    genuine = copying._eigenvalues
    shares = iter([0.5, 0.5, 0.5, 0.5, 0.8, 0.8, 0.8, 0.8, 1.0, 1.0, 1.0, 1.0])  # each 128 heads

    def some_are_zero(W_O: Any, between: Any, W_V: Any) -> Any:
        values = genuine(W_O, between, W_V)
        if len(W_O) > 3:  # the random ones
            values[: round(next(shares) * len(values))] = 0.0
        return values

    monkeypatch.setattr(copying, "_eigenvalues", some_are_zero)
    half = copying_scores(make_model(), n_null=256)[0]
    assert half.null_undefined == 128 and abs(half.null_mean) < 0.2
    assert "128 undefined left out" in str(half)
    for _ in range(2):
        few = copying_scores(make_model(), n_null=256)
        assert all(score.p == 1.0 and not score.beyond for score in few)
    assert few[0].null_undefined == 256 and math.isnan(few[0].null_mean)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(make_model: Any, value: float) -> None:
    """No head is called undefined for them: the weight and its place are named."""
    model = make_model()
    model.blocks[1].attn.W_O.data[2, 1, 0] = value
    for ask in (copying_scores, ov_eigenvalues):
        with pytest.raises(PvmlError, match=rf"blocks.1.attn.W_O holds {value} at \(2, 1, 0\)"):
            ask(model)


def test_products_that_overflow_are_refused(make_model: Any) -> None:
    """Weights of float32 whose products are none; in float64 they are, and the scores the same."""
    model = make_model(normalization="none")
    wanted = [score.score for score in copying_scores(model)]
    for parameter in model.parameters():
        parameter.data *= 1e12
    with pytest.raises(PvmlError, match="too large for torch.float32"):
        copying_scores(model.float())
    assert [score.score for score in copying_scores(model.double())] == pytest.approx(
        wanted, abs=1e-5
    )
