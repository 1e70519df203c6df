"""Hooks with TransformerLens's meaning: notebooks' hook functions work as they stand."""

import copy
import inspect
from functools import partial

import pytest
import torch as t

from pvml.errors import PvmlError
from pvml.trace.hooks import Hooked
from pvml.trace.tap import listen, places


def test_a_hook_is_told_where_it_is(make_model, tokens):
    """A hook function gets the tensor and a point with TransformerLens's name and the layer."""
    told = []

    def look(value, hook):
        told.append((hook.name, hook.layer(), tuple(value.shape)))

    make_model().run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_pattern", look)])

    assert told == [("blocks.1.attn.hook_pattern", 1, (2, 3, 7, 7))]


def test_a_hook_outside_the_blocks_has_no_layer(make_model, tokens):
    """Asking for the layer of an embedding is an error, not a guess."""
    with pytest.raises(PvmlError, match="hook_embed is not inside a block"):
        make_model().run_with_hooks(
            tokens, fwd_hooks=[("hook_embed", lambda x, hook: print(hook.layer()))]
        )


def test_a_hooks_answer_replaces_the_tensor(make_model, tokens):
    """Head ablation as notebooks write it: by return value and in place, alone and in a context."""
    model = make_model()

    def ablate_in_place(z, hook, head):
        z[:, :, head] = 0.0
        return z

    hooks = [("blocks.0.attn.hook_z", partial(ablate_in_place, head=2))]
    with t.no_grad():
        by_run = model.run_with_hooks(tokens, fwd_hooks=hooks)
        with model.hooks(fwd_hooks=hooks):
            by_context = model(tokens)
    with t.no_grad():
        model.blocks[0].attn.W_O[2] = 0

    assert t.equal(by_run, by_context)
    t.testing.assert_close(by_run, model(tokens))


def test_backward_hooks_see_and_replace_gradients(make_model, tokens):
    """A backward hook gets the gradient; its answer goes on down instead."""
    model, seen = make_model(), []
    logits = model.run_with_hooks(
        tokens,
        bwd_hooks=[
            ("blocks.1.hook_resid_pre", lambda g, hook: seen.append((hook.name, g.shape))),
            ("blocks.0.attn.hook_pattern", lambda g, hook: (t.zeros_like(g),)),
        ],
    )
    logits.sum().backward()

    assert seen == [("blocks.1.hook_resid_pre", (2, 7, 13))]
    assert model.blocks[0].attn.W_Q.grad.abs().max() == 0
    assert model.blocks[1].attn.W_Q.grad.abs().max() > 0


def test_backward_hooks_without_gradients_are_an_error(make_model, tokens):
    """A backward hook on a pass that records nothing would never run."""
    with t.no_grad(), pytest.raises(PvmlError, match="would never run"):
        make_model().run_with_hooks(tokens, bwd_hooks=[("*.hook_z", lambda g, hook: None)])


def test_hooks_without_a_pass_are_allowed(make_model):
    """A context of hooks may end without a pass, as in TransformerLens."""
    with make_model().hooks(fwd_hooks=[("*.hook_z", lambda z, hook: z)]):
        pass


def test_an_added_hook_stays_until_it_is_reset(make_model, tokens):
    """`add_hook` acts on every pass; `reset_hooks` takes off all that were added, and no other."""
    model = make_model().requires_grad_(False)
    plain, heard = model(tokens), []
    model.add_hook("*.hook_z", lambda z, hook: z * 0)
    model.add_hook(lambda name: name.endswith("resid_post"), lambda x, hook: heard.append(hook))
    with listen(model, "embed.out", lambda name, x: heard.append(name)):
        for _ in range(2):
            assert not t.equal(model(tokens), plain)
        assert [getattr(one, "name", one) for one in heard[:3]] == [
            "embed.out",
            "blocks.0.hook_resid_post",
            "blocks.1.hook_resid_post",
        ]
        model.reset_hooks()
        heard.clear()
        assert t.equal(model(tokens), plain)
        assert heard == ["embed.out"]


def test_an_added_backward_hook_changes_the_gradient(make_model, tokens):
    """`dir="bwd"` hooks act on every backward pass until they are reset."""
    model = make_model()
    model.add_hook("blocks.0.attn.hook_pattern", lambda g, hook: g * 0, dir="bwd")
    model(tokens).sum().backward()
    assert not model.blocks[0].attn.W_Q.grad.any()
    model.reset_hooks()
    model(tokens).sum().backward()

    assert model.blocks[0].attn.W_Q.grad.any()
    with pytest.raises(PvmlError, match="did you mean"):
        model.add_hook("blocks.0.attn.hook_zz", print)


def test_a_copy_has_none_of_the_added_hooks(make_model, tokens):
    """Hooks belong to the model that they were added to."""
    model = make_model().requires_grad_(False)
    plain = model(tokens)
    model.add_hook("*.hook_z", lambda z, hook: z * 0)

    assert t.equal(copy.deepcopy(model)(tokens), plain)


def test_what_is_no_function_is_refused_at_once(make_model):
    """A hook that cannot be called is told where it is given, and nothing is left listening."""
    model = make_model()
    plainly = inspect.unwrap  # as it is called outside the tests, where no annotation is checked
    for attempt in (
        lambda: plainly(Hooked.add_hook)(model, "embed.out", 3),
        lambda: next(plainly(Hooked.hooks)(model, [("embed.out", 3)])),
        lambda: next(plainly(Hooked.hooks)(model, (), [("embed.out", "grad")])),
        lambda: next(plainly(listen)(model, "embed.out", None)),
    ):
        with pytest.raises(PvmlError, match="is heard by a function, got (int|str|NoneType)"):
            attempt()
    assert not any(place.tap.listeners for place in places(model))


def test_what_notebooks_say_about_the_end_is_taken_or_told(make_model, tokens):
    """Words about contexts and permanent hooks are taken; hooks that are to stay are refused."""
    model = make_model()
    plain = model(tokens)
    zero = [("blocks.0.attn.z", lambda z, hook: z * 0)]

    hooked = model.run_with_hooks(tokens, fwd_hooks=zero, clear_contexts=True, reset_hooks_end=True)
    assert not t.equal(hooked, plain)
    with model.hooks(fwd_hooks=zero, reset_hooks_end=True, clear_contexts=True):
        assert t.equal(model(tokens), hooked)
    _, cache = model.run_with_cache(tokens, clear_contexts=True, reset_hooks_end=True)
    assert "blocks.0.attn.z" in cache
    model.add_hook(*zero[0])
    model.reset_hooks(including_permanent=True, clear_contexts=True)
    assert t.equal(model(tokens), plain)
    for stay in (
        lambda: model.run_with_hooks(tokens, fwd_hooks=zero, reset_hooks_end=False),
        lambda: model.run_with_cache(tokens, reset_hooks_end=False),
    ):
        with pytest.raises(PvmlError, match="put on with add_hook"):
            stay()
    assert t.equal(model(tokens), plain)
