"""The circuits of a model: their entries are what the model computes where their words hold."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits import two_routes
from pvml.circuits.paths.logit_paths import expand
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.maps import bigram, ov, qk
from pvml.errors import PvmlError

ATOL = 1e-12


def equal(got: Tensor | FactoredMap, wanted: Tensor | FactoredMap) -> None:
    got, wanted = (x.dense() if isinstance(x, FactoredMap) else x for x in (got, wanted))
    t.testing.assert_close(got, wanted, rtol=0, atol=ATOL)


def test_the_worked_example_gives_its_tables_back() -> None:
    """Bigram, OV and QK (scaled) are the three tables that the model was written with."""
    model = two_routes.as_model()

    equal(bigram(model).map, two_routes.BIGRAM)
    equal(ov(model, (0, 0)).map, two_routes.OV)
    equal(qk(model, (0, 0), scaled=True).map, two_routes.QK)
    equal(qk(model, (0, 0)).map, two_routes.QK * 6**0.5)
    assert qk(model, (0, 0)).holds == (
        "biases (b_Q, b_K, ln1.b): left out",
        "not divided by sqrt(d_head)",
    )


@pytest.mark.parametrize("positions", ["none", "standard", "shortformer"])
def test_the_circuits_of_a_score_add_up(make_model: Any, tokens: Tensor, positions: str) -> None:
    """One layer, no LayerNorm: tokens and positions, as queries and keys, give q . k."""
    model = make_model(n_layers=1, normalization="none", positions=positions, attn_only=True)
    _, cache = model.run_with_cache(tokens[:1], names_filter="*.attn_scores")
    rows = {"vocabulary": tokens[0], "positions": t.arange(7)}
    spaces = ["vocabulary"] if positions == "none" else ["vocabulary", "positions"]
    for head in range(3):
        total = t.zeros(7, 7, dtype=t.float64)
        for queries, keys in itertools.product(spaces, repeat=2):
            circuit = qk(model, (0, head), queries=queries, keys=keys, biases=True)
            total += circuit.map.dense()[rows[queries]][:, rows[keys]]
        equal(total, cache["blocks.0.attn.attn_scores"][0, head].detach())


def test_circuits_are_paths_whose_weights_are_given(make_model: Any, tokens: Tensor) -> None:
    """Without LayerNorm each path of an expansion is attention times rows of its circuit."""
    model = make_model(normalization="none", attn_only=True)
    one = tokens[:1]
    _, cache = model.run_with_cache(one)
    first, second = (cache[f"blocks.{layer}.attn.attn_pattern"][0].detach() for layer in (0, 1))
    found = expand(model, one, quiet=True)

    equal(found["token"].vector, bigram(model).map.rows(one[0, -1:])[0])
    once = ov(model, (1, 2)).map.rows(one[0])
    equal(found["token > 1.2"].vector, second[2, -1] @ once)
    places = ov(model, (1, 2), rows="positions").map.rows(range(7))
    equal(found["position > 1.2"].vector, second[2, -1] @ places)
    twice = ov(model, (0, 1), (1, 2)).map.rows(one[0])
    equal(found["token > 0.1 > 1.2"].vector, second[2, -1] @ first[1] @ twice)


def test_composition_by_hand(make_model: Any) -> None:
    """Q and K came by heads below: W_E W_V W_O W_Q (W_E W_V W_O W_K)^T, biases of the top head."""
    model = make_model(normalization="none", attn_only=True)
    below, top = (block.attn for block in model.blocks)
    E = model.embed.W_E
    with t.no_grad():
        copied = {head: E @ below.W_V[head] @ below.W_O[head] for head in (0, 1)}
        q, k = copied[0] @ top.W_Q[2], copied[1] @ top.W_K[2]
        with_biases = (q + top.b_Q[2]) @ (k + top.b_K[2]).T
        plain_q = E @ top.W_Q[2]
    through: dict[str, Any] = {"queries_through": [(0, 0)], "keys_through": [(0, 1)]}
    circuit = qk(model, (1, 2), **through)

    assert circuit.name == "QK 1.2, queries through 0.0, keys through 0.1"
    assert circuit.map.rank <= model.cfg.d_head
    equal(circuit.map, q @ k.T)
    equal(qk(model, (1, 2), biases=True, **through).map, with_biases)
    equal(qk(model, (1, 2), keys_through=[(0, 1)]).map, plain_q @ k.T)
    equal(
        ov(model, (0, 1), (1, 2), rows="stream", columns="stream").map,
        (below.W_V[1] @ below.W_O[1] @ top.W_V[2] @ top.W_O[2]).detach(),
    )


def test_layernorm_is_folded_in_but_for_its_scale(make_model: Any, tokens: Tensor) -> None:
    """Each row divided by its std is what the model computes; ignored, it is not."""
    model = make_model(n_layers=1, positions="none", attn_only=True)
    names = ("attn_scores", "ln1.residual_std", "attn.v")
    _, cache = model.run_with_cache(tokens[:1], names_filter=lambda n: n.endswith(names))
    std = cache["blocks.0.ln1.residual_std"][0].detach()
    x = model.embed.W_E[tokens[0]].detach()
    attn, ln = model.blocks[0].attn, model.blocks[0].ln1
    with t.no_grad():
        b_Q, b_K = (ln.b @ W[1] + b[1] for W, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K)))
        stream = qk(model, (0, 1), queries="stream", keys="stream").map.dense()
        q_part, k_part = (
            (x / std) @ (W[1] * ln.w[:, None] - (W[1] * ln.w[:, None]).mean(0))
            for W in (attn.W_Q, attn.W_K)
        )
    wanted = cache["blocks.0.attn.attn_scores"][0, 1].detach()
    total = (x / std) @ stream @ (x / std).T
    equal(total + (q_part @ b_K)[:, None] + b_Q @ k_part.T + b_Q @ b_K, wanted)
    equal(stream, qk(model, (0, 1), queries="stream", keys="stream", biases=True).map)

    tables = qk(model, (0, 1)), qk(model, (0, 1), norms="ignored")
    ids = tokens[0]
    equal(tables[0].map.rows(ids)[:, ids] / std / std.T, total)
    equal(
        tables[1].map, (model.embed.W_E @ attn.W_Q[1] @ attn.W_K[1].T @ model.embed.W_E.T).detach()
    )
    assert "scale 1/std left out" in tables[0].holds[0]
    assert "taken for nothing" in tables[1].holds[0]


def test_the_bigram_table_with_its_biases(make_model: Any, tokens: Tensor) -> None:
    """A model without layers or LayerNorm is its bigram table and positions."""
    model = make_model(n_layers=0, normalization="none", positions="none")
    model.unembed.b_U.data.uniform_(-1, 1)

    equal(bigram(model, biases=True).map.rows(tokens[0]), model(tokens)[0].detach())
    equal(bigram(model).map, (model.embed.W_E @ model.unembed.W_U).detach())


def test_half_types_are_read_in_float32(make_model: Any) -> None:
    """A bfloat16 model's circuits are those of its weights, not of a bfloat16 product."""
    model = make_model().to(t.bfloat16)

    found = ov(model, (0, 1), (1, 0)).map
    assert found.dtype == t.float32
    exact = ov(model.double(), (0, 1), (1, 0)).map.dense()
    t.testing.assert_close(found.dense().double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda m: ov(m), r"needs a head: ov\(model, \(layer, head\)\)"),
        (lambda m: ov(m, (2, 0)), "no head 2.0: this model has 2 layers of 3 heads"),
        (lambda m: ov(m, (1, 0), (0, 2)), "head 0.2 cannot read what 1.0 writes"),
        (lambda m: ov(m, (0, 0), (0, 2)), "head 0.2 cannot read what 0.0 writes"),
        (lambda m: qk(m, (0, 3)), "no head 0.3"),
        (lambda m: qk(m, (1, 0), keys_through=[(1, 2)]), "head 1.2 is not below layer 1"),
    ],
)
def test_what_is_no_circuit(make_model: Any, fault: Callable[[Any], object], told: str) -> None:
    """Heads that are not there, or that cannot read one another."""
    with pytest.raises(PvmlError, match=told):
        fault(make_model())


def test_positions_that_the_stream_does_not_have(make_model: Any) -> None:
    """A shortformer's are read by queries and keys alone; without positions nothing reads them."""
    shortformer, none = (make_model(positions=positions) for positions in ("shortformer", "none"))
    for model in (shortformer, none):
        with pytest.raises(PvmlError, match="positions do not come into this model's stream"):
            ov(model, (0, 0), rows="positions")
    with pytest.raises(PvmlError, match="positions do not come into this model's stream"):
        qk(none, (0, 0), keys="positions")
    with pytest.raises(PvmlError, match="shortformer's positions go through no head"):
        qk(shortformer, (1, 0), keys="positions", keys_through=[(0, 0)])
