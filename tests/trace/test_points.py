"""The table of names: complete, of the right shape, and in TransformerLens's words."""

import pytest
import torch as t

from pvml.axes import AXES
from pvml.modules.transformer import Transformer
from pvml.trace.points import PARAMETERS, POINTS
from pvml.trace.tap import listen, places

KINDS = [
    {},
    {"positions": "shortformer"},
    {"positions": "none", "attn_only": True},
    {"attn_only": True, "normalization": "none"},
    {"n_layers": 0},
    {"tie_embeddings": True},
]


def sizes(model: Transformer) -> dict[str, int]:
    cfg = model.cfg.to_dict()
    return {**cfg, "batch": 2, "posn": 7, "posn_q": 7, "posn_k": 7, "1": 1}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_pass_fires_exactly_the_names_of_the_table(make_model, tokens, kind):
    """Every name that the table gives a model passes once, in the shape its axes say."""
    model = make_model(**kind)
    heard = []

    with listen(model, "*", lambda name, x: heard.append((name, tuple(x.shape)))):
        model(tokens)

    expected = [
        (place.name, tuple(sizes(model)[axis] for axis in place.point.axes.split()))
        for place in places(model)
    ]
    assert sorted(heard) == sorted(expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_parameters_have_the_axes_of_the_table(make_model, kind):
    """Every parameter of a model stands in the table, with its shape."""
    model = make_model(**kind)
    for path, module in model.named_modules():
        if not hasattr(module, "tap"):
            continue
        axes = {
            name: words
            for names, (words, _) in PARAMETERS[module.tap.kind].items()
            for name in names.split(", ")
        }
        for name, parameter in module.named_parameters(recurse=False):
            expected = tuple(sizes(model)[axis] for axis in axes[name].split())
            assert tuple(parameter.shape) == expected, f"{path}.{name}"


def test_every_axis_word_is_in_the_glossary():
    """No table uses an axis that the glossary does not explain."""
    used = {word for rows in POINTS.values() for point in rows for word in point.axes.split()}
    used |= {w for rows in PARAMETERS.values() for axes, _ in rows.values() for w in axes.split()}

    assert used <= set(AXES)


def test_transformer_lens_names_are_the_ones_notebooks_use(make_model):
    """The names of HookedTransformer's hooks stand for our tensors, each for one."""
    lens = {place.lens: place.name for place in places(make_model()) if place.lens}

    assert lens["hook_embed"] == "embed.out"
    assert lens["hook_pos_embed"] == "pos_embed.out"
    assert lens["blocks.1.hook_resid_pre"] == "blocks.1.resid_pre"
    assert lens["blocks.1.hook_attn_out"] == "blocks.1.attn.attn_out"
    assert lens["blocks.1.hook_mlp_out"] == "blocks.1.mlp.mlp_out"
    assert lens["blocks.1.attn.hook_attn_scores"] == "blocks.1.attn.attn_scores_masked"
    assert lens["blocks.1.attn.hook_pattern"] == "blocks.1.attn.attn_pattern"
    assert lens["blocks.1.ln2.hook_scale"] == "blocks.1.ln2.residual_std"
    assert lens["ln_final.hook_normalized"] == "ln_final.out"
    named = [place for place in places(make_model()) if place.lens]
    assert len(named) == len(lens)


def test_what_feeds_what_is_true(make_model, tokens):
    """Replacing the tensor that another one `feeds` cuts that other one off."""
    model = make_model(n_layers=1)
    alone = model(tokens)
    for place in places(model):
        if not place.point.feeds or place.point.name == "in":
            continue
        path = place.name.rpartition(".")[0]
        after = f"{path}.{place.point.feeds}"
        kept = {}
        with listen(model, after, lambda _, x: kept.update(x=x.detach().clone())):
            model(tokens)
        spoil = (lambda _, x: ~x) if place.point.name == "mask" else (lambda _, x: x * 2)

        def restore(_, x, kept=kept):
            return kept["x"]

        with listen(model, place.name, spoil, edits=True), listen(model, "*unembed.logits", print):
            changed = model(tokens)
        with (
            t.no_grad(),
            listen_unchecked(model, place.name, spoil),
            listen_unchecked(model, after, restore),
        ):
            restored = model(tokens)

        assert not t.allclose(changed, alone, equal_nan=True), place.name
        t.testing.assert_close(restored, alone, rtol=0, atol=1e-12)


def listen_unchecked(model, name, fn):
    from pvml.trace.tap import Listener, attached, matching

    return attached(matching(model, name), Listener(fn, edits=True))
