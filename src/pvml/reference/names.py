"""Hugging Face's GPT-2 in PvML's names: its config fields, and its tensors, strict both ways.

Nothing is read from disk here, and nothing of Hugging Face's is imported.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch as t
from einops import rearrange
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.reference.settings import foreign, not_understood
from pvml.reference.state_dicts import (
    AS_IT_IS,
    COMPUTED,
    Converted,
    Origin,
    Part,
    bare_names,
    convert,
    faults,
    require_layers,
)

_SIZES = {
    "n_embd": "d_model",
    "n_head": "n_heads",
    "n_layer": "n_layers",
    "n_positions": "n_ctx",
    "vocab_size": "d_vocab",
    "n_inner": "d_mlp",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "init_range",
}
_ONLY: dict[str, tuple[object, ...]] = {
    # gelu_pytorch_tanh is the same formula under another name
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "quantization_config": (None,),
    "pruned_heads": (None, {}),
}
"""Fields that change what a GPT-2 computes, with the values that PvML's model computes too."""
_IDLE = [
    "architectures",
    "attn_pdrop",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "model_type",
    "n_ctx",
    "n_special",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "predict_special_tokens",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tie_word_embeddings",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
]
"""Fields that change no logit of a model that is not being trained, or are read elsewhere."""
_KNOWN = frozenset((*_SIZES, *_ONLY, *_IDLE))

_HEAD = "lm_head.weight"
_TABLE = "wte.weight"


def config_from_hugging_face(theirs: Mapping[str, Any]) -> Config:
    """The Config of a GPT-2 described by Hugging Face's fields; what is absent is GPT-2 small's.

    The unembedding gets a table of its own even where theirs is tied to the embedding's.

    Raises: PvmlError naming every field whose value PvML's model cannot express.
    """
    if theirs.get("model_type", "gpt2") != "gpt2":
        raise PvmlError(f"model_type is {theirs['model_type']!r}: PvML's model is GPT-2 only")
    fault = [
        f"{field} is {theirs[field]!r} (only {' or '.join(repr(value) for value in allowed)})"
        for field, allowed in _ONLY.items()
        if field in theirs and theirs[field] not in allowed
    ]
    eps = theirs.get("layer_norm_epsilon", Config.layer_norm_eps)
    fault += foreign(theirs, _KNOWN, eps)
    if fault:
        raise PvmlError(f"PvML's model cannot express this GPT-2: {'; '.join(fault)}")
    sizes = {ours: theirs[field] for field, ours in _SIZES.items() if field in theirs}
    if sizes.get("d_mlp", 0) is None:  # their way of leaving n_inner out
        del sizes["d_mlp"]
    return Config(**sizes)


def hugging_face_notes(theirs: Mapping[str, Any]) -> list[str]:
    """A sentence on the fields that `config_from_hugging_face` left out, if there are any."""
    return not_understood(theirs, _KNOWN)


def from_hugging_face(
    state: Mapping[str, Tensor], cfg: Config, *, tied: bool | None = None
) -> dict[str, Tensor]:
    """PvML's tensors, by name, out of a GPT2LMHeadModel's or a GPT2Model's state dict.

    `convert_hugging_face` says where each came from, too.

    Raises: PvmlError as `convert_hugging_face`.
    """
    return convert_hugging_face(state, cfg, tied=tied).weights


def convert_hugging_face(
    state: Mapping[str, Tensor], cfg: Config, *, tied: bool | None = None
) -> Converted:
    """PvML's tensors out of a GPT2LMHeadModel's or a GPT2Model's state dict, and their origins.

    Prefixes left by wrappers are understood, and the mask buffers of old files passed over. tied:
    whether W_U is W_E transposed (True), a table of its own (False), or whatever the state dict
    holds (None). Views of the given tensors where possible. How many heads share the projections'
    columns cannot be seen in them: it is taken from cfg.

    Raises: PvmlError listing every tensor that is missing, unexpected or of another shape.
    """
    return convert_gpt2(state, cfg, gpt2_parts(cfg), tied)


def convert_gpt2(
    state: Mapping[str, Tensor], cfg: Config, parts: Iterable[Part], tied: bool | None
) -> Converted:
    """`convert_hugging_face` with these parts: a GPT-2 in Hugging Face's names.

    Raises: PvmlError as `convert_hugging_face`.
    """
    _require_gpt2(cfg)
    require_layers(state, cfg.n_layers)
    keys = bare_names(state, "transformer.")
    buffers = [f"h.{i}.attn.{b}" for i in range(cfg.n_layers) for b in ("bias", "masked_bias")]
    ignored = {keys.pop(name): COMPUTED for name in buffers if name in keys}
    has_head = _HEAD in keys or tied is False
    needed = [part for part in parts if has_head or part.theirs != _HEAD]
    fault = faults(
        {name: state[key] for name, key in keys.items()},
        {part.theirs: part.shape for part in needed},
    )
    if fault:
        raise PvmlError(
            f"these are not the tensors of a GPT-2 with d_model {cfg.d_model}, n_heads "
            f"{cfg.n_heads}, d_head {cfg.d_head}, n_layers {cfg.n_layers}. {fault}"
        )
    if has_head and (tied or cfg.tie_embeddings):
        _require_same_table(state[keys[_HEAD]], state[keys[_TABLE]])

    weights: dict[str, Tensor] = {}
    origins: list[Origin] = []
    for origin, x in convert(state, keys, needed):
        if origin.ours == "unembed.W_U" and cfg.tie_embeddings:
            ignored[origin.theirs] = "it is W_E once more, and this model has one table"
            continue
        weights[origin.ours] = x
        origins.append(origin)
    if not cfg.tie_embeddings and not has_head:
        weights["unembed.W_U"] = weights["embed.W_E"].T
        origins.append(Origin("unembed.W_U", keys[_TABLE], "untied: a transposed copy of W_E"))
    weights["unembed.b_U"] = weights["embed.W_E"].new_zeros(cfg.d_vocab)
    origins.append(Origin("unembed.b_U", "", "zeros: a GPT-2 has no bias here"))
    return Converted(weights, origins, ignored)


def gpt2_parts(cfg: Config, *, linear: bool = False) -> Iterator[Part]:
    """Every tensor of a GPT2LMHeadModel of this shape, in Hugging Face's names.

    linear: the blocks' matrices are stored as nn.Linear has them, (out, in), and not (in, out).
    """
    d_model, d_mlp, table = cfg.d_model, cfg.d_mlp, (cfg.d_vocab, cfg.d_model)
    yield _renamed(_TABLE, "embed.W_E", *table)
    yield _renamed("wpe.weight", "pos_embed.W_pos", cfg.n_ctx, d_model)
    for i in range(cfg.n_layers):
        theirs, ours = f"h.{i}.", f"blocks.{i}."
        for norm in ("1", "2"):
            yield _renamed(f"{theirs}ln_{norm}.weight", f"{ours}ln{norm}.w", d_model)
            yield _renamed(f"{theirs}ln_{norm}.bias", f"{ours}ln{norm}.b", d_model)
        inside = [
            *_attention(f"{theirs}attn.", f"{ours}attn.", cfg),
            _renamed(f"{theirs}mlp.c_fc.weight", f"{ours}mlp.W_in", d_model, d_mlp),
            _renamed(f"{theirs}mlp.c_fc.bias", f"{ours}mlp.b_in", d_mlp),
            _renamed(f"{theirs}mlp.c_proj.weight", f"{ours}mlp.W_out", d_mlp, d_model),
            _renamed(f"{theirs}mlp.c_proj.bias", f"{ours}mlp.b_out", d_model),
        ]
        yield from (_of_linear(part) for part in inside) if linear else inside
    yield _renamed("ln_f.weight", "ln_final.w", d_model)
    yield _renamed("ln_f.bias", "ln_final.b", d_model)
    yield Part(_HEAD, table, "transposed", lambda x: {"unembed.W_U": x.T})


def _renamed(theirs: str, ours: str, *shape: int) -> Part:
    return Part(theirs, shape, AS_IT_IS, lambda x: {ours: x})


def _of_linear(part: Part) -> Part:
    """The same part out of a matrix that is stored transposed."""
    if len(part.shape) != 2:
        return part
    done = "transposed" if part.done == AS_IT_IS else f"transposed, {part.done}"
    return Part(part.theirs, part.shape[::-1], done, lambda x: part.convert(x.T))


def _attention(theirs: str, ours: str, cfg: Config) -> Iterator[Part]:
    """c_attn's columns run over q, k, v first, then over the heads, then within a head."""
    d_model, columns = cfg.d_model, cfg.n_heads * cfg.d_head
    heads = {"three": 3, "n_heads": cfg.n_heads}

    def split_weight(x: Tensor) -> dict[str, Tensor]:
        joint = "d_model (three n_heads d_head) -> three n_heads d_model d_head"
        q, k, v = rearrange(x, joint, **heads)
        return {f"{ours}W_Q": q, f"{ours}W_K": k, f"{ours}W_V": v}

    def split_bias(x: Tensor) -> dict[str, Tensor]:
        q, k, v = rearrange(x, "(three n_heads d_head) -> three n_heads d_head", **heads)
        return {f"{ours}b_Q": q, f"{ours}b_K": k, f"{ours}b_V": v}

    def split_output(x: Tensor) -> dict[str, Tensor]:
        by_head = "(n_heads d_head) d_model -> n_heads d_head d_model"
        return {f"{ours}W_O": rearrange(x, by_head, n_heads=cfg.n_heads)}

    thirds = "a third of it, split by heads"
    yield Part(f"{theirs}c_attn.weight", (d_model, 3 * columns), thirds, split_weight)
    yield Part(f"{theirs}c_attn.bias", (3 * columns,), thirds, split_bias)
    yield Part(f"{theirs}c_proj.weight", (columns, d_model), "split by heads", split_output)
    yield _renamed(f"{theirs}c_proj.bias", f"{ours}b_O", d_model)


def _require_same_table(head: Tensor, table: Tensor) -> None:
    if not t.equal(head, table):
        raise PvmlError(
            f"{_HEAD} and {_TABLE} differ, but are said to be one table: set "
            f"tie_word_embeddings (PvML: tie_embeddings) to false for a model with two"
        )


def _require_gpt2(cfg: Config) -> None:
    if (cfg.attn_only, cfg.positions, cfg.normalization) != (False, "standard", "LN"):
        raise PvmlError(
            f"a GPT-2 has MLPs, standard positions and LayerNorm; this Config has attn_only "
            f"{cfg.attn_only}, positions {cfg.positions}, normalization {cfg.normalization}"
        )
