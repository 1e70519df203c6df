"""Random heads: what they do is what the model does with their weights in it."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.heads.patterns import Question, Texts
from pvml.circuits.heads.random_heads import chance_of_share, random_shares

N = 100


def questions(tokens: Tensor) -> list[Question]:
    texts = Texts.draw(tokens, tokens.shape[1], len(tokens), t.Generator().manual_seed(0))
    kinds = ("previous-token", "first-token", "duplicate-token")
    return [texts.trial(kind, "natural", t.Generator().manual_seed(1)).question for kind in kinds]


@pytest.fixture
def text() -> Tensor:
    tokens = t.randint(1, 7, (5, 11), generator=t.Generator().manual_seed(0))
    tokens[:, 0] = 0
    return tokens


def dense_shares(model: Any, tokens: Tensor, question: Question) -> Tensor:
    """The mean over all readers of all sequences, each counted alike: (n_layers, n_heads)."""
    with t.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter="blocks.*.attn.attn_pattern")
    answers, rows = [], t.arange(len(tokens))[:, None]
    counted = t.zeros(tokens.shape, dtype=t.float64).scatter_reduce(
        1, question.readers, question.weights, "amax"
    )
    for layer in range(model.cfg.n_layers):
        shares = cache[f"blocks.{layer}.attn.attn_pattern"][
            rows, :, question.readers, question.read
        ]
        answers.append((shares * question.weights[..., None]).sum((0, 1)) / counted.sum())
    return t.stack(answers)


def test_the_models_own_heads_by_brute_force(text: Tensor, make_model: Any) -> None:
    """With few enough readers to take them all, the sample is the whole text."""
    model = make_model()
    asked = questions(text)
    real, _ = random_shares(model, text, asked, N, t.Generator().manual_seed(0))

    for of_question, question in zip(real, asked, strict=True):
        assert t.allclose(of_question, dense_shares(model, text, question), atol=1e-6)


@pytest.mark.parametrize("positions", ["none", "standard", "shortformer"])
@pytest.mark.parametrize("changes", [{}, {"normalization": "none", "attn_only": True}])
def test_random_heads_put_into_the_model(
    positions: str, changes: dict[str, Any], text: Tensor, make_model: Any, monkeypatch: Any
) -> None:
    """Drawn weights with the real norms of W_Q W_K^T and b_Q W_K^T do what their shares say."""
    model = make_model(positions=positions, **changes)
    asked = questions(text)
    weights: list[Tensor] = []
    draw = t.randn

    def kept(*shape: int, **settings: Any) -> Tensor:
        weights.append(draw(*shape, **settings))
        return weights[-1]

    monkeypatch.setattr(t, "randn", kept)
    _, null = random_shares(model, text, asked, N, t.Generator().manual_seed(0))
    assert [len(drawn) for drawn in weights] == [N] * 6  # three for each layer, in one part
    layer, head, number = 1, 2, 17
    attn = model.blocks[layer].attn
    W_Q, W_K, b_Q = (drawn[number].double() for drawn in weights[3 * layer :])
    norm = (attn.W_Q[head] @ attn.W_K[head].T).norm() / (W_Q @ W_K.T).norm()
    leaning = (attn.W_K[head] @ attn.b_Q[head]).norm() / (W_K @ b_Q).norm()
    with t.no_grad():
        attn.W_Q[head], attn.W_K[head], attn.b_Q[head] = norm * W_Q, W_K, leaning * b_Q

    for of_question, question in zip(null, asked, strict=True):
        own = dense_shares(model, text, question)[layer, head]
        assert float(of_question[layer, head, number]) == pytest.approx(float(own), abs=1e-6)


def test_how_a_head_is_scaled_does_not_matter(text: Tensor, make_model: Any) -> None:
    """W_Q and b_Q times 8 and W_K over 8 are the same head, and have the same null."""
    model = make_model()
    _, before = random_shares(model, text, questions(text), N, t.Generator().manual_seed(0))
    with t.no_grad():
        for block in model.blocks:
            block.attn.W_Q *= 8
            block.attn.b_Q *= 8
            block.attn.W_K /= 8
            block.attn.b_K += 3.0
    _, after = random_shares(model, text, questions(text), N, t.Generator().manual_seed(0))

    assert t.allclose(before, after, atol=1e-6)


def test_the_chance_of_a_share() -> None:
    """A share among those of its null is chance, one far above it in log-odds is not."""
    null = (t.randn(200, generator=t.Generator().manual_seed(0)).double() - 3).sigmoid()

    assert chance_of_share(float(null.median()), null) == pytest.approx(0.5, abs=0.03)
    assert chance_of_share(0.9, null) < 1e-5
    assert chance_of_share(0.3, null) == pytest.approx(0.016, abs=0.03)
    assert chance_of_share(0.2, t.full((200,), 0.2, dtype=t.float64)) == 1


def test_heads_that_never_look_do_not_widen_the_null() -> None:
    """Half of the null at 1e-20 leaves its upper half what it is."""
    null = (0.3 * t.randn(200, generator=t.Generator().manual_seed(0)).double() - 3).sigmoid()
    blind = null.where(null >= null.median(), 1e-20)

    assert chance_of_share(0.9, blind) < 1e-10
    # and a null that reaches both ends has no share beyond it
    ends = t.tensor([1e-20, 1 - 1e-7], dtype=t.float64).repeat(100)
    assert chance_of_share(1.0, ends) > 0.4
