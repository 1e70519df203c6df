"""TransformerLens's short names: each is the tensor of the table that it stands for."""

import pytest

from pvml.errors import PvmlError
from pvml.trace.act_names import get_act_name


@pytest.mark.parametrize(
    ("given", "full"),
    [
        (("q", 3), "blocks.3.attn.hook_q"),
        (("pattern", 0), "blocks.0.attn.hook_pattern"),
        (("attn", 0), "blocks.0.attn.hook_pattern"),
        (("attn_scores", 2), "blocks.2.attn.hook_attn_scores"),
        (("z", 1, "attn"), "blocks.1.attn.hook_z"),
        (("key", 1, "a"), "blocks.1.attn.hook_k"),
        (("result", 1), "blocks.1.attn.hook_result"),
        (("resid_pre", 5), "blocks.5.hook_resid_pre"),
        (("resid_mid", 5), "blocks.5.hook_resid_mid"),
        (("resid_post", 5, "block"), "blocks.5.hook_resid_post"),
        (("attn_out", 5), "blocks.5.hook_attn_out"),
        (("mlp_out", 5), "blocks.5.hook_mlp_out"),
        (("pre", 2), "blocks.2.mlp.hook_pre"),
        (("mlp_post", 2, "m"), "blocks.2.mlp.hook_post"),
        (("embed",), "hook_embed"),
        (("pos_embed",), "hook_pos_embed"),
        (("scale",), "ln_final.hook_scale"),
        (("normalized",), "ln_final.hook_normalized"),
        (("scale", 4, "ln1"), "blocks.4.ln1.hook_scale"),
        (("normalized", 27, "ln2"), "blocks.27.ln2.hook_normalized"),
        (("k6",), "blocks.6.attn.hook_k"),
        (("scale4ln1",), "blocks.4.ln1.hook_scale"),
        (("q", "*"), "blocks.*.attn.hook_q"),
        (("blocks.0.hook_resid_pre",), "blocks.0.hook_resid_pre"),
        (("hook_embed",), "hook_embed"),
    ],
)
def test_short_names_are_transformer_lenss(given, full):
    """Every kind of short name that notebooks use gives the full name."""
    assert get_act_name(*given) == full


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("patern", 0), "did you mean 'pattern'"),
        (("q",), "q needs a layer"),
        (("embed", 2), "embed is outside the layers"),
        (("scale", 2), "which LayerNorm's"),
        (("attn_pattern", 0), "PvML's name.*full name"),
        (("", 0), "no tensor has the short name ''"),
    ],
)
def test_other_names_are_errors(given, message):
    """What is no short name, or stands at no such layer, is an error that says so."""
    with pytest.raises(PvmlError, match=message):
        get_act_name(*given)
