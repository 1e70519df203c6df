"""The cache: however the tokens are fed, the logits agree."""

import pytest
import torch as t

from pvml.errors import PvmlError
from pvml.modules.cache import KVCache

POSITIONS = ["standard", "none", "shortformer"]


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("split", [(7,), (5, 2), (3, 2, 1, 1), (1,) * 7], ids=str)
def test_the_cache_agrees_with_one_pass(make_model, tokens, positions, split):
    """Prefill, chunks and single steps give the logits of one pass (float64)."""
    model = make_model(positions=positions)
    cache = KVCache(model.cfg, batch=2, dtype=t.float64)
    with t.no_grad():
        pieces = [model(part, cache=cache) for part in tokens.split(split, dim=1)]

    t.testing.assert_close(t.cat(pieces, 1), model(tokens), rtol=0, atol=1e-13)
    assert cache.length == 7


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_cache_agrees_with_padding_on_the_left(make_model, tokens, positions):
    """Padding given with the first piece stays hidden from the later ones."""
    model = make_model(positions=positions)
    mask = t.ones(2, 7, dtype=t.bool)
    mask[0, :2] = False
    cache = KVCache(model.cfg, batch=2, dtype=t.float64)
    with t.no_grad():
        pieces = [
            model(tokens[:, :4], attention_mask=mask[:, :4], cache=cache),
            model(tokens[:, 4:6], cache=cache),
            model(tokens[:, 6:], cache=cache),
        ]

    whole = model(tokens, attention_mask=mask)
    t.testing.assert_close(t.cat(pieces, 1), whole, rtol=0, atol=1e-13)


def test_a_failed_pass_leaves_the_cache_as_it_was(make_model, tokens):
    """A pass that raises counts for nothing: the same tokens can be fed again."""
    model = make_model()
    cache = KVCache(model.cfg, batch=2, dtype=t.float64)

    def stop(x, hook):
        raise RuntimeError("stop")

    with t.no_grad():
        model(tokens[:, :4], cache=cache)
        with pytest.raises(RuntimeError, match="stop"):
            model.run_with_hooks(
                tokens[:, 4:], cache=cache, fwd_hooks=[("blocks.1.hook_resid_post", stop)]
            )
        rest = model(tokens[:, 4:], cache=cache)

    t.testing.assert_close(rest, model(tokens)[:, 4:], rtol=0, atol=1e-13)


def test_a_cleared_cache_is_new(make_model, tokens):
    """After clear() a pass starts at position 0 again."""
    model = make_model()
    cache = KVCache(model.cfg, batch=2, dtype=t.float64)
    with t.no_grad():
        model(tokens, attention_mask=t.ones(2, 7, dtype=t.bool), cache=cache)
        cache.clear()
        again = model(tokens, cache=cache)

    t.testing.assert_close(again, model(tokens), rtol=0, atol=1e-13)


def test_what_a_cache_cannot_do_is_an_error(make_model, tokens):
    """Too many positions, another batch, or gradients: errors that name the sizes."""
    model = make_model()
    with t.no_grad():
        with pytest.raises(PvmlError, match="room for 5 positions: 4 are filled and 3 more came"):
            small = KVCache(model.cfg, batch=2, n_ctx=5, dtype=t.float64)
            model(tokens[:, :4], cache=small)
            model(tokens[:, 4:], cache=small)
        with pytest.raises(PvmlError, match="made for a batch of 1, got 2"):
            model(tokens, cache=KVCache(model.cfg, dtype=t.float64))
        with pytest.raises(PvmlError, match="14 tokens are more than this model's n_ctx of 11"):
            cache = KVCache(model.cfg, batch=2, dtype=t.float64)
            model(tokens, cache=cache)
            model(tokens, cache=cache)
    with pytest.raises(PvmlError, match=r"use it under torch\.no_grad"):
        model(tokens, cache=KVCache(model.cfg, batch=2, dtype=t.float64))


@pytest.mark.parametrize(
    ("changes", "dtype", "complaint"),
    [
        ({"n_layers": 1}, t.float64, "n_layers"),
        ({"n_heads": 2}, t.float64, "n_heads"),
        ({}, t.float32, "cache's dtype is torch.float32"),
    ],
)
def test_a_cache_of_another_model_is_refused(make_model, tokens, changes, dtype, complaint):
    """A cache for other sizes or another dtype is an error that names them."""
    cache = KVCache(make_model(**changes).cfg, batch=2, dtype=dtype)

    with t.no_grad(), pytest.raises(PvmlError, match=complaint):
        make_model()(tokens, cache=cache)


def test_a_cache_of_negative_size_is_refused(make_model):
    """Neither a batch nor a length below 0 can be set aside."""
    for sizes in ({"batch": -1}, {"n_ctx": -1}):
        with pytest.raises(PvmlError, match="at least 0"):
            KVCache(make_model().cfg, **sizes)


@pytest.mark.parametrize("rows", [[1, 0], [1, 1], [0], [1, 0, 1, 1]], ids=str)
@pytest.mark.parametrize("positions", POSITIONS)
def test_rows_can_be_chosen_anew(make_model, tokens, positions, rows):
    """After `select` the cache is that of the rows named, in their order, as often as named."""
    model = make_model(positions=positions)
    mask = t.ones(2, 7, dtype=t.bool)
    mask[0, :2] = False
    rows = t.tensor(rows)
    cache = KVCache(model.cfg, batch=2, dtype=t.float64)
    with t.no_grad():
        model(tokens[:, :4], attention_mask=mask[:, :4], cache=cache)
        cache.select(rows)
        rest = model(tokens[rows, 4:], cache=cache)

    whole = model(tokens[rows], attention_mask=mask[rows])
    t.testing.assert_close(rest, whole[:, 4:], rtol=0, atol=1e-13)
    assert cache.batch == len(rows)


def test_what_rows_share_need_not_move(make_model, tokens):
    """With `start`, only the positions from there on are exchanged between rows."""
    model = make_model()
    tokens[1, :3] = tokens[0, :3]
    swapped = t.tensor([1, 0])
    cache = KVCache(model.cfg, batch=2, dtype=t.float64)
    with t.no_grad():
        model(tokens[:, :5], cache=cache)
        before = cache.layers[0].keys[:, :5].clone()
        cache.select(swapped, start=3)
        rest = model(tokens[swapped, 5:], cache=cache)

    assert t.equal(cache.layers[0].keys[:, 3:5], before[swapped, 3:])
    assert t.equal(cache.layers[0].keys[:, :3], before[:, :3])
    t.testing.assert_close(rest, model(tokens[swapped])[:, 5:], rtol=0, atol=1e-13)
