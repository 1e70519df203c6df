"""Path expansion: the sum is the logits, each path is the product that its name says."""

import itertools
import random
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits import two_routes
from pvml.circuits.held import hold
from pvml.circuits.paths.logit_paths import Expansion, count_paths, expand
from pvml.circuits.paths.orders import streams_by_order
from pvml.config import Config
from pvml.errors import CheckFailed, PvmlError
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen


def expansion_of(model: Transformer, tokens: Tensor, position: int = -1) -> Expansion:
    return expand(model, tokens, position, quiet=True)


# By hand


def test_the_worked_example_has_two_routes() -> None:
    """The direct path is the bigram table's row, the head's path is the second route."""
    model = two_routes.as_model()
    tokens = two_routes.token_ids()[None]
    found = expansion_of(model, tokens, 8)

    ids = tokens[0].tolist()
    weights = two_routes.QK[ids[8], ids].exp()
    mixed = weights @ two_routes.OV[ids] / weights.sum()
    assert found["token"].vector.tolist() == pytest.approx(two_routes.BIGRAM[ids[8]].tolist())
    assert found["token > 0.0"].vector.tolist() == pytest.approx(mixed.tolist())
    assert (
        sum(float(term.vector.abs().sum()) for term in found.terms if "token" not in term.name) == 0
    )
    assert found.by_order(3) == pytest.approx(
        [float(two_routes.BIGRAM[ids[8], 3]), float(mixed[3])]
    )


def test_how_many_paths() -> None:
    """Tokens: (1 + heads) for every layer; positions as many; biases take the layers above."""
    cfg = Config(
        d_model=6, n_heads=3, n_layers=2, d_vocab=5, n_ctx=5, attn_only=True, positions="none"
    )
    assert count_paths(cfg) == 4 * 4 + (3 + 1) * 4 + (3 + 1)


def test_a_virtual_head_by_hand(make_model: Any, tokens: Tensor) -> None:
    """Without LayerNorm: A1 A0 E (W_V0 W_O0) (W_V1 W_O1) W_U at the last position."""
    model = make_model(attn_only=True, normalization="none", positions="none")
    one = tokens[:1]
    _, cache = model.run_with_cache(one)
    first, second = (block.attn for block in model.blocks)
    with t.no_grad():
        stream = model.embed.W_E[one[0]]
        for layer, attn, head in ((0, first, 2), (1, second, 0)):
            pattern = cache[f"blocks.{layer}.attn.attn_pattern"][0, head]
            stream = pattern @ stream @ attn.W_V[head] @ attn.W_O[head]
        wanted = stream[-1] @ model.unembed.W_U

    t.testing.assert_close(
        expansion_of(model, one)["token > 0.2 > 1.0"].vector, wanted, rtol=0, atol=1e-12
    )


# Laws

MODELS = list(
    itertools.product(
        range(4), ["none", "standard", "shortformer"], ["LN", "none"], [True, False], [0, 1]
    )
)


@pytest.mark.parametrize(("dtype", "most"), [(t.float64, 1e-12), (t.float32, 1e-5)])
@pytest.mark.parametrize("part", range(4))
def test_the_sum_is_the_logits(make_model: Any, part: int, dtype: t.dtype, most: float) -> None:
    """96 random models: 0 to 3 layers, 1 to 4 heads, all positions, with and without LayerNorm and
    MLPs, biases on: every prediction, and as many paths of tokens as the product says."""
    for number, (layers, positions, normalization, attn_only, seed) in enumerate(MODELS):
        if number % 4 != part:
            continue
        dice = random.Random(number)
        heads = dice.randint(1, 4)
        model = make_model(
            n_layers=layers,
            n_heads=heads,
            positions=positions,
            normalization=normalization,
            attn_only=attn_only,
        ).to(dtype)
        rng = t.Generator().manual_seed(seed)
        tokens = t.randint(0, model.cfg.d_vocab, (1, dice.randint(1, 7)), generator=rng)
        place = dice.randrange(tokens.shape[1])
        found = expansion_of(model, tokens, place)

        assert found.error <= most, (layers, positions, normalization, attn_only)
        own = model(tokens)[0, place].detach()
        assert float((found.total - own).abs().max() / own.abs().max()) <= most
        of_tokens = [path for path in found.paths if path.source == "token"]
        assert len(of_tokens) == (1 + heads) ** layers
        assert len(found.paths) == count_paths(model.cfg)
        assert len({path.name for path in found.paths}) == len(found.paths)


def test_values_orders_and_pruning_add_up(make_model: Any, tokens: Tensor) -> None:
    """All values of a token, the sums by order, and a pruned expansion give the same logit."""
    model = make_model(attn_only=True)
    found = expansion_of(model, tokens[:1], 4)
    token, minus = 3, 11
    logit = found.logit(token, minus)
    constants = sum(float(c.vector[token] - c.vector[minus]) for c in found.constants)

    assert sum(value for _, value in found.values(token, minus)) == pytest.approx(logit, abs=1e-11)
    orders = found.by_order(token, minus)
    assert len(orders) == 3 and sum(orders) + constants == pytest.approx(logit, abs=1e-11)
    # without enumeration: each order's stream is made of the one below
    streams = streams_by_order(hold(model, tokens[:1]))[:, 4] @ found.readout
    assert orders == pytest.approx((streams[:, token] - streams[:, minus]).tolist(), abs=1e-11)
    sizes = [abs(value) for _, value in found.values(token, minus)]
    assert sizes == sorted(sizes, reverse=True)

    few = found.pruned(sizes[len(sizes) // 2], token, minus)
    fewer = few.pruned(t.inf, token, minus)
    assert 0 < len(few.paths) < len(found.paths) and not fewer.paths
    assert few.n_pruned + len(few.paths) == fewer.n_pruned == len(found.paths)
    for less in (few, fewer):
        t.testing.assert_close(less.total, found.total, rtol=0, atol=1e-11)
        assert [term.name for term in less.constants].count("the rest") == 1


def test_it_says_how_many_and_how_well(
    make_model: Any, tokens: Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of paths before, the check behind; a table with the sum and the logit."""
    found = expand(make_model(attn_only=True, positions="none"), tokens[:1])
    said = capsys.readouterr().out.splitlines()

    assert said[0] == "36 paths lead to this prediction"
    assert said[1].startswith("36 paths and 2 constants add up to the logits: off by at most ")
    table = found.table(2, 5, most=7)
    names, values = (list(column.cells) for column in table.columns)
    assert names[7:] == ["31 others", "sum", "the model's own"]
    assert values[-1] == values[-2] == f"{found.logit(2, 5):+.4f}"


# Faults


def test_an_edit_is_found_out(make_model: Any, tokens: Tensor) -> None:
    """Logits that somebody changes are not the sum."""
    model = make_model(attn_only=True)
    with listen(model, "unembed.logits", lambda _, x: x + 1, edits=True):
        with pytest.raises(CheckFailed, match="terms do not add up to the logits: off by"):
            expansion_of(model, tokens[:1])


def test_what_cannot_be_expanded(make_model: Any, tokens: Tensor) -> None:
    """Too many paths, a batch, a place or token that is not there, an unknown term."""
    model = make_model()
    with pytest.raises(PvmlError, match="169 paths lead to .* more than most_paths 80"):
        expand(make_model(attn_only=False, positions="none", n_layers=3), tokens[:1], most_paths=80)
    with pytest.raises(PvmlError, match=r"at a time, of shape \(1, posn\); got \(2, 7\)"):
        expansion_of(model, tokens)
    with pytest.raises(PvmlError, match="position 7 is not in a sequence of 7 tokens"):
        expansion_of(model, tokens[:1], 7)
    found = expansion_of(model, tokens[:1])
    with pytest.raises(PvmlError, match="there is no term 'token > 2.0': this expansion has token"):
        found["token > 2.0"]
    with pytest.raises(PvmlError, match="token id 99 is outside the vocabulary"):
        found.values(99)
    with pytest.raises(PvmlError, match="at least 0, got -1"):
        found.pruned(-1.0, 0)
