"""The logit lens: its last row is the model, its first the embeddings; both scales by formula."""

import pytest
import torch as t

from pvml.attribution import attribute, logit_lens
from pvml.errors import CheckFailed, PvmlError
from pvml.trace.tap import listen

KINDS = [
    {},
    {"attn_only": True},
    {"positions": "shortformer"},
    {"positions": "none", "normalization": "none"},
    {"n_layers": 0},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("scale", ["own", "final"])
def test_the_last_row_is_the_model(make_model, tokens, kind, scale):
    """For any model, position and scale, what follows the last layer is what the model says."""
    model = make_model(**kind)
    for position in (0, 4, -1):
        found = logit_lens(model, tokens[:1], position, scale=scale)
        own = model(tokens[:1])[0, position].detach()
        t.testing.assert_close(found.logits[-1], own, rtol=1e-11, atol=1e-12)
        assert found.labels[-1] == "final_post"
        assert len(found.labels) == len(found.logits) == model.cfg.n_layers + 1


def test_own_scale_is_the_models_own_readout(make_model, tokens):
    """Each stream through the model's ln_final and unembedding, as if it were the last."""
    model = make_model()
    found = logit_lens(model, tokens[:1], incl_mid=True)
    _, cache = model.run_with_cache(tokens[:1])

    assert found.labels == ("0_pre", "0_mid", "1_pre", "1_mid", "final_post")
    streams = t.cat(
        [cache[name, layer] for layer in range(2) for name in ("resid_pre", "resid_mid")]
    )
    expected = model.unembed(model.ln_final(streams)).detach()[:, -1]
    t.testing.assert_close(found.logits[:-1], expected, rtol=1e-11, atol=1e-12)


def test_under_the_final_scale_layers_differ_by_what_they_add(make_model, tokens):
    """From row to row the logit grows by the layer's heads, b_O and MLP as `attribute` has them."""
    model = make_model()
    found = logit_lens(model, tokens[:1], scale="final").logits[:, 4]
    parts = attribute(model, tokens[:1], 4)
    for layer in range(2):
        added = sum(
            value
            for part, value in zip(parts.parts, parts.values[:, 0], strict=True)
            if part.layer == layer
        )
        t.testing.assert_close(found[layer + 1] - found[layer], added, rtol=1e-9, atol=1e-11)


def test_ranks_and_probabilities(make_model, tokens):
    """The likeliest has rank 1; among equals the lower id comes first; chances add up to 1."""
    found = logit_lens(make_model(), tokens[:1])
    t.testing.assert_close(found.probabilities.sum(1), t.ones(3, dtype=t.float64))
    for row, (label, first, chance) in enumerate(found.likeliest()):
        assert label == found.labels[row]
        assert found.ranks(first)[row] == 1
        assert chance == pytest.approx(float(found.probabilities[row].max()))
    by_rank = {int(found.ranks(token)[0]): token for token in range(29)}
    assert [by_rank[i + 1] for i in range(29)] == found.logits[0].argsort(descending=True).tolist()
    found.logits[0] = 0.0
    assert [int(found.ranks(token)[0]) for token in (0, 1, 28)] == [1, 2, 29]


def test_the_table_has_a_row_for_each_stream(make_model, tokens):
    """Its likeliest token, and for a given one logit, probability and rank."""
    found = logit_lens(make_model(), tokens[:1])
    words = [f"[{i}]" for i in range(29)]
    table = found.table(4, words)

    assert table.row_count == 3
    assert [column.header for column in table.columns] == [
        *("stream", "likeliest", "probability"),
        *("logit of '[4]'", "probability", "rank"),
    ]
    assert [*table.columns[5].cells] == [str(int(rank)) for rank in found.ranks(4)]
    assert len(found.table().columns) == 3


def test_it_says_what_was_frozen(make_model, tokens):
    """The scale is told, and a model without LayerNorm has none."""
    model, plain = make_model(), make_model(normalization="none")

    assert "its own" in logit_lens(model, tokens[:1]).said
    assert "frozen" in logit_lens(model, tokens[:1], scale="final").said
    assert "no LayerNorm" in logit_lens(plain, tokens[:1]).said
    assert logit_lens(plain, tokens[:1]).scale is None


def test_a_last_row_that_is_off_is_an_error(make_model, tokens):
    """If something edits the logits, the lens is not of this model."""
    model = make_model()
    with listen(model, "unembed.logits", lambda name, x: x * 2, edits=True):
        with pytest.raises(CheckFailed, match="the model's own logits"):
            logit_lens(model, tokens[:1])


def test_bad_input_is_refused(make_model, tokens):
    """Two sequences, a position or token that is not there, another scale, no MLPs."""
    model = make_model()
    with pytest.raises(PvmlError, match="one sequence"):
        logit_lens(model, tokens)
    with pytest.raises(PvmlError, match="position 7"):
        logit_lens(model, tokens[:1], 7)
    with pytest.raises(PvmlError, match="outside the vocabulary"):
        logit_lens(model, tokens[:1]).ranks(29)
    with pytest.raises(PvmlError, match="attention-only"):
        logit_lens(make_model(attn_only=True), tokens[:1], incl_mid=True)
