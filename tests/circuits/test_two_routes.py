"""The worked example: a model whose circuits are the post's tables, and every figure of the post.

Only `by_hand` reads the tables; all else is asked of the model, by the functions that serve trained
ones. What the post prints is counted from 1.
"""

import math
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits import two_routes as tr
from pvml.circuits.paths.frozen import freeze
from pvml.circuits.paths.logit_paths import expand
from pvml.circuits.paths.routes import decompose
from pvml.circuits.paths.score_paths import expand_score
from pvml.circuits.skips.reading import Competition
from pvml.circuits.skips.trigrams import find_skip_trigrams
from pvml.circuits.weights.copying import copying_scores, ov_eigenvalues
from pvml.circuits.weights.maps import bigram, ov, qk
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen

SCORES = [
    [0.4],
    [0.5, 0.3],
    [0.6, 1.2, 0.3],
    [0.7, 1.0, 0.5, 0.3],
    [0.4, 3.4, 0.7, 0.6, 0.4],
    [0.5, 0.9, 0.4, 0.6, 0.5, 0.3],
    [0.4, 0.8, 0.5, 0.4, 0.4, 0.9, 0.3],
    [0.4, 3.4, 0.7, 0.6, 0.4, 2.3, 0.5, 0.4],
    [0.5, 0.3, 0.6, 0.4, 0.5, 0.8, 0.3, 0.5, 0.3],
]
PERCENT = [
    [100],
    [55, 45],
    [28, 51, 21],
    [26, 35, 21, 17],
    [4, 81, 5, 5, 4],
    [16, 24, 14, 17, 16, 13],
    [12, 18, 14, 12, 12, 20, 11],
    [3, 60, 4, 4, 3, 20, 3, 3],
    [11, 9, 13, 10, 11, 15, 9, 11, 9],
]
"""True values, where the post had evened its rows out to 100."""
IDS = {token: i for i, token in enumerate(tr.VOCABULARY)}
CAT, MAT, THE = IDS["cat"], IDS["mat"], IDS["the"]
ATOL = 1e-12


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tr.as_model().requires_grad_(False)


@pytest.fixture(scope="module")
def cache(model: Transformer) -> Any:
    return model.run_with_cache(tr.token_ids()[None])[1]


def grid(cache: Any, name: str) -> Tensor:
    found: Tensor = cache[f"blocks.0.attn.{name}"][0, 0]
    return found


def by_hand(position: int, candidate: str) -> float:
    """Route 1 plus route 2 in plain Python, from the post's scores and tables; position from 1."""
    weights = [math.exp(score) for score in SCORES[position - 1]]
    answer = float(tr.BIGRAM[IDS[tr.SEQUENCE[position - 1]], IDS[candidate]])
    for weight, source in zip(weights, tr.SEQUENCE, strict=False):
        answer += weight / sum(weights) * float(tr.OV[IDS[source], IDS[candidate]])
    return answer


def at_position_8(model: Transformer) -> tuple[Tensor, Tensor, Tensor]:
    """Route 1, route 2 and the logits."""
    paths = expand(model, tr.token_ids()[None], 7, quiet=True)
    return paths["token"].vector, paths["token > 0.0"].vector, paths.logits


# The weights


def test_the_circuits_are_the_tables_and_no_weight_is(model: Transformer) -> None:
    """To rounding; in the weights themselves every direction is turned, so that no entry is 0."""
    for circuit, table in (
        (bigram(model), tr.BIGRAM),
        (qk(model, (0, 0), scaled=True), tr.QK),
        (ov(model, (0, 0)), tr.OV),
    ):
        t.testing.assert_close(circuit.map.dense(), table, rtol=0, atol=ATOL)
    for name, weight in model.named_parameters():
        assert bool((weight == 0).all() if ".b_" in name else (weight != 0).all()), name


def test_the_head_is_a_narrow_door(model: Transformer) -> None:
    """In the stream's 12 directions its OV circuit has rank d_head, 6."""
    door = ov(model, (0, 0), rows="stream", columns="stream").map.dense()

    assert door.shape == (12, 12) and t.linalg.matrix_rank(door) == 6


# By hand: where to look


def test_every_score_of_the_post(model: Transformer, cache: Any) -> None:
    """Along the sentence, masked: off the pass, off the QK circuit, and as paths, for each cell."""
    masked, tokens = grid(cache, "attn_scores_masked"), tr.token_ids()
    circuit = qk(model, (0, 0), scaled=True).map
    for i, row in enumerate(SCORES):
        assert masked[i, : i + 1].tolist() == pytest.approx(row, abs=ATOL)
        assert masked[i, i + 1 :].tolist() == [-math.inf] * (8 - i)
        here = tokens[i].repeat(i + 1)
        assert circuit.entries(here, tokens[: i + 1]).tolist() == pytest.approx(row, abs=ATOL)
        for j, score in enumerate(row):
            pairs = expand_score(model, tokens[None], (0, 0), i, j, quiet=True)
            assert pairs.value("token", "token") * pairs.scale == pytest.approx(score, abs=ATOL)


def test_the_sentence_fixes_thirty_of_thirty_six_scores() -> None:
    """The pairs that no causal cell shows are exactly those marked as ours."""
    shown = {(tr.SEQUENCE[i], tr.SEQUENCE[j]) for i in range(9) for j in range(i + 1)}
    every = {(a, b) for a in tr.VOCABULARY for b in tr.VOCABULARY}

    assert len(shown) == 30
    assert every - shown == tr.OURS


def test_exponentials_of_row_8(cache: Any) -> None:
    """Row 8's exponentials are 1.4918, 29.9641, ... and add up to 49.90."""
    powers = grid(cache, "attn_scores_masked")[7].exp()

    expected = [1.4918, 29.9641, 2.0138, 1.8221, 1.4918, 9.9742, 1.6487, 1.4918, 0.0]
    assert powers.tolist() == pytest.approx(expected, abs=5e-5)
    assert powers.sum().item() == pytest.approx(49.8983, abs=5e-5)
    assert (powers[1] / powers[5]).item() == pytest.approx(math.exp(1.1))


def test_true_percentages_of_the_pattern(cache: Any) -> None:
    """Every cell of A rounds to its true percentage; row 8 gives cat 0.6005 and mat 0.1999."""
    pattern = grid(cache, "attn_pattern")
    percent = (100 * pattern).round().int()

    for i, row in enumerate(PERCENT):
        assert percent[i].tolist() == row + [0] * (8 - i)
    assert pattern[7, [1, 5]].tolist() == pytest.approx([0.6005, 0.1999], abs=5e-5)


def test_reading_the_pattern(cache: Any) -> None:
    """Rows share out 1, columns need not; the future gets nothing; both later `the`s read `cat`."""
    pattern = grid(cache, "attn_pattern")

    t.testing.assert_close(pattern.sum(1), t.ones(9, dtype=t.float64), rtol=0, atol=1e-15)
    assert not t.allclose(pattern.sum(0), t.ones(9, dtype=t.float64), atol=0.01)
    assert pattern[1, 7] == 0 and round(pattern[7, 1].item(), 2) == 0.60
    assert pattern[:, 1].topk(2).indices.tolist() == [4, 7]
    assert (pattern[:, 1] > 0.55).nonzero().flatten().tolist() == [4, 7]


def test_unmasked_the_answer_ties_for_the_most_attention(cache: Any) -> None:
    """Without the mask, position 8 scores position 9 at 3.4: it and position 2 get 37.5% each."""
    scores = grid(cache, "attn_scores")[7] / 6**0.5
    shares = scores.softmax(-1)

    assert scores[8].item() == pytest.approx(3.4, abs=ATOL)
    assert shares[[1, 8]].tolist() == pytest.approx([0.375, 0.375], abs=5e-4)


# By hand: what comes of it


def test_route_1_alone_remembers_one_token(model: Transformer) -> None:
    """Over the first three positions it says mat (wrong), sat and on (right)."""
    tokens = tr.token_ids()[None]
    rows = t.stack([expand(model, tokens, i, quiet=True)["token"].vector for i in range(3)])

    assert [tr.VOCABULARY[i] for i in rows.argmax(1).tolist()] == ["mat", "sat", "on"]
    assert rows.amax(1).tolist() == pytest.approx([4.1, 3.9, 4.2], abs=ATOL)


def test_both_routes_at_position_8(model: Transformer) -> None:
    """Route 1 gives mat 4.1 and cat 3.7; route 2 adds 0.42 and 3.06; cat wins, 6.76 to 4.52."""
    direct, head, total = at_position_8(model)

    assert direct[[MAT, CAT]].tolist() == pytest.approx([4.1, 3.7], abs=ATOL)
    assert head[[MAT, CAT]].tolist() == pytest.approx([0.4201, 3.0588], abs=5e-5)
    assert total.tolist() == pytest.approx(
        [0.1725, 6.7588, 0.5092, 0.2372, 4.5201, 0.0795], abs=5e-5
    )
    assert (direct.argmax(), total.argmax()) == (MAT, CAT)


def test_what_each_position_brings_to_position_8(model: Transformer) -> None:
    """0.60 x 5.0 to cat from position 2, 0.20 x 2.0 to mat from 6, under 0.1 from all others."""
    routes = decompose(model, tr.token_ids()[None], 7)
    to_cat, to_mat = routes.by_source(0, 0, CAT), routes.by_source(0, 0, MAT)

    assert to_cat[1].item() == pytest.approx(0.6005 * 5.0, abs=5e-4)
    assert to_mat[5].item() == pytest.approx(0.1999 * 2.0, abs=5e-4)
    assert 0 < to_cat.sum() - to_cat[1] < 0.1 and 0 < to_mat.sum() - to_mat[5] < 0.1


@pytest.mark.parametrize("candidate", tr.VOCABULARY)
@pytest.mark.parametrize("position", range(1, 10))
def test_every_logit_by_plain_arithmetic(cache: Any, position: int, candidate: str) -> None:
    """Each logit is the bigram cell plus a softmax-weighted sum of OV cells."""
    logit = cache["unembed.logits"][0, position - 1, IDS[candidate]].item()

    assert logit == pytest.approx(by_hand(position, candidate), rel=1e-12, abs=ATOL)


def test_the_head_copies(model: Transformer) -> None:
    """Looking at a token speaks for that token: six positive eigenvalues, a score beyond chance."""
    (eigenvalues,) = ov_eigenvalues(model)[0]
    (found,) = copying_scores(model)

    assert ov(model, (0, 0)).map.dense().argmax(1).tolist() == list(range(6))
    assert bool((eigenvalues.real > 0).all())
    assert eigenvalues.real.sum().item() == pytest.approx(0.9 + 5.0 + 4.1 + 3.4 + 2.0 + 1.8)
    assert found.score == pytest.approx(1.0) and found.beyond


def test_the_skip_trigram(model: Transformer) -> None:
    """[cat] ... [the] -> [cat] is the strongest, and adds 0.6005 x (5.0 - 5.3 / 6) here."""
    others = tuple(IDS[token] for token in ("the", "sat", "on", "the", "mat", "."))
    (found,) = find_skip_trigrams(
        model, top=1, sources=[CAT], competition=Competition(n_others=0, always=others)
    ).found
    (strongest,) = find_skip_trigrams(model, top=1).found

    assert (found.source, found.destination, found.output) == (CAT, THE, CAT)
    assert found.effect == pytest.approx(0.6005 * (5.0 - 5.3 / 6), abs=5e-4)
    assert strongest.name == found.name


# Laws


def test_the_formula(model: Transformer, cache: Any) -> None:
    """T = Id x W_U W_E + A x W_U W_OV W_E, the paper's way round, as one matrix: the logits."""
    A, one_hot = grid(cache, "attn_pattern"), t.eye(6, dtype=t.float64)[tr.token_ids()]
    attn = model.blocks[0].attn
    W_E, W_U, W_V, W_O = model.embed.W_E.T, model.unembed.W_U.T, attn.W_V[0].T, attn.W_O[0].T
    T = t.kron(t.eye(9, dtype=t.float64), W_U @ W_E) + t.kron(A, W_U @ (W_O @ W_V) @ W_E)

    logits = cache["unembed.logits"][0]
    t.testing.assert_close((T @ one_hot.flatten()).view(9, 6), logits, rtol=0, atol=ATOL)


def test_with_a_held_the_rest_is_linear(model: Transformer) -> None:
    """A cat at position 6 in place of mat adds 0.1999 x (5.0 - 0.2) to cat; A anew adds more."""
    tokens = tr.token_ids()[None]
    other = tokens.clone()
    other[0, 5] = CAT
    before = model(tokens)[0, 7, CAT]

    def at_8() -> float:
        with listen(model, "embed.out", lambda name, _: model.embed.W_E[other], edits=True):
            return float(model(tokens)[0, 7, CAT] - before)

    with freeze(model, tokens):
        assert at_8() == pytest.approx(0.1999 * 4.8, abs=5e-4)
    assert at_8() == pytest.approx(float(model(other)[0, 7, CAT] - before)) and at_8() > 1.2
