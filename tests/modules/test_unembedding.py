"""The unembedding: scores by a matrix product, a frozen bias, and a table that may be shared."""

import torch as t

from pvml.config import Config
from pvml.modules.unembedding import Unembed

SIZES = {"d_model": 13, "n_heads": 1, "n_ctx": 7, "d_vocab": 29, "n_layers": 1}


def test_logits_are_products_with_the_columns():
    """Each logit is the stream times the token's column of W_U."""
    unembed = Unembed(Config(**SIZES)).double()
    x = t.randn(1, 2, 13, dtype=t.float64)

    t.testing.assert_close(unembed(x), x @ unembed.W_U)


def test_the_bias_is_frozen_at_zero():
    """b_U is there for its shape; training does not touch it."""
    unembed = Unembed(Config(**SIZES))

    assert not unembed.b_U.requires_grad
    assert not unembed.b_U.any()


def test_tied_tables_are_one_tensor_for_good(make_model, tokens):
    """A tied model has one table, trained as one, also after copying, moving and a step."""
    import copy

    model = copy.deepcopy(make_model(tie_embeddings=True)).float()
    assert "unembed.W_U" not in model.state_dict()
    assert t.equal(model.unembed.W_U, model.embed.W_E.T)

    optimizer = t.optim.SGD(model.parameters(), lr=0.1)
    before = model.embed.W_E.detach().clone()
    model(tokens).square().sum().backward()
    optimizer.step()

    assert not t.equal(model.embed.W_E, before)
    assert t.equal(model.unembed.W_U, model.embed.W_E.T)
