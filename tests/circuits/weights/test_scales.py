"""What circuits leave out: with it, entries are what a pass adds."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits import two_routes
from pvml.circuits.paths.logit_paths import expand
from pvml.circuits.paths.score_paths import expand_score
from pvml.circuits.weights.maps import bigram, ov, qk
from pvml.circuits.weights.scales import typical_scale, unit_of, what_is_left_out
from pvml.errors import PvmlError


def test_times_their_scale_entries_are_what_a_pass_adds(make_model: Any) -> None:
    """One token that reads itself: entry times factor is its path's logits, or its score."""
    model = make_model(positions="none", attn_only=True)
    one = t.tensor([[4]])
    paths = expand(model, one, quiet=True)
    for circuit, name, unit in (
        (bigram(model), "token", "nats × std"),
        (ov(model, (0, 1)), "token > 0.1", "nats × 2 stds"),
        (ov(model, (1, 2)), "token > 1.2", "nats × 2 stds"),
        (ov(model, (0, 1), (1, 2)), "token > 0.1 > 1.2", "nats × 3 stds"),
    ):
        scale = typical_scale(model, circuit, one)
        added = circuit.map.rows([4])[0] * scale.factor
        assert added.tolist() == pytest.approx(paths[name].vector.tolist(), rel=1e-9)
        assert unit_of(circuit) == unit and scale.n_positions == 1
    pairs = expand_score(model, one, (1, 2), 0, 0, quiet=True)
    scores = {(query, key): value for query, key, value in pairs.largest(pairs.values.numel())}
    for through, name, unit in (
        ([], "token", "q · k × 2 stds"),
        ([(0, 1)], "token > 0.1", "q · k × 3 stds"),
    ):
        circuit = qk(model, (1, 2), keys_through=through)
        entry = float(circuit.map.entries([4], [4])[0])
        factor = typical_scale(model, circuit, one).factor
        assert entry * factor == pytest.approx(scores["token", name], rel=1e-9)
        assert unit_of(circuit) == unit


def test_a_scale_is_the_median_over_a_text(make_model: Any, tokens: Tensor) -> None:
    """Of the products of 1/std at each position of every row, whatever is read in one pass."""
    model = make_model(attn_only=True)
    rows = tokens.repeat(3, 1)
    rows[2:] = (rows[2:] + t.arange(4)[:, None]) % 29
    _, cache = model.run_with_cache(rows, names_filter=["*.ln1.residual_std"])
    stds = [cache[f"blocks.{layer}.ln1.residual_std"].detach().flatten() for layer in (0, 1)]
    circuit = ov(model, (0, 1), (1, 2), columns="stream")
    found = typical_scale(model, circuit, rows)

    products = 1 / stds[0] / stds[1]
    assert found.factor == pytest.approx(float(products.quantile(0.5)))
    assert found.low < found.factor < found.high and found.n_positions == 42
    assert unit_of(circuit) == "coordinates × 2 stds"
    with pytest.raises(PvmlError, match="at least one token"):
        typical_scale(model, circuit, rows[:0])


def test_what_is_left_out_is_named(make_model: Any) -> None:
    """Each LayerNorm as often as it divides; none where there is none, or positions come later."""
    model = make_model(positions="shortformer")

    assert ov(model, (0, 1), (1, 2)).left_out == ("blocks.0.ln1", "blocks.1.ln1", "ln_final")
    assert ov(model, (1, 2), columns="stream").left_out == ("blocks.1.ln1",)
    assert qk(model, (1, 0), queries="positions").left_out == ("blocks.1.ln1",)
    assert "(blocks.1.ln1 twice)." in what_is_left_out(qk(model, (1, 0)))
    exact = bigram(two_routes.as_model())
    assert (exact.left_out, unit_of(exact), what_is_left_out(exact)) == ((), "nats", "")
    assert typical_scale(two_routes.as_model(), exact, two_routes.token_ids()[None]).factor == 1.0
