"""Attention scores as sums over pairs of paths: the sum is q . k, each pair what its names say."""

import itertools
import random
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits import two_routes
from pvml.circuits.paths.score_paths import ScoreExpansion, expand_score
from pvml.errors import CheckFailed, PvmlError
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen


def expansion_of(
    model: Transformer, tokens: Tensor, head: tuple[int, int], query: int, key: int
) -> ScoreExpansion:
    return expand_score(model, tokens, head, query, key, quiet=True)


def test_the_worked_example_has_one_pair() -> None:
    """Token against token: the QK table's entry, before attention divides by sqrt(d_head)."""
    found = expansion_of(two_routes.as_model(), two_routes.token_ids()[None], (0, 0), 7, 1)

    assert found.value("token", "token") * found.scale == pytest.approx(3.4)
    assert found.total == pytest.approx(found.value("token", "token"))


def test_k_composition_by_hand(make_model: Any, tokens: Tensor) -> None:
    """Without LayerNorm: the query's token against what head 0.2 copied to the key's place."""
    model = make_model(attn_only=True, normalization="none", positions="none")
    one = tokens[:1]
    _, cache = model.run_with_cache(one)
    first, second = (block.attn for block in model.blocks)
    with t.no_grad():
        E = model.embed.W_E[one[0]]
        copied = cache["blocks.0.attn.attn_pattern"][0, 2] @ E @ first.W_V[2] @ first.W_O[2]
        wanted = (E[6] @ second.W_Q[1]) @ (copied[3] @ second.W_K[1])

    found = expansion_of(model, one, (1, 1), 6, 3)
    assert found.value("token", "token > 0.2") == pytest.approx(float(wanted), abs=1e-12)


MODELS = list(
    itertools.product(
        range(1, 4), ["none", "standard", "shortformer"], ["LN", "none"], [True, False], range(3)
    )
)


@pytest.mark.parametrize(("dtype", "most"), [(t.float64, 1e-12), (t.float32, 1e-5)])
@pytest.mark.parametrize("part", range(4))
def test_the_sum_is_the_score(make_model: Any, part: int, dtype: t.dtype, most: float) -> None:
    """108 random models: 1 to 3 layers, 1 to 4 heads, every head's score of a random pair."""
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
        query = dice.randrange(tokens.shape[1])
        key = dice.randint(0, query)
        for head in itertools.product(range(layers), range(heads)):
            found = expansion_of(model, tokens, head, query, key)
            assert found.error <= most, (layers, positions, normalization, attn_only, head)
            assert found.total == pytest.approx(found.score, rel=1e-3, abs=1e-3)


def test_it_says_how_well(
    make_model: Any, tokens: Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check is printed; the table has the largest pairs, the others, the sum and the score."""
    found = expand_score(make_model(attn_only=True), tokens[:1], (1, 2), 5, 2)
    said = capsys.readouterr().out

    n = len(found.queries)
    assert said.startswith(f"{n} x {n} pairs add up to the score of 1.2: off by ")
    sizes = [abs(value) for *_, value in found.largest(n * n)]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == n * n
    cells = list(found.table(most=3).columns[0].cells)
    assert cells[3:] == [f"{n * n - 3} other pairs", "sum", "the model's own"]


def test_an_edit_is_found_out(make_model: Any, tokens: Tensor) -> None:
    """Scores that somebody changes are not the sum."""
    model = make_model(attn_only=True)
    with listen(model, "blocks.1.attn.attn_scores", lambda _, x: x + 1, edits=True):
        with pytest.raises(CheckFailed, match=r"do not add up to the score of 1\.0: off by"):
            expansion_of(model, tokens[:1], (1, 0), 4, 4)


def test_what_cannot_be_expanded(make_model: Any, tokens: Tensor) -> None:
    """A head or place that is not there, a key that lies in the future, too many pairs."""
    model, one = make_model(), tokens[:1]
    with pytest.raises(PvmlError, match="no head 2.0: this model has 2 layers of 3 heads"):
        expansion_of(model, one, (2, 0), 3, 3)
    with pytest.raises(PvmlError, match="key 4 lies behind query 3"):
        expansion_of(model, one, (0, 0), 3, 4)
    with pytest.raises(PvmlError, match="position 7 is not in a sequence of 7 tokens"):
        expansion_of(model, one, (0, 0), 7, 3)
    with pytest.raises(PvmlError, match="169 pairs, more than most_paths 100"):
        expand_score(model, one, (1, 0), 3, 3, most_paths=100)
    with pytest.raises(PvmlError, match="there is no 'nobody' here: there are token"):
        expansion_of(model, one, (0, 0), 3, 3).value("nobody", "token")
