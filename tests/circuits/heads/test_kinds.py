"""Every kind of head beside both nulls: one written as weights is named that, chance is not."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch as t
from rich.console import Console
from torch import Tensor

from pvml.circuits.heads.names import (
    HeadScore,
    RandomHeads,
    best_heads,
    describe_heads,
    head_table,
)
from pvml.circuits.heads.patterns import Kind
from pvml.circuits.heads.scores import find_heads, head_scores
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

D_VOCAB, N_CTX, BOS = 23, 31, 0
SHARP = 200.0
TOKEN, PLACE, BEFORE = slice(0, 23), slice(23, 54), slice(54, 77)
"""What the stream of a model by hand has room for."""
BOTH = ("natural", "repeated")


@pytest.fixture
def text() -> Tensor:
    tokens = t.randint(1, D_VOCAB, (40, N_CTX), generator=t.Generator().manual_seed(0))
    tokens[:, 0] = BOS
    return tokens


def by_hand(*layers: dict[int, Tensor], n_heads: int = 5) -> Transformer:
    """A model of heads whose W_Q W_K^T is given; those that are not attend evenly.

    Head 0 of layer 0 hands on the token that it reads.
    """
    cfg = Config(
        d_model=77,
        n_heads=n_heads,
        d_head=77,
        n_layers=len(layers),
        n_ctx=N_CTX,
        d_vocab=D_VOCAB,
        attn_only=True,
        normalization="none",
    )
    model = Transformer(cfg, seed=0)
    with t.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, TOKEN] = t.eye(D_VOCAB)
        model.pos_embed.W_pos[:, PLACE] = t.eye(N_CTX)
        for block, heads in zip(model.blocks, layers, strict=True):
            for head, asks in heads.items():
                block.attn.W_Q[head] = SHARP * asks
                block.attn.W_K[head] = t.eye(77)
        model.blocks[0].attn.W_V[0, TOKEN, TOKEN] = t.eye(D_VOCAB)
        model.blocks[0].attn.W_O[0, TOKEN, BEFORE] = t.eye(D_VOCAB)
    return model


def asking(*parts: tuple[slice, slice, Tensor]) -> Tensor:
    found = t.zeros(77, 77)
    for queries, keys, scores in parts:
        found[queries, keys] += scores
    return found


SAME_TOKEN = asking((TOKEN, TOKEN, t.eye(D_VOCAB)))
ITSELF = asking((PLACE, PLACE, t.eye(N_CTX)))
PREVIOUS = asking((PLACE, PLACE, t.ones(N_CTX - 1).diag(-1)))
FIRST = asking((PLACE, PLACE, t.eye(N_CTX)[:1].expand(N_CTX, -1)))
INDUCTION = asking((TOKEN, BEFORE, t.eye(D_VOCAB)))


def named(scores: list[HeadScore]) -> set[tuple[str, str, int, int]]:
    return {(s.kind, s.text, s.layer, s.head) for s in scores if s.beyond}


# By hand


def test_heads_that_do_one_thing_are_named_exactly_that(text: Tensor) -> None:
    """Five heads of the five kinds, and five that attend evenly, on natural and repeated text."""
    duplicate = SAME_TOKEN - 1.5 * ITSELF
    model = by_hand({0: PREVIOUS, 1: ITSELF, 2: FIRST, 3: duplicate}, {4: INDUCTION})
    scores = head_scores(model, text, n_random=100)
    made: dict[Kind, tuple[int, int]] = {
        "previous-token": (0, 0),
        "current-token": (0, 1),
        "first-token": (0, 2),
        "duplicate-token": (0, 3),
        "induction": (1, 4),
    }

    assert named(scores) == {(kind, text, *head) for kind, head in made.items() for text in BOTH}
    assert len(scores) == 5 * 2 * 10
    for score in scores:
        assert score.random is not None
        if score.beyond:
            assert score.score > 0.9
            assert max(score.null_mean, score.random.mean) < 0.2
        else:
            assert score.excess < 0.1


def test_a_head_after_its_own_token_is_of_two_kinds(text: Tensor) -> None:
    """Token identity alone finds the current token and its duplicates alike, and is named both."""
    scores = head_scores(by_hand({1: SAME_TOKEN}), text, n_random=100)

    assert named(scores) == {
        (kind, text, 0, 1) for kind in ("current-token", "duplicate-token") for text in BOTH
    }


def test_positions_that_any_head_follows_are_explained_by_random_heads(text: Tensor) -> None:
    """Where all positions share a part and the first is large, random heads park: none is named."""
    cfg = Config(d_model=32, n_heads=16, n_layers=1, n_ctx=N_CTX, d_vocab=D_VOCAB, attn_only=True)
    model = Transformer(cfg, seed=0)
    with t.no_grad():
        rng = t.Generator().manual_seed(0)
        model.pos_embed.W_pos += 0.1 * t.randn(32, generator=rng)
        model.pos_embed.W_pos[0] = t.randn(32, generator=rng)
        model.blocks[0].attn.W_Q *= 40
        model.blocks[0].attn.W_K *= 40
    scores = head_scores(model, text, kinds=["first-token"], n_random=100)
    parked = [s for s in scores if s.score > 0.5]

    assert len(parked) > 2
    assert {s.verdict for s in parked} == {"explained by random heads"}
    assert named([replace(s, random=None) for s in parked])
    assert named(scores) == set()
    assert "Random heads could do as much as 0." in describe_heads(scores)


def test_a_head_that_always_reads_one_token_is_no_duplicate_token_head(text: Tensor) -> None:
    """It is right whenever that token asks, and the twin finds it as often when another does."""
    text[:, 1:] = t.where(text[:, 1:] < 16, 1, text[:, 1:])  # most tokens are the same one
    follows_one = asking((slice(0, 54), TOKEN, t.eye(D_VOCAB)[1:2].expand(54, -1)))
    scores = head_scores(
        by_hand({0: follows_one}), text, kinds=["duplicate-token"], texts=["natural"], n_random=0
    )

    assert scores[0].score > 0.5
    assert scores[0].score - scores[0].null_mean < 0.05
    assert scores[0].verdict != "named"


# Laws


@pytest.mark.parametrize(
    ("changes", "sharpness"),
    [
        ({"positions": "none"}, 0.02),
        ({"positions": "none", "d_head": 2, "attn_only": False}, 2.0),
        ({"positions": "standard", "normalization": "none"}, 1.0),
        ({"positions": "standard", "d_head": 3}, 3.0),
        ({"positions": "shortformer", "n_heads": 1}, 0.5),
        ({"positions": "shortformer", "attn_only": False}, 3.0),
    ],
)
def test_an_untrained_model_claims_nothing(
    changes: dict[str, Any], sharpness: float, text: Tensor
) -> None:
    """Random weights of several shapes, with attention even or sharp, earn no head a name."""
    sizes = {"d_model": 24, "n_heads": 4, "n_layers": 1, "n_ctx": N_CTX, "d_vocab": D_VOCAB}
    cfg = Config(**{**sizes, "attn_only": True, "init_range": sharpness, **changes})
    scores = head_scores(Transformer(cfg, seed=1), text, n_random=100, seed=1)

    assert named(scores) == set()
    assert len(scores) == 10 * cfg.n_heads
    for score in scores:
        assert score.random is not None
        assert min(score.score, score.null_mean, score.random.mean) >= 0
        assert 0 < min(score.p, score.random.p) <= max(score.p, score.random.p) <= 1


def test_even_attention_is_what_its_nulls_are(text: Tensor) -> None:
    """Heads of zeros: random heads of norm 0 do the same to the last digit, which is no news."""
    for score in head_scores(by_hand({}), text, n_random=100):
        assert score.random is not None
        assert score.random.p == 1
        assert score.random.spread < 1e-6
        assert abs(score.score - score.null_mean) < 0.01


def test_a_score_does_not_depend_on_what_else_is_asked(text: Tensor) -> None:
    """Only its p does, which counts the scores tried; `find_heads` gives the same ones."""
    model = by_hand({0: PREVIOUS}, {4: INDUCTION})
    scores = head_scores(model, text, n_random=0)
    fewer = head_scores(model, text, kinds=["induction"], texts=["repeated"], n_random=0)
    found = find_heads(model, text)
    of_all = {(s.kind, s.text, s.layer, s.head): s for s in scores}

    assert len(fewer) == 10
    assert len(found) == 20
    for score in [*fewer, *found]:
        same = of_all[score.kind, score.text, score.layer, score.head]
        assert replace(same, p=score.p) == score


def test_the_p_of_random_heads_counts_the_scores_tried(text: Tensor) -> None:
    """The only score has the plain chance; of 2 layers of 3 heads on 2 texts, 12 times that."""
    blurred = 0.01 * t.randn(77, 77, generator=t.Generator().manual_seed(0)) + 0.01 * PREVIOUS
    alone, among = by_hand({0: blurred}, n_heads=1), by_hand({0: blurred}, {}, n_heads=3)
    (single,) = head_scores(alone, text, kinds=["previous-token"], texts=["natural"], n_random=100)
    of_all = head_scores(among, text, kinds=["previous-token"], n_random=100)
    same = of_all[0]

    assert len(of_all) == 12 and (same.text, same.layer, same.head) == ("natural", 0, 0)
    assert single.random is not None and same.random is not None
    assert same.random.mean == pytest.approx(single.random.mean, rel=1e-4)
    assert 1e-4 < single.random.p < 1 / 12
    assert same.random.p == pytest.approx(12 * single.random.p, rel=1e-3)


def test_the_same_seed_gives_the_same_scores(text: Tensor) -> None:
    """And torch's own generator is left alone."""
    model = Transformer(
        Config(d_model=12, n_heads=2, n_layers=1, n_ctx=N_CTX, d_vocab=D_VOCAB), seed=0
    )
    before = t.get_rng_state()
    scores = head_scores(model, text, n_random=100, seed=3)

    assert t.equal(t.get_rng_state(), before)
    assert head_scores(model, text, n_random=100, seed=3) == scores
    assert head_scores(model, text, n_random=100, seed=4) != scores


# Contracts


def test_text_in_which_no_token_comes_back(text: Tensor) -> None:
    """It gets no score of the two kinds that ask for it; alone, they are refused."""
    rows = t.stack([t.randperm(D_VOCAB - 1) + 1 for _ in range(len(text))])
    rows = t.cat([text[:, :1], rows], 1)
    model = by_hand({}, n_heads=1)
    scores = head_scores(model, rows, n_random=0)

    assert len(scores) == 8
    assert not [s for s in scores if s.text == "natural" and s.kind in get_args(Kind)[3:]]
    with pytest.raises(PvmlError, match="no token of this text comes back"):
        head_scores(model, rows, kinds=["induction"], texts=["natural"])


def test_half_precision_and_no_layers(text: Tensor) -> None:
    """A bfloat16 model is read like any; one without layers has no heads."""
    cfg = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=9, d_vocab=D_VOCAB)
    scores = head_scores(Transformer(cfg, seed=0).bfloat16(), text, n_random=100)

    assert {s.kind for s in scores if s.text == "repeated"} == set(get_args(Kind))
    assert named(scores) == set()
    assert head_scores(Transformer(replace(cfg, n_layers=0), seed=0), text) == []


def test_what_cannot_be_asked_is_refused(text: Tensor) -> None:
    """No kinds, too few random heads, and a model that is not finite are each named."""
    model = by_hand({}, n_heads=1)
    with pytest.raises(PvmlError, match="kinds must be some of previous-token, current-token"):
        head_scores(model, text, kinds=[])
    for n in (-1, 99):
        with pytest.raises(PvmlError, match=f"at least 100 heads, got {n}"):
            head_scores(model, text, n_random=n)
    with t.no_grad():
        model.embed.W_E[1, 0] = t.nan
        model.blocks[0].attn.W_Q += 1
    with pytest.raises(PvmlError, match="not finite"):
        head_scores(model, text)


def made(**changes: Any) -> HeadScore:
    """A score that has earned its name."""
    own: dict[str, Any] = {"kind": "induction", "text": "natural", "layer": 1, "head": 2}
    numbers = {"score": 0.6, "null_mean": 0.1, "null_spread": 0.02, "p": 1e-5, "ahead": True}
    random = RandomHeads(mean=0.2, spread=0.05, p=1e-4)
    return HeadScore(**{**own, **numbers, "random": random, **changes})


def test_verdicts() -> None:
    """Each thing that can be lacking is said; the excess is over the larger null."""
    unlike = RandomHeads(mean=0.2, spread=0.3, p=0.4)
    near = RandomHeads(mean=0.55, spread=0.001, p=1e-9)

    assert made().verdict == "named"
    assert made().excess == pytest.approx(0.4)
    assert made(p=0.002).verdict == "explained by shuffled tokens"
    assert made(p=float("nan")).verdict == "explained by shuffled tokens"
    assert made(ahead=False).verdict == "a place beside it gets more"
    assert made(null_mean=0.55).verdict == "too little above its null"
    assert made(random=unlike).verdict == "explained by random heads"
    assert made(random=near).verdict == "too little above its null"
    assert made(random=None).beyond


def test_the_sentences_and_the_table() -> None:
    """Kinds are told in their order, each with its text and nulls, the strongest head first."""
    other = made(text="repeated", score=0.7)
    weaker = made(text="repeated", head=0, score=0.65)
    unlike = made(kind="first-token", random=RandomHeads(mean=0.2, spread=0.3, p=0.4))
    scores = [weaker, made(), other, unlike]
    told = describe_heads(scores).splitlines()
    console = Console(width=140)
    with console.capture() as captured:
        console.print(head_table(scores, most=1))
    shown = captured.get()

    assert best_heads(scores) == [unlike, made(), other, weaker]
    assert told[0].startswith("No first-token head formed on natural text: the nearest to one is 1")
    assert told[0].endswith((": explained by random heads.", ": explained by shuffled tokens."))
    assert told[1].startswith("Random heads could do as much as 1.2 (score 0.60; shuffled 0.10 ")
    assert told[2] == (
        "Induction heads on natural text (layer.head): 1.2 (score 0.60; shuffled 0.10 ± 0.02; "
        "p < 0.001; random heads 0.20 ± 0.05; p < 0.001)."
    )
    assert told[3].startswith("Induction heads on repeated tokens (layer.head): 1.2 (score 0.70;")
    assert len(told) == 4
    assert "explained by random heads" in shown
    assert shown.count("named") == 2
    assert "0.65" not in shown
