"""Capture: snapshots by name, and gradients when they are asked for."""

import pytest
import torch as t

from pvml.errors import PvmlError
from pvml.trace.capture import capture
from pvml.trace.tap import places


def test_the_cache_holds_every_named_tensor(make_model, tokens):
    """`run_with_cache` returns the plain logits and all names, TransformerLens's included."""
    model = make_model()
    logits, cache = model.run_with_cache(tokens)

    assert t.equal(logits, model(tokens))
    assert set(cache) == {place.name for place in places(model)}
    assert len(cache) == len(places(model))
    assert "blocks.0.attn.hook_pattern" in cache
    assert "blocks.0.attn.hook_result" not in cache
    assert t.equal(cache["blocks.0.attn.hook_pattern"], cache["blocks.0.attn.attn_pattern"])


def test_scores_stay_raw_above_the_diagonal(make_model, tokens):
    """The raw scores keep the future, finite; scaled and masked ones are another tensor."""
    _, cache = make_model().run_with_cache(tokens)
    q, k = cache["blocks.0.attn.q"], cache["blocks.0.attn.k"]
    scores, masked = cache["blocks.0.attn.attn_scores"], cache["blocks.0.attn.attn_scores_masked"]
    future = t.ones(7, 7, dtype=t.bool).triu(1)

    t.testing.assert_close(scores, t.einsum("bqhd,bkhd->bhqk", q, k))
    assert scores.isfinite().all()
    assert masked[..., future].isneginf().all()
    t.testing.assert_close(masked[..., ~future], scores[..., ~future] / 5**0.5)
    t.testing.assert_close(
        cache["blocks.0.attn.attn_pattern"].sum(-1), t.ones(2, 3, 7, dtype=t.float64)
    )


def test_the_cache_is_a_snapshot(make_model, tokens):
    """Writing into what the cache handed out changes neither the cache nor the model."""
    model = make_model()
    logits, cache = model.run_with_cache(tokens)
    before = cache["blocks.0.attn.attn_pattern"]
    for name in cache:
        cache[name].zero_()

    assert t.equal(cache["blocks.0.attn.attn_pattern"], before)
    assert before.any()
    assert t.equal(model(tokens), logits)


def test_the_cache_does_not_follow_the_parameters(make_model, tokens):
    """`sliced` is a view of W_pos in the pass, and a copy in the cache."""
    model = make_model()
    _, cache = model.run_with_cache(tokens)
    before = cache["pos_embed.sliced"]
    with t.no_grad():
        model.pos_embed.W_pos.zero_()

    assert t.equal(cache["pos_embed.sliced"], before)
    assert before.any()


@pytest.mark.parametrize(
    "names",
    [
        "blocks.1.attn.z",
        "blocks.1.attn.hook_z",
        ["blocks.1.attn.z"],
        lambda name: name == "blocks.1.attn.hook_z",
    ],
)
def test_a_filter_keeps_only_what_it_names(make_model, tokens, names):
    """The filter may be a name of either vocabulary, a list, or a function."""
    _, cache = make_model().run_with_cache(tokens, names_filter=names)

    assert list(cache) == ["blocks.1.attn.z"]
    with pytest.raises(KeyError, match=r"'blocks.0.attn.z' was not kept.*blocks.1.attn.z"):
        cache["blocks.0.attn.z"]


def test_what_a_filter_left_out_is_told(make_model, tokens):
    """What the pass has is asked of the filter; a hint is among what is kept, and close."""
    keep = "*.hook_pattern"
    _, cache = make_model().run_with_cache(tokens, names_filter=keep)

    for ask in (lambda: cache["result", 0], lambda: cache.stack_head_results()):
        with pytest.raises(
            KeyError, match=r"computed from z.*let names_filter keep hook_z"
        ) as told:
            ask()
        assert "did you mean" not in str(told.value)
    for name in ("blocks.0.attn.z", "blocks.0.attn.hook_z", ("q", 1), "hook_embed"):
        with pytest.raises(KeyError, match=r"was not kept: .*Let names_filter pick it, too"):
            cache[name]
    with pytest.raises(KeyError, match=r"did you mean 'blocks.1.attn.hook_pattern'"):
        cache["blocks.1.attn.hook_patern"]
    with pytest.raises(KeyError, match=r"cache\['result', layer\] computes each head's own output"):
        cache["blocks.0.attn.hook_result"]
    with pytest.raises(KeyError, match=r"was not kept: this cache holds"):
        cache["blocks.0.attn.zz"]


def test_gradients_are_kept_when_asked(make_model, tokens):
    """Each cached tensor's gradient is the loss's derivative by it, hidden tensors included."""
    model = make_model()
    with capture(model, grads=True) as cache:
        logits = model(tokens)
    assert cache.grads == {}
    logits.square().sum().backward()

    name = "blocks.1.attn.attn_pattern"
    nudge = 1e-6 * t.randn(2, 3, 7, 7, dtype=t.float64)
    with t.no_grad():
        up, down = (
            model.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook, s=s: x + s * nudge)])
            for s in (1, -1)
        )
    slope = (up.square().sum() - down.square().sum()) / 2
    t.testing.assert_close((cache.grads[name] * nudge).sum(), slope, rtol=1e-6, atol=1e-15)
    floating = {p.name for p in places(model) if p.point.name not in ("in", "mask")}
    assert set(cache.grads) == floating


def test_a_loss_is_taken_back_as_transformer_lens_does(make_model, tokens):
    """`incl_bwd` calls backward: gradients are there at once, by every name, a batch of one's too.

    Parameters' gradients are as by hand; what is no single number is refused.
    """
    model = make_model()
    with capture(model, grads=True) as by_hand:
        model(tokens[:1], return_type="loss").backward()
    own = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    model.zero_grad()
    _, cache = model.run_with_cache(
        tokens[:1], incl_bwd=True, return_type="loss", remove_batch_dim=True
    )

    wanted = by_hand.grads["blocks.1.attn.attn_pattern"][0]
    for name in (("pattern", 1), ("attn", -1), "blocks.1.attn.hook_pattern"):
        assert t.equal(cache.grads[name], wanted)
    assert t.equal(cache["blocks.1.attn.hook_pattern_grad"], wanted)
    assert t.equal(cache["blocks.1.attn.attn_pattern_grad"], wanted)
    assert t.equal(cache.grads["pos_embed.sliced"], by_hand.grads["pos_embed.sliced"])
    assert "blocks.1.attn.hook_pattern_grad" in cache and "blocks.1.attn.zz_grad" not in cache
    assert all(t.equal(model.get_parameter(name).grad, x) for name, x in own.items())
    with pytest.raises(KeyError, match=r"the gradient of 'blocks.1.attn.mask' was not kept"):
        cache["blocks.1.attn.mask_grad"]
    for options in ({}, {"return_type": "both"}, {"return_type": None}):
        with pytest.raises(PvmlError, match=r"must be one number, got .*return_type='loss'"):
            model.run_with_cache(tokens, incl_bwd=True, **options)


def test_gradients_that_come_late_lose_the_batch_axis_too(make_model, tokens):
    """A cache that has lost its batch axis keeps gradients without it."""
    model = make_model()
    with capture(model, "*.z", grads=True) as cache:
        loss = model(tokens[:1], return_type="loss")
    cache.remove_batch_dim()
    loss.backward()

    assert cache.grads["z", 0].shape == cache["z", 0].shape == (7, 3, 5)


def test_gradients_under_no_grad_are_an_error(make_model, tokens):
    """A pass that records no gradients cannot give any, and says so."""
    with t.no_grad(), pytest.raises(PvmlError, match=r"gradient of embed.out.*no_grad"):
        make_model().run_with_cache(tokens, incl_bwd=True)


def test_remove_batch_dim(make_model, tokens):
    """A batch of one loses its batch axis, tensors without one stay; a batch of two is refused."""
    model = make_model()
    _, cache = model.run_with_cache(tokens[:1], remove_batch_dim=True)

    assert cache["blocks.0.attn.z"].shape == (7, 3, 5)
    assert cache["blocks.0.attn.mask"].shape == (7, 7)
    assert cache["pos_embed.sliced"].shape == (7, 13)
    with pytest.raises(PvmlError, match="needs a batch of 1"):
        model.run_with_cache(tokens, remove_batch_dim=True)


def test_nested_caches_each_keep_their_own(make_model, tokens):
    """An inner cache takes nothing from an outer one."""
    model = make_model()
    with capture(model, "blocks.0.*") as outer, capture(model, "blocks.0.attn.z") as inner:
        model(tokens)

    assert list(inner) == ["blocks.0.attn.z"]
    assert t.equal(inner["blocks.0.attn.z"], outer["blocks.0.attn.z"])
    assert len(outer) > 20
