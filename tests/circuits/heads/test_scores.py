"""Previous-token and induction scores: heads built by hand are named, chance is not."""

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.chance import chance_of
from pvml.circuits.heads.names import HeadScore, describe_heads
from pvml.circuits.heads.scores import find_heads
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

D_VOCAB, N_CTX, BOS = 41, 47, 0
SHARP = 200.0
"""Scores so far apart that a head looks at one position only."""


def random_text(n: int = 61, seed: int = 0) -> Tensor:
    tokens = t.randint(1, D_VOCAB, (n, N_CTX), generator=t.Generator().manual_seed(seed))
    tokens[:, 0] = BOS
    return tokens


def text_in_pairs(n: int = 61, seed: int = 0) -> Tensor:
    """Rows in which every token 2k + 1 is followed by 2k + 2, the pairs in random order."""
    keys = t.rand(n, (D_VOCAB - 1) // 2, generator=t.Generator().manual_seed(seed))
    first = 2 * keys.argsort(1) + 1
    pairs = t.stack([first, first + 1], -1).flatten(1)
    return t.cat([t.full((n, 1), BOS), pairs], 1)


def by_hand(n_layers: int = 2) -> dict[str, Tensor]:
    """Zero weights of a model whose stream has room for token, position and previous token."""
    weights = Transformer(config(n_layers), seed=0).double().state_dict()
    weights = {name: t.zeros_like(value) for name, value in weights.items()}
    weights["embed.W_E"][:, :D_VOCAB] = t.eye(D_VOCAB)
    weights["pos_embed.W_pos"][:, D_VOCAB : D_VOCAB + N_CTX] = t.eye(N_CTX)
    return weights


def config(n_layers: int) -> Config:
    return Config(
        d_model=2 * D_VOCAB + N_CTX,
        n_heads=3,
        d_head=N_CTX,
        n_layers=n_layers,
        n_ctx=N_CTX,
        d_vocab=D_VOCAB,
        attn_only=True,
        normalization="none",
    )


def loaded(weights: dict[str, Tensor], n_layers: int = 2) -> Transformer:
    model = Transformer(config(n_layers), seed=0).double()
    model.load_state_dict(weights)
    return model


def put_previous_token_head(weights: dict[str, Tensor], head: int = 1) -> None:
    """In layer 0: position p asks for p - 1, and copies its token into the third part."""
    at = slice(D_VOCAB, D_VOCAB + N_CTX)
    weights["blocks.0.attn.W_Q"][head, at] = SHARP * t.eye(N_CTX).roll(-1, 1)
    weights["blocks.0.attn.W_Q"][head, D_VOCAB] = 0  # position 0 has nothing before it
    weights["blocks.0.attn.W_K"][head, at] = t.eye(N_CTX)
    weights["blocks.0.attn.W_V"][head, :D_VOCAB, :D_VOCAB] = t.eye(D_VOCAB)
    weights["blocks.0.attn.W_O"][head, :D_VOCAB, D_VOCAB + N_CTX :] = t.eye(D_VOCAB)


def put_induction_head(weights: dict[str, Tensor], head: int = 2) -> None:
    """In layer 1: a token asks for the position whose previous token it is."""
    weights["blocks.1.attn.W_Q"][head, :D_VOCAB, :D_VOCAB] = SHARP * t.eye(D_VOCAB)
    weights["blocks.1.attn.W_K"][head, D_VOCAB + N_CTX :, :D_VOCAB] = t.eye(D_VOCAB)


def put_pair_head(weights: dict[str, Tensor], head: int = 0) -> None:
    """In layer 0: every token 2k + 2 asks for the token 2k + 1, wherever it stands."""
    asks = t.zeros(D_VOCAB, D_VOCAB)
    for second in range(2, D_VOCAB, 2):
        asks[second, second - 1] = SHARP
    weights["blocks.0.attn.W_Q"][head, :D_VOCAB, :D_VOCAB] = asks
    weights["blocks.0.attn.W_K"][head, :D_VOCAB, :D_VOCAB] = t.eye(D_VOCAB)


def put_fixed_offset_head(weights: dict[str, Tensor], offset: int, head: int = 0) -> None:
    """In layer 1: position p asks for p - offset, whatever stands there."""
    at = slice(D_VOCAB, D_VOCAB + N_CTX)
    asks = SHARP * t.eye(N_CTX).roll(-offset, 1)
    asks[:offset] = 0
    weights["blocks.1.attn.W_Q"][head, at] = asks
    weights["blocks.1.attn.W_K"][head, at] = t.eye(N_CTX)


def named(scores: list[HeadScore]) -> set[tuple[str, int, int]]:
    return {(s.kind, s.layer, s.head) for s in scores if s.beyond}


def one(scores: list[HeadScore], kind: str, layer: int, head: int) -> HeadScore:
    return next(s for s in scores if (s.kind, s.layer, s.head) == (kind, layer, head))


# By hand


def test_the_two_heads_of_an_induction_circuit_are_named_and_no_others() -> None:
    """A previous-token head and an induction head, written as weights, both score 1."""
    weights = by_hand()
    put_previous_token_head(weights)
    put_induction_head(weights)
    scores = find_heads(loaded(weights), random_text())

    assert named(scores) == {("previous-token", 0, 1), ("induction", 1, 2)}
    for kind, layer, head in named(scores):
        score = one(scores, kind, layer, head)
        assert score.score == pytest.approx(1, abs=0.02)
        assert score.null_mean < 0.1
        assert score.p < 0.001


def test_without_the_layer_below_induction_does_not_form() -> None:
    """The same layer 1 with no previous-token head under it has nothing to match."""
    weights = by_hand()
    put_induction_head(weights)

    assert named(find_heads(loaded(weights), random_text())) == set()


def test_a_head_that_follows_tokens_reads_no_place() -> None:
    """A head that looks for a token's partner hits the place before, but finds it elsewhere too."""
    weights = by_hand()
    put_pair_head(weights)
    score = one(find_heads(loaded(weights), text_in_pairs()), "previous-token", 0, 0)

    assert score.score > 0.5
    assert score.null_mean > 0.4
    assert not score.beyond


def test_a_head_that_reads_so_far_back_is_no_induction_head() -> None:
    """A head that looks 22 back is right in every repetition of 23, but does so without one too."""
    period = (N_CTX - 1) // 2
    weights = by_hand()
    put_fixed_offset_head(weights, period - 1)
    score = one(find_heads(loaded(weights), random_text()), "induction", 1, 0)

    assert score.score == pytest.approx(1)
    assert score.null_mean == pytest.approx(1)
    assert not score.beyond


def test_a_head_two_back_is_not_a_previous_token_head() -> None:
    """The name goes to a head that reads the place before more than any other place nearby."""
    weights = by_hand()
    put_fixed_offset_head(weights, 2)

    assert named(find_heads(loaded(weights), random_text())) == set()


def test_the_chance_of_a_difference_by_hand() -> None:
    """Four equal differences: 1 of 16 tosses keeps every sign; differences of 0 are no news."""
    columns = t.tensor([[1.0, 0.0, -1.0]] * 4, dtype=t.float64)
    chances = chance_of(columns, 3, t.Generator().manual_seed(0))

    assert chances == pytest.approx([1 / 16, 1, 1], abs=0.02)


# Laws


@pytest.mark.parametrize("init_range", [0.02, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_an_untrained_model_claims_nothing(seed: int, init_range: float) -> None:
    """Random weights, small or so large that attention is sharp, earn no head a name."""
    cfg = Config(
        d_model=24,
        n_heads=4,
        n_layers=2,
        n_ctx=N_CTX,
        d_vocab=D_VOCAB,
        attn_only=True,
        init_range=init_range,
    )
    for text in (random_text(seed=seed), text_in_pairs(seed=seed)):
        scores = find_heads(Transformer(cfg, seed=seed), text, seed=seed)

        assert named(scores) == set()
        assert len(scores) == 2 * 2 * 4


def test_uniform_attention_is_its_own_null() -> None:
    """A model of zeros attends evenly: the shuffled score is the plain one, rows counting alike."""
    scores = find_heads(loaded(by_hand()), random_text(n=331), n_sequences=331)
    even = sum(1 / (i + 1) for i in range(11, N_CTX)) / (N_CTX - 11)

    for score in scores:
        if score.kind == "previous-token":
            assert score.score == pytest.approx(even, rel=1e-9)
            assert score.null_mean == pytest.approx(even, rel=0.02)
        else:
            assert score.score == pytest.approx(score.null_mean, rel=1e-9)


def test_the_same_seed_gives_the_same_scores() -> None:
    """Neither torch's generator nor the order of calls matters, and the generator is left alone."""
    model = Transformer(config(2), seed=5)
    t.manual_seed(1)
    before = t.get_rng_state()
    scores = find_heads(model, random_text(), seed=11)
    assert t.equal(t.get_rng_state(), before)
    t.manual_seed(2)

    assert find_heads(model, random_text(), seed=11) == scores
    assert find_heads(model, random_text(), seed=12) != scores


def test_too_few_sequences_name_nothing() -> None:
    """With 5 rows even a perfect head could be chance: 1 of 32 tosses, for each of 12 scores."""
    weights = by_hand()
    put_previous_token_head(weights)
    scores = find_heads(loaded(weights), random_text(n=5))
    score = one(scores, "previous-token", 0, 1)

    assert score.score == pytest.approx(1, abs=0.02)
    assert score.p == pytest.approx(12 / 32, rel=0.2)
    assert not score.beyond


# Contracts


def test_the_sentences() -> None:
    """Found heads are listed, strongest first; a kind that has none says that none formed."""
    weights = by_hand()
    put_previous_token_head(weights)
    text = describe_heads(find_heads(loaded(weights), random_text()))
    first, second = text.splitlines()

    assert first.startswith("Previous-token heads (layer.head): 0.1 (score 1.00; shuffled 0.0")
    assert first.endswith("p < 0.001).")
    assert second.startswith("No induction head formed: the nearest to one is ")
    assert describe_heads([]) == "This model has no heads."


def test_a_model_without_layers_has_no_heads() -> None:
    """A bigram model gives no scores."""
    cfg = Config(d_model=7, n_heads=1, n_layers=0, n_ctx=N_CTX, d_vocab=D_VOCAB)

    assert find_heads(Transformer(cfg, seed=0), random_text()) == []


@pytest.mark.parametrize("posn", [8, 9, 13])
def test_short_rows_are_measured(posn: int) -> None:
    """From 8 tokens a row on, every score is a share between 0 and 1."""
    cfg = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=posn, d_vocab=D_VOCAB, attn_only=True)
    scores = find_heads(Transformer(cfg, seed=0), random_text())

    assert len(scores) == 6
    assert all(0 <= s.score <= 1 and 0 <= s.null_mean <= 1 and 0 < s.p <= 1 for s in scores)


def test_what_is_too_short_is_refused() -> None:
    """Rows under 8 tokens, texts of under 8 distinct tokens, and no rows are each named."""
    model = loaded(by_hand())
    with pytest.raises(PvmlError, match="at least 8 tokens a row .*got 7"):
        find_heads(model, random_text()[:, :7])
    with pytest.raises(PvmlError, match="at least 8 distinct tokens .*got 2"):
        find_heads(model, random_text() % 3)
    with pytest.raises(PvmlError, match="at least one row"):
        find_heads(model, random_text()[:0])


def test_ids_of_another_vocabulary_are_refused(make_model) -> None:
    """Heads are looked for in the model's own tokens, without layers too."""
    with pytest.raises(PvmlError, match="token id 29 is outside"):
        find_heads(make_model(n_layers=0), t.full((2, 11), 29))
