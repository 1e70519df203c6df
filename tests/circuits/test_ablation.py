"""Ablation: through the taps as by changing the weights, and nothing of the model is changed."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.ablation import (
    ablate_heads,
    ablated,
    all_heads,
    cut,
    head_means,
    token_losses,
)
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.training.losses import get_log_probs

KINDS = [
    {"positions": "standard", "normalization": "LN", "attn_only": False},
    {"positions": "none", "normalization": "LN", "attn_only": True},
    {"positions": "shortformer", "normalization": "LN", "attn_only": False},
    {"positions": "shortformer", "normalization": "none", "attn_only": True},
]
HEADS = [(0, 2), (1, 0), (1, 1)]


def brute_force(
    model: Transformer, tokens: Tensor, filling: dict[tuple[int, int], Tensor]
) -> list[Tensor]:
    """Each layer's z, then the logits, written out; where a head has a filling, that is its z."""
    x, found = model.embed.W_E[tokens], []
    place = model.pos_embed.W_pos[: tokens.shape[1]] if model.cfg.positions != "none" else 0
    if model.cfg.positions == "standard":
        x = x + place
    future = t.ones(tokens.shape[1], tokens.shape[1], dtype=t.bool).triu(1)
    for layer, block in enumerate(model.blocks):
        read, attn = block.ln1(x), block.attn
        asks = read + place if model.cfg.positions == "shortformer" else read
        zs = []
        for head in range(model.cfg.n_heads):
            q, k = asks @ attn.W_Q[head] + attn.b_Q[head], asks @ attn.W_K[head] + attn.b_K[head]
            v = read @ attn.W_V[head] + attn.b_V[head]
            scores = (q @ k.mT / model.cfg.d_head**0.5).masked_fill(future, -t.inf)
            z = scores.softmax(-1) @ v
            zs.append(filling[layer, head].expand_as(z) if (layer, head) in filling else z)
        found.append(t.stack(zs, 2))
        x = x + attn.b_O + sum(z @ W for z, W in zip(zs, attn.W_O, strict=True))
        if not model.cfg.attn_only:
            x = x + block.mlp(block.ln2(x))
    return [*found, model.ln_final(x) @ model.unembed.W_U + model.unembed.b_U]


def reference_rows() -> Tensor:
    return t.randint(0, 29, (37, 7), generator=t.Generator().manual_seed(5))


@pytest.mark.parametrize("changes", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
@t.no_grad()
def test_ablation_is_what_brute_force_gives(
    make_model: Any, tokens: Tensor, changes: dict[str, Any]
) -> None:
    """Zero, the mean at each position and the mean over all, against a pass written out."""
    model = make_model(**changes)
    own = brute_force(model, reference_rows(), {})[:-1]
    nothing = {head: t.zeros(1, dtype=t.float64) for head in HEADS}
    each = {(layer, head): own[layer][:, :, head].mean(0) for layer, head in HEADS}
    flat = {head: mean.mean(0) for head, mean in each.items()}
    for means, filling in (
        (None, nothing),
        (head_means(model, reference_rows()), each),
        (head_means(model, reference_rows(), "all"), flat),
    ):
        with ablated(model, HEADS, means):
            logits = model(tokens)

        t.testing.assert_close(logits, brute_force(model, tokens, filling)[-1], rtol=0, atol=1e-12)


@t.no_grad()
def test_zeroed_weights_are_zero_ablation(make_model: Any, tokens: Tensor) -> None:
    """A head whose W_O is 0 is one that is ablated with nothing."""
    model, by_hand = make_model(), make_model()
    for layer, head in HEADS:
        by_hand.blocks[layer].attn.W_O[head] = 0
    found = ablate_heads(model, tokens, HEADS, fill="zero")

    assert found.loss == pytest.approx(float(-get_log_probs(model(tokens), tokens).mean()), 1e-12)
    without = -get_log_probs(by_hand(tokens), tokens).mean()
    assert found.ablated_loss == pytest.approx(float(without), rel=1e-12)
    assert found.increase == found.ablated_loss - found.loss


@t.no_grad()
def test_the_mean_over_all_is_a_bias(make_model: Any, tokens: Tensor) -> None:
    """One vector for all positions could as well stand in b_O, with the head's W_O at 0."""
    model, by_hand = make_model(), make_model()
    (layer, head), reference = HEADS[1], reference_rows()
    mean = head_means(model, reference, "all").z[layer][0, head]
    attn = by_hand.blocks[layer].attn
    attn.b_O += mean @ attn.W_O[head]
    attn.W_O[head] = 0
    found = ablate_heads(model, tokens, [(layer, head)], over="all", reference=reference)

    assert found.ablated_loss == pytest.approx(float(token_losses(by_hand, tokens).mean()), 1e-12)


@t.no_grad()
def test_a_row_that_is_its_own_reference_loses_nothing(make_model: Any, tokens: Tensor) -> None:
    """The mean over one row is that row; of two rows alike as well."""
    rows = tokens[:1].expand(2, -1)
    found = ablate_heads(make_model(), rows, HEADS)

    assert found.increase == pytest.approx(0, abs=1e-12)


@t.no_grad()
def test_nothing_of_the_model_is_changed(make_model: Any, tokens: Tensor) -> None:
    """Weights and answers are the same bits before and after."""
    model = make_model()
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    logits = model(tokens)
    ablate_heads(model, tokens, HEADS)
    with cut(model, [(0, 0)], (1, 1), "K"):
        model(tokens)

    assert t.equal(model(tokens), logits)
    assert all(t.equal(x, weights[name]) for name, x in model.state_dict().items())
    with ablated(model, []):
        assert t.equal(model(tokens), logits)


@t.no_grad()
def test_all_heads_out_leave_the_direct_path(make_model: Any, tokens: Tensor) -> None:
    """Without heads and biases an attention-only model is its bigram table."""
    model = make_model(attn_only=True, normalization="none", positions="none")
    for block in model.blocks:
        block.attn.b_O.zero_()
    with ablated(model, all_heads(model)):
        logits = model(tokens)
    direct = model.embed.W_E[tokens] @ model.unembed.W_U + model.unembed.b_U

    t.testing.assert_close(logits, direct, rtol=0, atol=1e-12)


# Edges


@pytest.mark.parametrize("changes", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
@pytest.mark.parametrize("edge", ["Q", "K", "V"])
@t.no_grad()
def test_a_cut_edge_is_a_reader_of_another_stream(
    make_model: Any, tokens: Tensor, changes: dict[str, Any], edge: str
) -> None:
    """The reader's queries, keys or values are those of the pass in which the writers are silent.

    That pass's layer 1 reads the stream without them, as nothing stands in between.
    """
    model = make_model(**changes)
    writers, reader = [(0, 1), (0, 2)], (1, 2)
    name = f"blocks.1.attn.{edge.lower()}"
    if not changes["attn_only"]:  # or the MLP of layer 0 would change as well
        for parameter in (model.blocks[0].mlp.W_out, model.blocks[0].mlp.b_out):
            parameter.zero_()
    _, whole = model.run_with_cache(tokens)
    for means in (None, head_means(model, reference_rows())):
        with ablated(model, writers, means):
            _, silent = model.run_with_cache(tokens)
        with cut(model, writers, reader, edge, means):
            _, found = model.run_with_cache(tokens)

        expected = whole[name].clone()
        expected[:, :, 2] = silent[name][:, :, 2]
        t.testing.assert_close(found[name], expected, rtol=0, atol=1e-12)
        others = {f"blocks.1.attn.{other}" for other in "qkv"} - {name}
        assert all(t.equal(found[other], whole[other]) for other in others)
        assert not t.allclose(found["blocks.1.attn.z"], whole["blocks.1.attn.z"])


@t.no_grad()
def test_writers_of_several_layers_are_cut(make_model: Any, tokens: Tensor) -> None:
    """In a model of biases and heads alone, what is cut is what the writers add to the stream."""
    model = make_model(n_layers=3, attn_only=True, normalization="none")
    writers = [(0, 1), (1, 0)]
    _, whole = model.run_with_cache(tokens)
    with cut(model, writers, (2, 1), "Q"):
        _, found = model.run_with_cache(tokens)
    stream = whole["blocks.2.resid_pre"]
    for layer, head in writers:
        z, W_O = whole[f"blocks.{layer}.attn.z"][:, :, head], model.blocks[layer].attn.W_O[head]
        stream = stream - z @ W_O
    expected = stream @ model.blocks[2].attn.W_Q[1] + model.blocks[2].attn.b_Q[1]

    t.testing.assert_close(found["blocks.2.attn.q"][:, :, 1], expected, rtol=0, atol=1e-12)


# Losses and contracts


@t.no_grad()
def test_losses_are_the_models(make_model: Any, tokens: Tensor) -> None:
    """Of every token but the first, in float64, whatever the ids' type."""
    model = make_model()
    own = -get_log_probs(model(tokens), tokens)

    t.testing.assert_close(token_losses(model, tokens), own, rtol=1e-12, atol=0)
    t.testing.assert_close(token_losses(model, tokens.int()), own, rtol=1e-12, atol=0)
    assert token_losses(model, tokens[:0]).shape == (0, 6)


def test_half_types_are_ablated_too(make_model: Any, tokens: Tensor) -> None:
    """In bfloat16 the answer is the float64 one, as far as the type allows."""
    wide = ablate_heads(make_model(), tokens, HEADS)
    half = ablate_heads(make_model().bfloat16(), tokens, HEADS)

    assert half.increase == pytest.approx(wide.increase, abs=0.05)


def test_what_is_said(make_model: Any, tokens: Tensor) -> None:
    """The heads, what stands instead, and both losses."""
    model = make_model()
    mean, zero = (
        str(ablate_heads(model, tokens, HEADS)),
        str(ablate_heads(model, tokens, [], fill="zero")),
    )

    assert mean.startswith("without 0.2, 1.0, 1.1 (each position's mean instead): ")
    assert zero.startswith("without no head (nothing instead): ")
    assert "+0.000 against" in zero


def test_what_cannot_be_asked(make_model: Any, tokens: Tensor) -> None:
    """Heads and edges that are not there, rows that are too short."""
    model = make_model()
    short = head_means(model, tokens[:, :3])
    for message, attempt in {
        "there is no head 2.0": lambda: ablate_heads(model, tokens, [(2, 0)]),
        "there is no head 0.-1": lambda: ablate_heads(model, tokens, [(0, -1)]),
        "no rows to grade": lambda: ablate_heads(model, tokens[:0], HEADS),
        "at least 2 tokens": lambda: token_losses(model, tokens[:, :1]),
        "at least one row and token": lambda: head_means(model, tokens[:0]),
        "outside the vocabulary": lambda: head_means(model, tokens + 29),
    }.items():
        with pytest.raises(PvmlError, match=message):
            attempt()
    with pytest.raises(PvmlError, match="have 3 tokens, so there is no mean for position 3"):
        with ablated(model, HEADS, short):
            model(tokens)
    with pytest.raises(PvmlError, match="no layer 2"):
        deeper = make_model(n_layers=3)
        with ablated(deeper, [(2, 0)], short):
            deeper(tokens)
    for writers in ([], [(1, 0)], [(0, 0), (1, 0)]):
        with pytest.raises(PvmlError, match="head 1.1 reads heads of lower layers, got"):
            with cut(model, writers, (1, 1), "K"):
                pass
