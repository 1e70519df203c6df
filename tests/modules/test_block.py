"""The block: each layer reads the stream and adds to it."""

import torch as t

from pvml.config import Config
from pvml.modules.block import TransformerBlock
from pvml.trace.capture import capture

SIZES = {"d_model": 13, "n_heads": 3, "d_head": 5, "d_mlp": 17, "n_ctx": 11, "d_vocab": 29}


def test_the_stream_is_a_sum():
    """resid_mid and resid_post are the stream plus what attention and MLP wrote."""
    block = TransformerBlock(Config(**SIZES)).double()
    x = t.randn(2, 4, 13, dtype=t.float64)
    with capture(block) as cache:
        out = block(x)

    assert t.equal(cache["block.resid_pre"], x)
    t.testing.assert_close(cache["block.resid_mid"], x + cache["attn.attn_out"])
    t.testing.assert_close(out, cache["block.resid_mid"] + cache["mlp.mlp_out"])
    t.testing.assert_close(cache["ln2.residual"], cache["block.resid_mid"])


def test_attention_only():
    """Without an MLP there is no resid_mid, and the stream ends after attention."""
    block = TransformerBlock(Config(**SIZES, attn_only=True)).double()
    x = t.randn(2, 4, 13, dtype=t.float64)
    with capture(block) as cache:
        out = block(x)

    assert not hasattr(block, "mlp") and not hasattr(block, "ln2")
    assert "block.resid_mid" not in cache
    t.testing.assert_close(out, x + cache["attn.attn_out"])


def test_without_normalization_layers_read_the_stream_itself():
    """normalization none: attention reads resid_pre as it is."""
    block = TransformerBlock(Config(**SIZES, normalization="none")).double()
    x = t.randn(2, 4, 13, dtype=t.float64)
    with capture(block) as cache:
        block(x)

    assert t.equal(cache["attn.normalized_resid_pre"], x)
    assert not any(name.startswith("ln") for name in cache)
