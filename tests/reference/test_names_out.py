"""PvML's tensors in other libraries' names: what comes out goes in again, or is refused."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.parity.check import move_off_defaults
from pvml.reference.names import config_from_hugging_face, from_hugging_face
from pvml.reference.names_out import (
    has_one_table,
    hugging_face_fields,
    lens_fields,
    not_in_gpt2,
    not_in_nanogpt,
    to_hugging_face,
    to_lens,
    to_nanogpt,
)

SIZES = {"d_model": 12, "n_heads": 3, "n_layers": 2, "n_ctx": 7, "d_vocab": 29}


def made(**changes: Any) -> tuple[dict[str, Tensor], Config]:
    """The weights of a random model, all off their defaults but b_U, and its Config."""
    cfg = Config(**{**SIZES, **changes})
    weights = dict(move_off_defaults(Transformer(cfg, seed=1), 2).state_dict())
    weights["unembed.b_U"] = t.zeros(cfg.d_vocab)
    return weights, cfg


@pytest.mark.parametrize("tied", [False, True], ids=["own W_U", "tied"])
def test_hugging_faces_names_and_back(tied: bool) -> None:
    """Every tensor and every size comes back exactly as it was."""
    changes = {"d_mlp": 31, "layer_norm_eps": 1e-6, "init_range": 0.3}
    weights, cfg = made(tie_embeddings=tied, **changes)
    there = to_hugging_face(weights, cfg)
    back = from_hugging_face(there, cfg)

    assert back.keys() == weights.keys()
    assert all(t.equal(back[name], x) for name, x in weights.items())
    assert ("lm_head.weight" in there) is not tied
    fields = hugging_face_fields(cfg, tied=tied)
    assert fields["tie_word_embeddings"] is tied
    sizes = {**config_from_hugging_face(fields).to_dict(), "tie_embeddings": tied}
    assert sizes == cfg.to_dict()


def test_nanogpts_layout_by_hand() -> None:
    """A row of its c_attn is one number of one head's query; its c_proj reads z in columns."""
    weights, cfg = made(tie_embeddings=True)
    there = to_nanogpt(weights, cfg)

    joint = there["transformer.h.1.attn.c_attn.weight"]
    assert joint.shape == (36, 12)
    assert t.equal(joint[4 + 2], weights["blocks.1.attn.W_Q"][1, :, 2])
    assert t.equal(joint[12 + 8 + 3], weights["blocks.1.attn.W_K"][2, :, 3])
    assert t.equal(joint[24], weights["blocks.1.attn.W_V"][0, :, 0])
    assert there["transformer.h.1.attn.c_attn.bias"][24 + 5] == weights["blocks.1.attn.b_V"][1, 1]
    out = there["transformer.h.0.attn.c_proj.weight"]
    assert t.equal(out[:, 8 + 1], weights["blocks.0.attn.W_O"][2, 1])
    assert there["transformer.h.0.mlp.c_fc.weight"].shape == (48, 12)
    assert t.equal(there["transformer.h.0.mlp.c_proj.weight"], weights["blocks.0.mlp.W_out"].T)
    assert there["lm_head.weight"] is there["transformer.wte.weight"]


def test_a_padded_vocabulary_is_filled_with_zeros() -> None:
    """The rows past d_vocab are zeros, and the others are the table's."""
    weights, cfg = made(tie_embeddings=True)
    table = to_nanogpt(weights, cfg, rows=64)["lm_head.weight"]
    assert table.shape == (64, 12)
    assert t.equal(table[:29], weights["embed.W_E"]) and not table[29:].any()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attn_only": True}, "no MLPs"),
        ({"positions": "none"}, "positions are none"),
        ({"positions": "shortformer"}, "positions are shortformer"),
        ({"normalization": "none"}, "no LayerNorm"),
        ({"d_head": 5}, "3 heads of 5"),
    ],
)
def test_what_a_gpt2_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    """Each kind of model that no GPT-2 is, is named, with its tensors and with its sizes."""
    weights, cfg = made(**changes)
    with pytest.raises(PvmlError, match=told):
        to_hugging_face(weights, cfg)
    with pytest.raises(PvmlError, match=told):
        to_nanogpt(weights, cfg)
    with pytest.raises(PvmlError, match=told):
        hugging_face_fields(cfg, tied=False)


def test_every_reason_is_told_at_once() -> None:
    """A model that a GPT-2 cannot be in several ways hears of all of them."""
    weights, cfg = made(attn_only=True, positions="none", normalization="none", d_head=5)
    weights["unembed.b_U"] = t.ones(29)
    assert len(not_in_gpt2(cfg, weights)) == 5
    assert len(not_in_gpt2(cfg)) == 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "untied"),
        ({"tie_embeddings": True, "d_mlp": 31}, "always 4 x d_model, 48"),
        ({"tie_embeddings": True, "layer_norm_eps": 1e-6}, "always 1e-05"),
    ],
)
def test_what_nanogpt_alone_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    """nanoGPT ties its tables, and has one width of MLP and one eps: Hugging Face has all."""
    weights, cfg = made(**changes)
    to_hugging_face(weights, cfg)
    with pytest.raises(PvmlError, match=told):
        to_nanogpt(weights, cfg)


def test_two_equal_tables_are_one() -> None:
    """An untied model whose W_U is W_E transposed can be tied; one number more, and it cannot."""
    weights, cfg = made()
    weights["unembed.W_U"] = weights["embed.W_E"].T.clone()
    assert has_one_table(weights, cfg) and not not_in_nanogpt(cfg, weights)
    weights["unembed.W_U"][3, 4] += 1e-6
    assert not has_one_table(weights, cfg)


def test_lens_names_are_our_own() -> None:
    """TransformerLens gets every tensor by our name, a tied model a W_U besides."""
    weights, cfg = made(tie_embeddings=True, normalization="none", attn_only=True)
    there = to_lens(weights, cfg)
    assert there.keys() == {*weights, "unembed.W_U"}
    assert t.equal(there["unembed.W_U"], weights["embed.W_E"].T)
    fields = lens_fields(cfg)
    assert (fields["normalization_type"], fields["attn_only"]) == (None, True)
    for wrong, told in (({"positions": "shortformer"}, "shortformer"), ({"n_layers": 0}, "layers")):
        with pytest.raises(PvmlError, match=told):
            lens_fields(Config(**{**SIZES, **wrong}))
