"""The stream taken apart by a cache: exact sums, labels, and TransformerLens's own code."""

from types import SimpleNamespace

import pytest
import torch as t

from pvml.errors import PvmlError
from pvml.trace.capture import capture
from pvml.trace.tap import places

KINDS = [
    {},
    {"attn_only": True},
    {"positions": "shortformer"},
    {"positions": "none", "normalization": "none"},
    {"positions": "shortformer", "normalization": "none", "attn_only": True},
    {"n_layers": 0},
    {"tie_embeddings": True, "n_layers": 3},
]


def error(a, b):
    return float((a - b).abs().max() / b.abs().max())


def stream(cache, cfg, layer):
    if layer < cfg.n_layers:
        return cache["resid_pre", layer]
    if cfg.n_layers:
        return cache["resid_post", -1]
    return cache["embed"] + cache["pos_embed"]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_parts_are_the_stream(make_model, tokens, kind):
    """At every layer, embeddings and outputs add up to what the layer reads, to 1e-12."""
    model = make_model(**kind)
    _, cache = model.run_with_cache(tokens)
    for layer in range(model.cfg.n_layers + 1):
        parts, labels = cache.decompose_resid(layer, return_labels=True)
        assert len(parts) == len(labels)
        assert error(parts.sum(0), stream(cache, model.cfg, layer)) < 1e-12

    expected = ["embed"] + ["pos_embed"] * (model.cfg.positions == "standard")
    for layer in range(model.cfg.n_layers):
        expected += [f"{layer}_attn_out"] + [f"{layer}_mlp_out"] * (not model.cfg.attn_only)
    assert cache.decompose_resid(return_labels=True)[1] == expected


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_heads_and_the_rest_are_the_stream(make_model, tokens, kind):
    """At every layer, all heads below and the remainder add up to the stream, to 1e-12."""
    model = make_model(**kind)
    _, cache = model.run_with_cache(tokens)
    for layer in range(model.cfg.n_layers + 1):
        heads, labels = cache.stack_head_results(layer, True, incl_remainder=True)
        assert labels == [*model.all_head_labels()[: layer * 3], "remainder"]
        assert error(heads.sum(0), stream(cache, model.cfg, layer)) < 1e-12
        assert t.equal(cache.stack_head_results(layer), heads[:-1])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("pos_slice", [None, -1, (2, 5)], ids=str)
def test_the_attributions_are_the_logit(make_model, tokens, kind, pos_slice):
    """All parts' shares, and the constants, add up to the model's logit and its differences."""
    model = make_model(**kind)
    logits, cache = model.run_with_cache(tokens)
    logits = logits.detach()
    answers, wrong = t.tensor([3, 28]), t.tensor([5, 0])
    parts = cache.decompose_resid(pos_slice=pos_slice)
    rows = slice(*pos_slice) if isinstance(pos_slice, tuple) else slice(None)

    got = cache.logit_attrs(parts, answers, wrong, pos_slice=pos_slice).sum(0)
    constant = model.b_U.detach()
    if model.cfg.normalization == "LN":
        constant = constant + model.ln_final.b.detach() @ model.W_U.detach()
    differences = t.stack(
        [
            logits[i, :, a] - logits[i, :, b]
            for i, (a, b) in enumerate(zip(answers, wrong, strict=True))
        ]
    )
    own = differences[:, pos_slice] if pos_slice == -1 else differences[:, rows]
    fixed = constant[answers] - constant[wrong]
    assert error(got + (fixed if pos_slice == -1 else fixed[:, None]), own) < 1e-12
    one = cache.logit_attrs(parts, 7, pos_slice=pos_slice).sum(0) + constant[7]
    own = logits[..., 7]
    assert error(one, own[:, -1] if pos_slice == -1 else own[:, rows]) < 1e-12


def test_each_position_may_have_its_answer(make_model, tokens):
    """Tokens in (batch, posn) are asked for one by one."""
    model = make_model()
    _, cache = model.run_with_cache(tokens)
    parts = cache.decompose_resid()

    each = cache.logit_attrs(parts, tokens)
    assert each.shape == parts.shape[:-1]
    t.testing.assert_close(each[:, 1, 4], cache.logit_attrs(parts, int(tokens[1, 4]))[:, 1, 4])


def test_what_a_layernorm_makes_of_the_parts(make_model, tokens):
    """Behind each LayerNorm the parts, and its b, add up to what attention and the MLP read."""
    model = make_model()
    _, cache = model.run_with_cache(tokens)
    for layer in range(2):
        for mlp_input in (False, True):
            ln = f"ln{2 if mlp_input else 1}"
            parts = cache.decompose_resid(layer, mlp_input=mlp_input, apply_ln=True)
            b = model.blocks[layer].get_submodule(ln).b.detach()
            assert error(parts.sum(0) + b, cache["normalized", layer, ln]) < 1e-12


def test_running_totals_are_the_streams(make_model, tokens):
    """`accumulated_resid` is the stream before each layer, with those before MLPs if asked."""
    model = make_model()
    _, cache = model.run_with_cache(tokens)

    streams, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    names = [("resid_pre", 0), ("resid_mid", 0), ("resid_pre", 1), ("resid_mid", 1)]
    for got, name in zip(streams, [*names, ("resid_post", 1)], strict=True):
        assert t.equal(got, cache[name])
    _, labels = cache.accumulated_resid(1, mlp_input=True, return_labels=True)
    assert labels == ["0_pre", "1_pre", "1_mid"]
    final = cache.accumulated_resid(apply_ln=True)[-1] + model.ln_final.b.detach()
    assert error(final, cache["normalized"]) < 1e-12


def test_one_sequence_without_its_batch_axis(make_model, tokens):
    """After remove_batch_dim everything is the same without that axis."""
    model = make_model()
    _, whole = model.run_with_cache(tokens[:1])
    _, cache = model.run_with_cache(tokens[:1])
    assert cache.has_batch_dim
    cache.remove_batch_dim().remove_batch_dim()

    assert not cache.has_batch_dim
    for made in ("decompose_resid", "stack_head_results", "accumulated_resid"):
        t.testing.assert_close(getattr(cache, made)(), getattr(whole, made)()[:, 0])
    t.testing.assert_close(cache["result", 1], whole["result", 1][0])
    parts = cache.decompose_resid(pos_slice=3)
    t.testing.assert_close(
        cache.logit_attrs(parts, 4, pos_slice=3),
        whole.logit_attrs(whole.decompose_resid(pos_slice=3), 4, pos_slice=3)[:, 0],
    )


@pytest.mark.parametrize(
    ("places", "same"),
    [
        (-2, [5]),
        ((3,), [0, 1, 2]),
        ((1, 6, 2), [1, 3, 5]),
        (slice(4, None), [4, 5, 6]),
        ([6, 0], [6, 0]),
        (t.tensor([2, 2]), [2, 2]),
    ],
)
def test_positions_are_picked_as_transformer_lens_has_it(make_model, tokens, places, same):
    """A number drops the axis; (stop,), (start, stop, step), slices, lists and tensors keep it."""
    _, cache = make_model().run_with_cache(tokens)

    for made in (cache.decompose_resid, cache.stack_head_results, cache.accumulated_resid):
        expected = made()[:, :, same]
        got = made(pos_slice=places)
        t.testing.assert_close(got, expected[:, :, 0] if isinstance(places, int) else expected)


def test_head_results_are_written_by_heads(make_model, tokens):
    """`cache["result", layer]` and b_O add up to what attention adds."""
    model = make_model()
    _, cache = model.run_with_cache(tokens)

    whole = cache["result", -1].sum(2) + model.b_O[1].detach()
    assert error(whole, cache["attn_out", 1]) < 1e-12
    assert not cache["result", 0].requires_grad


def test_short_names_find_the_same_tensors(make_model, tokens):
    """`cache["pattern", 0]` and its kind are the tensors that the full names give."""
    _, cache = make_model().run_with_cache(tokens)
    full = {
        ("pattern", 0): "blocks.0.attn.attn_pattern",
        ("attn_scores", 0): "blocks.0.attn.attn_scores_masked",
        ("q", 1, "attn"): "blocks.1.attn.q",
        ("resid_post", -1): "blocks.1.resid_post",
        ("mlp_out", -2): "blocks.0.mlp.mlp_out",
        ("scale", 1, "ln2"): "blocks.1.ln2.residual_std",
        ("normalized", 0, "ln1"): "blocks.0.ln1.out",
        ("embed",): "embed.out",
        "embed": "embed.out",
        "pos_embed": "pos_embed.out",
        "scale": "ln_final.residual_std",
        "k1": "blocks.1.attn.k",
    }
    for short, name in full.items():
        assert t.equal(cache[short], cache[name]), short
    assert "embed" in cache
    assert ("pattern", 0) not in cache


def test_activations_of_all_layers_are_stacked(make_model, tokens):
    """The tensor of one name, of the layers below one, in their order."""
    _, cache = make_model().run_with_cache(tokens)

    stack = cache.stack_activation("scale", sublayer_type="ln2")
    assert t.equal(stack[1], cache["scale", 1, "ln2"])
    assert len(cache.stack_activation("pattern", 1)) == 1


def test_a_stack_that_was_sliced_is_scaled_by_the_same_slice(make_model, tokens):
    """A stack of one position divided by all positions' scales would be something else: refused."""
    _, cache = make_model().run_with_cache(tokens[:1])
    parts = cache.decompose_resid(pos_slice=-1)

    with pytest.raises(PvmlError, match="give the pos_slice that made the stack"):
        cache.apply_ln_to_stack(parts)
    whole = cache.decompose_resid()
    with pytest.raises(PvmlError, match=r"must be \(components, 1, d_model\), as ln_final"):
        cache.logit_attrs(whole, 3, pos_slice=-1)
    with pytest.raises(PvmlError, match=r"must be \(components, 1, 2, d_model\), as ln_final"):
        cache.logit_attrs(whole, 3, pos_slice=(0, 2))
    cache.remove_batch_dim()
    with pytest.raises(PvmlError, match=r"must be \(components, d_model\), as ln_final"):
        cache.logit_attrs(whole[:, 0], 3, pos_slice=-1)
    with pytest.raises(PvmlError, match="give the pos_slice"):
        cache.logit_attrs(parts, 3)


def test_half_precision_heads_are_added_up_in_float32(make_model, tokens):
    """Products of bfloat16 weights are float32: their sums would be coarse."""
    _, cache = make_model().bfloat16().run_with_cache(tokens)

    assert cache.stack_head_results().dtype == t.float32


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda c: c.decompose_resid(3), "layer must be 0 to 2"),
        (lambda c: c.stack_head_results(-2), "layer must be 0 to 2"),
        (lambda c: c.decompose_resid(0, incl_embeds=False), "nothing below layer 0"),
        (lambda c: c.decompose_resid(mlp_input=True), "no MLP reads the last"),
        (lambda c: c.accumulated_resid(mlp_input=True), "no MLP reads the last"),
        (lambda c: c.decompose_resid(pos_slice=7), "does not fit 7 positions"),
        (
            lambda c: c.logit_attrs(c.decompose_resid(), t.tensor([1, 2, 3])),
            r"token for all, or tokens of shape \(2,\), or tokens of shape \(2, 7\)$",
        ),
        (lambda c: c.logit_attrs(c.decompose_resid(), 1, t.tensor([1, 2])), "one shape"),
        (lambda c: c.logit_attrs(t.zeros(1, 2, 7, 5), 1), "last axis is d_model, 13"),
        (lambda c: c.logit_attrs(c.decompose_resid(), 29), "token ids run from 0 to 28"),
        (lambda c: c.logit_attrs(c.decompose_resid(), " cat"), "no tokenizer"),
        (lambda c: c.stack_activation("pattern", 0), "no layer below 0"),
        (lambda c: c["resid_pre", 2], "no layer 2"),
        (lambda c: c["resid_pre", -3], "no layer -3"),
        (lambda c: c["attn_pattern", 0], "PvML's name"),
    ],
)
def test_what_is_not_there_is_refused(make_model, tokens, ask, message):
    """A layer, position, part or token that does not exist is an error with its name."""
    _, cache = make_model().run_with_cache(tokens)

    with pytest.raises(PvmlError, match=message):
        ask(cache)


def test_attention_only_models_have_no_streams_before_mlps(make_model, tokens):
    """incl_mid and mlp_input ask for what such a model does not have."""
    _, cache = make_model(attn_only=True).run_with_cache(tokens)

    with pytest.raises(PvmlError, match="attention-only"):
        cache.accumulated_resid(incl_mid=True)
    with pytest.raises(PvmlError, match="attention-only"):
        cache.decompose_resid(0, mlp_input=True)


def test_attention_only_models_say_that_they_have_no_mlps(make_model, tokens):
    """What only an MLP makes is told so, to a cache and to a hook; another name is as ever."""
    model = make_model(attn_only=True)
    _, cache = model.run_with_cache(tokens)

    asked = [("mlp_out", 0), ("post", 1), ("resid_mid", 0), ("scale", 0, "ln2")]
    for name in (*asked, "blocks.0.mlp.pre", "blocks.0.hook_mlp_out"):
        with pytest.raises(KeyError, match="was not kept: this model is attention-only: it has no"):
            cache[name]
    for name in ("blocks.0.hook_mlp_out", "*.mlp.post"):
        with pytest.raises(PvmlError, match="attention-only: it has no MLPs"):
            model.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook: x)])
    with pytest.raises(KeyError, match="did you mean"):
        cache["blocks.0.attn.hook_patern"]


def test_a_part_of_a_pass_is_not_enough(make_model, tokens):
    """What was not kept is a KeyError with its name; a cache of a block has no whole stream."""
    model = make_model()
    _, cache = model.run_with_cache(tokens, names_filter="*.hook_z")
    with capture(model.blocks[0]) as of_a_block:
        model(tokens)

    assert cache.stack_head_results().shape == (6, 2, 7, 13)
    with pytest.raises(KeyError, match="resid_post"):
        cache.stack_head_results(incl_remainder=True)
    with pytest.raises(KeyError, match="hook_pattern"):
        cache["pattern", 0]
    with pytest.raises(PvmlError, match="not of a whole model"):
        of_a_block.decompose_resid()


def test_weights_that_have_changed_are_refused(make_model, tokens):
    """Old activations and new weights make no sum; what needs no weights is still there."""
    model = make_model()
    _, cache = model.run_with_cache(tokens)
    with t.no_grad():
        model.blocks[0].attn.W_O[1] = 0

    for ask in (
        lambda: cache["result", 0],
        cache.stack_head_results,
        lambda: cache.apply_ln_to_stack(cache.decompose_resid()),
        lambda: cache.logit_attrs(cache.decompose_resid(), 3),
    ):
        with pytest.raises(PvmlError, match="weights have changed since this pass"):
            ask()
    assert len(cache.decompose_resid()) == 6
    assert cache["pattern", -1].shape == (2, 3, 7, 7)


class Lens:
    """What TransformerLens's cache asks of a model."""

    def __init__(self, model):
        cfg = model.cfg
        self.cfg = SimpleNamespace(
            n_layers=cfg.n_layers,
            n_heads=cfg.n_heads,
            d_model=cfg.d_model,
            attn_only=cfg.attn_only,
            normalization_type="LN" if cfg.normalization == "LN" else None,
        )
        self.blocks = model.blocks
        self.tokens_to_residual_directions = model.tokens_to_residual_directions


@pytest.mark.parametrize(
    "kind", [{}, {"attn_only": True}, {"positions": "none", "normalization": "none"}], ids=str
)
def test_transformer_lenss_own_cache_says_the_same(make_model, tokens, kind):
    """Its class over the same tensors gives the same stacks, labels and attributions.

    It leaves each LayerNorm's w out, for it expects that w was folded: w is 1 here.
    """
    lens = pytest.importorskip("transformer_lens.ActivationCache")
    model = make_model(**kind)
    with t.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("ln1.w", "ln2.w", "ln_final.w")):
                parameter.fill_(1.0)
        _, ours = model.run_with_cache(tokens)
        theirs = lens.ActivationCache(
            {place.lens: ours[place.lens] for place in places(model) if place.lens}, Lens(model)
        )
        mids = not model.cfg.attn_only
        same = [
            lambda c: c.decompose_resid(return_labels=True),
            lambda c: c.decompose_resid(1, mlp_input=mids, apply_ln=True, return_labels=True),
            lambda c: c.decompose_resid(mode="attn", incl_embeds=False, pos_slice=(1, 4)),
            lambda c: c.accumulated_resid(incl_mid=mids, return_labels=True),
            lambda c: c.accumulated_resid(1, apply_ln=True, mlp_input=mids, pos_slice=-1),
            lambda c: c.stack_head_results(return_labels=True, incl_remainder=True),
            lambda c: c.stack_head_results(1, apply_ln=True, pos_slice=[0, 3]),
            lambda c: c.stack_activation("pattern"),
            lambda c: c.logit_attrs(c.decompose_resid(), tokens, tokens.flip(1)),
            lambda c: c.logit_attrs(c.decompose_resid(pos_slice=-1), tokens[:, 0], pos_slice=-1),
            lambda c: c["q", -1],
            lambda c: c["attn_scores", 0],
        ]
        for ask in same:
            mine, their = ask(ours), ask(theirs)
            if isinstance(mine, tuple):
                assert mine[1] == their[1]
                mine, their = mine[0], their[0]
            t.testing.assert_close(mine, their, rtol=1e-12, atol=1e-12)
