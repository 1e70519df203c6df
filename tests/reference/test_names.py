"""Hugging Face's GPT-2 in PvML's names: every tensor lands, or every fault is told."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2
from pvml.reference.names import (
    config_from_hugging_face,
    from_hugging_face,
    hugging_face_notes,
)

SIZES = {"d_model": 21, "n_heads": 3, "n_layers": 2, "n_ctx": 17, "d_vocab": 53, "d_mlp": 37}


def cfg(**changes: Any) -> Config:
    return Config(**{**SIZES, **changes})


@pytest.fixture(scope="module")
def theirs() -> Any:
    return tiny_gpt2(seed=1, **SIZES)


@pytest.fixture
def state(theirs: Any) -> dict[str, Tensor]:
    return dict(theirs.state_dict())


@pytest.fixture
def tokens() -> Tensor:
    return t.randint(0, 53, (2, 13), generator=t.Generator().manual_seed(5))


def logits_of(weights: dict[str, Tensor], shape: Config, tokens: Tensor) -> Tensor:
    model = Transformer(shape).double()
    model.load_state_dict(weights)
    with t.no_grad():
        return model(tokens)


def logits_there(model: Any, tokens: Tensor) -> Tensor:
    with t.no_grad():
        return model(tokens).logits


def test_a_head_is_a_slice_of_the_joint_projection(state: dict[str, Tensor]) -> None:
    """W_Q of head 2 is columns 14 to 20 of c_attn, W_K starts at 21, W_V at 42, in this size."""
    ours = from_hugging_face(state, cfg())
    joint = state["transformer.h.1.attn.c_attn.weight"]
    bias = state["transformer.h.1.attn.c_attn.bias"]

    assert t.equal(ours["blocks.1.attn.W_Q"][2], joint[:, 14:21])
    assert t.equal(ours["blocks.1.attn.W_K"][0], joint[:, 21:28])
    assert t.equal(ours["blocks.1.attn.W_V"][1], joint[:, 49:56])
    assert t.equal(ours["blocks.1.attn.b_V"][2], bias[56:63])
    assert t.equal(ours["blocks.1.attn.W_O"][1], state["transformer.h.1.attn.c_proj.weight"][7:14])


def test_the_names_are_the_models_own(state: dict[str, Tensor]) -> None:
    """What comes out is exactly the model's state dict, names and shapes."""
    ours = from_hugging_face(state, cfg())
    expected = Transformer(cfg()).state_dict()

    assert {k: x.shape for k, x in ours.items()} == {k: x.shape for k, x in expected.items()}


def test_logits_agree(theirs: Any, state: dict[str, Tensor], tokens: Tensor) -> None:
    """Every parameter off its default, float64: the logits agree to 1e-12."""
    ours = logits_of(from_hugging_face(state, cfg()), cfg(), tokens)

    t.testing.assert_close(ours, logits_there(theirs, tokens), rtol=0, atol=1e-12)


def test_logits_agree_when_tied(theirs: Any, state: dict[str, Tensor], tokens: Tensor) -> None:
    """A model whose tables are one takes the same weights and gives the same logits."""
    tied = cfg(tie_embeddings=True)
    ours = logits_of(from_hugging_face(state, tied), tied, tokens)

    t.testing.assert_close(ours, logits_there(theirs, tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropped", ["", "transformer."])
@pytest.mark.parametrize("wrapper", ["", "module.", "_orig_mod.", "_orig_mod.module."])
def test_prefixes_change_nothing(state: dict[str, Tensor], wrapper: str, dropped: str) -> None:
    """With or without transformer., wrapped by torch.compile or DDP, the tensors are the same."""
    renamed = {wrapper + name.removeprefix(dropped): x for name, x in state.items()}
    expected, found = from_hugging_face(state, cfg()), from_hugging_face(renamed, cfg())

    assert found.keys() == expected.keys()
    assert all(t.equal(found[name], expected[name]) for name in expected)


def test_old_mask_buffers_are_passed_over(state: dict[str, Tensor]) -> None:
    """attn.bias and attn.masked_bias of the model's own blocks are no parameters; others are."""
    for i in range(2):
        state[f"transformer.h.{i}.attn.bias"] = t.ones(1, 1, 17, 17, dtype=t.uint8).tril()
        state[f"transformer.h.{i}.attn.masked_bias"] = t.tensor(-1e4)
    expected = from_hugging_face(dict(state), cfg())

    assert expected.keys() == Transformer(cfg()).state_dict().keys()
    state["transformer.h.2.attn.bias"] = t.ones(1)
    with pytest.raises(PvmlError, match=r"unexpected: h\.2\.attn\.bias$"):
        from_hugging_face(state, cfg())


@pytest.mark.parametrize("tied", [True, None])
def test_one_stored_table_serves_twice(state: dict[str, Tensor], tied: bool | None) -> None:
    """Without lm_head.weight, as safetensors files have it, W_U is W_E transposed."""
    del state["lm_head.weight"]

    ours = from_hugging_face(state, cfg(), tied=tied)

    assert t.equal(ours["unembed.W_U"], state["transformer.wte.weight"].T)


def test_an_untied_table_is_kept(state: dict[str, Tensor], tokens: Tensor) -> None:
    """A lm_head of its own becomes W_U; said to be tied, it is refused instead of dropped."""
    state["lm_head.weight"] = state["lm_head.weight"] + 1.0

    ours = from_hugging_face(state, cfg(), tied=False)

    assert t.equal(ours["unembed.W_U"], state["lm_head.weight"].T)
    assert t.equal(ours["embed.W_E"], state["transformer.wte.weight"])
    with pytest.raises(PvmlError, match="differ, but are said to be one table"):
        from_hugging_face(state, cfg(), tied=True)
    with pytest.raises(PvmlError, match="differ, but are said to be one table"):
        from_hugging_face(state, cfg(tie_embeddings=True))


def test_an_untied_table_that_is_absent_is_missing(state: dict[str, Tensor]) -> None:
    """Two tables were promised and one is there: an error, not a silent tie."""
    del state["lm_head.weight"]

    with pytest.raises(PvmlError, match=r"missing: lm_head\.weight$"):
        from_hugging_face(state, cfg(), tied=False)


def test_every_fault_is_told_at_once(state: dict[str, Tensor]) -> None:
    """One error lists each missing, unexpected and wrongly shaped tensor."""
    state["transformer.h.0.attn.c_atn.weight"] = state.pop("transformer.h.0.attn.c_attn.weight")
    del state["transformer.ln_f.bias"]
    state["transformer.h.1.mlp.c_fc.weight"] = state["transformer.h.1.mlp.c_fc.weight"].T
    state["transformer.wpe.weight"] = t.zeros(16, 21)

    with pytest.raises(PvmlError) as refusal:
        from_hugging_face(state, cfg())

    told = str(refusal.value)
    assert "missing: h.0.attn.c_attn.weight, ln_f.bias;" in told
    assert "unexpected: h.0.attn.c_atn.weight;" in told
    assert "wpe.weight (16, 21) instead of (17, 21)" in told
    assert "h.1.mlp.c_fc.weight (37, 21) instead of (21, 37)" in told


@pytest.mark.parametrize("name", sorted(tiny_gpt2(seed=1, **SIZES).state_dict()))
def test_no_tensor_may_be_absent(state: dict[str, Tensor], name: str) -> None:
    """Whichever tensor is left out, it is named as missing (the tied table excepted)."""
    del state[name]
    bare = name.removeprefix("transformer.")

    with pytest.raises(PvmlError, match=rf"missing: {bare}$"):
        from_hugging_face(state, cfg(), tied=False)


def test_two_spellings_of_one_tensor_are_refused(state: dict[str, Tensor]) -> None:
    """wte.weight beside transformer.wte.weight: which one counts is not ours to guess."""
    state["wte.weight"] = state["transformer.wte.weight"]

    with pytest.raises(PvmlError, match=r"two tensors are called wte\.weight"):
        from_hugging_face(state, cfg())


def test_heads_that_do_not_fill_the_projection_are_refused(state: dict[str, Tensor]) -> None:
    """n_heads and d_head must fill c_attn's columns; the message names both."""
    with pytest.raises(PvmlError, match=r"n_heads 4, d_head 7.*c_attn.weight \(21, 63\) instead"):
        from_hugging_face(state, cfg(n_heads=4, d_head=7))
    with pytest.raises(PvmlError, match="d_model 21 is not a multiple of n_heads 4"):
        config_from_hugging_face({"n_embd": 21, "n_head": 4})


@pytest.mark.parametrize(
    "change", [{"attn_only": True}, {"positions": "shortformer"}, {"normalization": "none"}]
)
def test_a_model_that_is_no_gpt2_is_refused(
    state: dict[str, Tensor], change: dict[str, Any]
) -> None:
    """GPT-2's tensors do not make a model without MLPs, with other positions or without norms."""
    with pytest.raises(PvmlError, match=r"a GPT-2 has MLPs, standard positions and LayerNorm"):
        from_hugging_face(state, cfg(**change))


def test_the_config_is_translated(theirs: Any) -> None:
    """Sizes, eps and the init range arrive; n_inner is d_mlp."""
    theirs_says = {**theirs.config.to_dict(), "layer_norm_epsilon": 1e-3, "initializer_range": 0.5}

    assert config_from_hugging_face(theirs_says) == cfg(layer_norm_eps=1e-3, init_range=0.5)


def test_what_a_config_leaves_out_is_gpt2_small() -> None:
    """Hugging Face's defaults for GPT-2 are ours, so an empty description is GPT-2 small."""
    from transformers import GPT2Config

    assert config_from_hugging_face({}) == Config()
    assert config_from_hugging_face(GPT2Config().to_dict()) == Config()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_function", "gelu"),
        ("activation_function", "relu"),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("reorder_and_upcast_attn", True),
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 4}),
        ("layer_norm_eps", 1e-6),
        ("logit_scale", 0.1),
    ],
)
def test_what_cannot_be_expressed_is_named(field: str, value: Any) -> None:
    """A field that changes what the model computes is refused with its name and value."""
    with pytest.raises(PvmlError, match=rf"cannot express this GPT-2: {field} is "):
        config_from_hugging_face({"n_embd": 24, field: value})


def test_fields_that_are_not_known_are_told() -> None:
    """Hugging Face's own GPT-2 config has none; one of somebody else's is named."""
    from transformers import GPT2Config

    theirs = GPT2Config().to_dict()
    assert hugging_face_notes(theirs) == []
    (note,) = hugging_face_notes({**theirs, "wonders": 3, "logit_scale": 1.0, "_of_theirs": 1})
    assert note.endswith("left out: logit_scale, wonders")


def test_another_architecture_is_named() -> None:
    """A folder of another model_type is not a GPT-2, whatever its sizes."""
    with pytest.raises(PvmlError, match="model_type is 'gpt_neo'"):
        config_from_hugging_face({"model_type": "gpt_neo"})
