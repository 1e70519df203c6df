"""Replace, ablate, freeze: they do what they say, or refuse."""

import pytest
import torch as t

from pvml.errors import PvmlError
from pvml.trace.capture import capture
from pvml.trace.edit import ablate, freeze_patterns, replace


def test_replace_puts_another_tensor_in_place(make_model, tokens):
    """A stream replaced by another sequence's gives that sequence's logits."""
    model = make_model()
    other = (tokens + 5) % 29
    _, cache = model.run_with_cache(other, names_filter="blocks.1.resid_pre")
    with replace(model, {"blocks.1.hook_resid_pre": cache["blocks.1.resid_pre"]}):
        patched = model(tokens)

    assert t.equal(patched, model(other))


def test_replace_of_another_shape_is_an_error(make_model, tokens):
    """A replacement must have the tensor's shape."""
    model = make_model()
    with pytest.raises(PvmlError, match=r"resid_pre must keep its shape"):
        with replace(model, {"blocks.1.resid_pre": t.zeros(1, 7, 13, dtype=t.float64)}):
            model(tokens)
    with pytest.raises(PvmlError, match=r"names of one tensor each; '\*\.z' picks 2"):
        with replace(model, {"*.z": t.zeros(1)}):
            pass


def test_ablating_a_head_removes_what_it_writes(make_model, tokens):
    """Without head 1's z, attention's output lacks exactly z_1 W_O_1."""
    model = make_model()
    _, whole = model.run_with_cache(tokens)
    with ablate(model, "blocks.0.attn.z", head=1):
        _, without = model.run_with_cache(tokens)
    written = whole["blocks.0.attn.z"][:, :, 1] @ model.blocks[0].attn.W_O[1]

    t.testing.assert_close(
        whole["blocks.0.attn.attn_out"] - without["blocks.0.attn.attn_out"], written
    )


def test_ablation_by_a_mean(make_model, tokens):
    """A value may be a tensor for each name, spread over the batch."""
    model = make_model()
    _, cache = model.run_with_cache(tokens)
    mean = {"blocks.0.mlp.mlp_out": cache["blocks.0.mlp.mlp_out"].mean(0)}
    with ablate(model, "blocks.0.mlp.mlp_out", value=mean), capture(model, "*mlp_out") as kept:
        model(tokens)

    t.testing.assert_close(kept["blocks.0.mlp.mlp_out"][1], mean["blocks.0.mlp.mlp_out"])


@pytest.mark.parametrize(
    ("names", "options", "complaint"),
    [
        ("blocks.0.attn.z", {"head": 3}, "heads 0 to 2, got head=3"),
        ("blocks.0.attn.z", {"head": -1}, "heads 0 to 2, got head=-1"),
        ("blocks.0.resid_pre", {"head": 0}, "has no head axis"),
        ("blocks.0.attn.z", {"value": {}}, "no value for blocks.0.attn.z"),
        ("blocks.0.attn.z", {"value": {"blocks.0.attn.z": t.zeros(4)}}, "cannot be spread"),
    ],
)
def test_ablation_refuses_what_it_cannot_do(make_model, tokens, names, options, complaint):
    """A head that is not there, a tensor without heads, a value that does not fit: errors."""
    model = make_model()
    with pytest.raises(PvmlError, match=complaint), ablate(model, names, **options):
        model(tokens)


def test_frozen_patterns_make_attention_linear(make_model):
    """With its patterns frozen, an attention-only model without LayerNorm is affine."""
    model = make_model(attn_only=True, normalization="none", positions="none")
    tokens = t.tensor([[3, 1, 4, 1, 5]])
    _, cache = model.run_with_cache(tokens, names_filter="*attn_pattern")
    x, y = t.randn(2, 1, 5, 13, dtype=t.float64)

    def logits(stream):
        with freeze_patterns(model, cache), replace(model, {"embed.out": stream}):
            return model(tokens)

    t.testing.assert_close(logits(x + y), logits(x) + logits(y) - logits(t.zeros_like(x)))


def test_freezing_needs_every_pattern(make_model, tokens):
    """A layer without a pattern would go on attending: that is refused."""
    model = make_model()
    _, cache = model.run_with_cache(tokens, names_filter="blocks.0.attn.attn_pattern")
    with pytest.raises(PvmlError, match="no pattern was given for blocks.1.attn.attn_pattern"):
        with freeze_patterns(model, cache):
            pass


def test_two_tensors_for_one_name_are_refused(make_model, tokens):
    """PvML's and TransformerLens's name of one tensor, each with its own, leave no choice."""
    one = t.zeros(2, 7, 3, 5, dtype=t.float64)
    both = {"blocks.0.attn.z": one, "blocks.0.attn.hook_z": one + 1}

    with pytest.raises(PvmlError, match="two tensors for one name"), replace(make_model(), both):
        pass
