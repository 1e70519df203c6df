"""The whole model: sizes, a fresh model's loss, padding, and the ends of its range."""

import math

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

PADDINGS = {
    "left": [0, 0, 1, 1, 1, 1],
    "right": [1, 1, 1, 1, 0, 0],
    "inside": [1, 0, 1, 1, 0, 1],
}


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ({"d_model": 128, "n_layers": 6, "n_heads": 4, "n_ctx": 128}, 14_122_321),
        ({"d_model": 128, "n_layers": 6, "n_heads": 4, "n_ctx": 512}, 14_171_473),
    ],
)
def test_the_seeds_models_have_their_published_sizes(sizes, total):
    """d128 with 6 layers holds the number of parameters that its run's header prints."""
    assert Transformer(Config(**sizes)).parameter_counts()["total"] == total


def test_gpt2_small_counted_both_ways():
    """163,087,441 parameters with two tables, 124,439,808 where one serves as both."""
    with t.device("meta"):
        untied = Transformer(Config()).parameter_counts()
        tied = Transformer(Config(tie_embeddings=True)).parameter_counts()

    assert untied["total"] == 163_087_441
    assert untied["blocks"] == 85_054_464
    assert tied["total"] == 124_439_808


def test_a_fresh_model_guesses_uniformly():
    """With weights from N(0, 0.02) the loss starts at about ln(d_vocab): 10.825 for GPT-2's."""
    model = Transformer(Config(d_model=64, n_layers=1, n_heads=4, n_ctx=32), seed=0)
    tokens = t.randint(0, 50257, (4, 32))
    with t.no_grad():
        log_probs = model(tokens).log_softmax(-1)[:, :-1]
    loss = -log_probs.gather(-1, tokens[:, 1:, None]).mean().item()

    assert round(math.log(50257), 3) == 10.825
    assert abs(loss - math.log(50257)) < 0.05


def test_fresh_weights_are_as_the_config_says():
    """Weights have the asked spread, biases are zero, LayerNorm is the identity."""
    model = Transformer(Config(d_model=64, n_layers=1, n_heads=4, d_vocab=997, init_range=0.05))
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if last == "w":
            assert (parameter == 1).all()
        elif last.startswith("b"):
            assert not parameter.any()
        else:
            assert abs(parameter.std().item() - 0.05) < 0.003, name


def test_a_seed_draws_the_same_model_and_leaves_the_generator_alone():
    """The same seed gives the same bits, and torch's own randomness goes on as it was."""
    cfg = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=8, d_vocab=29)
    t.manual_seed(5)
    expected = t.rand(3)
    t.manual_seed(5)
    one, two = Transformer(cfg, seed=1), Transformer(cfg, seed=1)

    assert t.equal(t.rand(3), expected)
    assert all(t.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not t.equal(Transformer(cfg, seed=2).embed.W_E, one.embed.W_E)


def test_no_layers_is_a_bigram_model(make_model, tokens):
    """Without blocks and positions a logit depends on the current token alone."""
    model = make_model(n_layers=0, positions="none")
    logits = model(tokens)

    same = tokens[0, 0]
    t.testing.assert_close(model(same[None, None])[0, 0], logits[0, 0], rtol=0, atol=1e-13)


def test_without_positions_order_does_not_matter_to_the_last_token(make_model):
    """positions none: swapping earlier tokens leaves the last position's logits as they were."""
    model = make_model(positions="none", n_layers=1)
    a, b = model(t.tensor([[1, 2, 3, 4]])), model(t.tensor([[3, 1, 2, 4]]))

    t.testing.assert_close(a[0, -1], b[0, -1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("positions", ["standard", "none", "shortformer"])
@pytest.mark.parametrize("mask", PADDINGS.values(), ids=PADDINGS)
def test_padding_changes_nothing_at_real_positions(make_model, positions, mask):
    """Padding on any side, whatever its ids: real positions' logits are the unpadded ones."""
    model = make_model(positions=positions).float()
    real = t.tensor([1, 2, 3, 4])
    where = t.tensor([mask]).bool()
    padded = t.full((1, 6), 7)
    padded[where] = real
    logits = model(padded, attention_mask=where)
    other = model(t.where(where, padded, 23), attention_mask=where.long())

    t.testing.assert_close(logits[where], model(real[None])[0], rtol=0, atol=1e-6)
    t.testing.assert_close(other[where], logits[where], rtol=0, atol=0)
    assert logits.isfinite().all()


@pytest.mark.parametrize("mask", PADDINGS.values(), ids=PADDINGS)
@pytest.mark.parametrize("dtype", [t.bfloat16, t.float16], ids=str)
def test_padding_in_half_types(make_model, mask, dtype):
    """In half types real positions agree to a few units in the last place, with no NaN."""
    model = make_model().to(dtype)
    real, where = t.tensor([1, 2, 3, 4]), t.tensor([mask]).bool()
    padded = t.zeros(1, 6, dtype=t.long)
    padded[where] = real
    logits, alone = model(padded, attention_mask=where), model(real[None])[0]
    ulp = alone.abs().max() * t.finfo(dtype).eps

    assert logits.isfinite().all()
    assert (logits[where] - alone).abs().max() <= 4 * ulp


def test_padding_only_rows_are_finite(make_model, tokens):
    """A sequence that is all padding gives numbers, not NaN, also in its gradients."""
    model = make_model()
    mask = t.ones(2, 7, dtype=t.bool)
    mask[1] = False
    logits = model(tokens, attention_mask=mask)
    logits.sum().backward()

    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_watching_a_padded_pass(make_model, tokens):
    """The shown pattern hides padding, and watching it changes no bit."""
    model = make_model()
    mask = t.ones(2, 7, dtype=t.bool)
    mask[0, :3] = False
    alone = model(tokens, attention_mask=mask)
    watched, cache = model.run_with_cache(tokens, attention_mask=mask)

    assert t.equal(alone, watched)
    assert not cache["blocks.0.attn.attn_pattern"][0, :, 3:, :3].any()


@pytest.mark.parametrize("shape", [(0, 7), (2, 0), (0, 0)])
def test_empty_batches_and_sequences_give_empty_logits(make_model, shape):
    """A batch of 0 or an empty sequence has a defined result: nothing, in the right shape."""
    model = make_model()
    empty = t.zeros(shape, dtype=t.long)

    assert model(empty).shape == (*shape, 29)
    assert model(empty, attention_mask=empty.bool()).shape == (*shape, 29)
    assert model.run_with_cache(empty)[0].shape == (*shape, 29)


@pytest.mark.parametrize("positions", ["standard", "none", "shortformer"])
def test_too_long_a_sequence_is_an_error(make_model, positions):
    """One token more than n_ctx is an error that names both, with any kind of positions."""
    model = make_model(positions=positions)
    assert model(t.zeros(1, 11, dtype=t.long)).shape == (1, 11, 29)
    with pytest.raises(PvmlError, match="12 tokens are more than this model's n_ctx of 11"):
        model(t.zeros(1, 12, dtype=t.long))


@pytest.mark.parametrize(
    ("mask", "complaint"),
    [
        (t.ones(2, 6, dtype=t.long), r"shape \(2, 7\), got \(2, 6\)"),
        (t.full((2, 7), 2), "1 .real. and 0 .padding. only"),
    ],
)
def test_a_mask_that_fits_nothing_is_an_error(make_model, tokens, mask, complaint):
    """A mask of another shape or with other values is refused."""
    from pvml.modules.transformer import check_mask

    with pytest.raises(PvmlError, match=complaint):
        check_mask(mask, tokens)


def test_the_stream_is_what_the_unembedding_reads(make_model, tokens):
    """stream and unembed are the two halves of a pass."""
    model = make_model()

    assert t.equal(model.unembed(model.stream(tokens)), model(tokens))


def test_names_in_a_state_are_transformer_lens_names(make_model):
    """Parameter paths and shapes are those that TransformerLens gives GPT-2's."""
    state = make_model().state_dict()

    assert state["blocks.1.attn.W_Q"].shape == (3, 13, 5)
    assert state["blocks.1.attn.b_K"].shape == (3, 5)
    assert state["blocks.1.mlp.W_in"].shape == (13, 17)
    assert {"embed.W_E", "pos_embed.W_pos", "ln_final.w", "unembed.W_U", "unembed.b_U"} <= set(
        state
    )
    assert len(state) == 2 + 2 * 16 + 4


@pytest.mark.parametrize("dtype", [t.bfloat16, t.float16], ids=str)
def test_half_types_are_close_to_float64(make_model, tokens, dtype):
    """A half-precision pass stays within its rounding of the exact one."""
    model = make_model()
    exact = model(tokens)
    rounded = model.to(dtype)(tokens)

    assert rounded.dtype == dtype
    error = (rounded.double() - exact).abs().max() / exact.abs().max()
    assert error < 40 * t.finfo(dtype).eps
