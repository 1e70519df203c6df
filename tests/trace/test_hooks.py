"""Hooks with TransformerLens's meaning: notebooks' hook functions work as they stand."""

from functools import partial

import pytest
import torch as t

from pvml.errors import PvmlError


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
