"""Hugging Face's GPT-2 in PvML's names: its config fields, and its tensors, strict both ways.

Nothing is read from disk here, and nothing of Hugging Face's is imported.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch as t
from einops import rearrange
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError

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

_HEAD = "lm_head.weight"
_WRAPPERS = ("_orig_mod.", "module.")


def config_from_hugging_face(theirs: Mapping[str, Any]) -> Config:
    """The Config of a GPT-2 described by Hugging Face's fields; what is absent is GPT-2 small's.

    The unembedding gets a table of its own even where theirs is tied to the embedding's.

    Raises: PvmlError naming every field whose value PvML's model cannot express.
    """
    if theirs.get("model_type", "gpt2") != "gpt2":
        raise PvmlError(f"model_type is {theirs['model_type']!r}: PvML's model is GPT-2 only")
    foreign = [
        f"{field} is {theirs[field]!r} (only {' or '.join(repr(value) for value in allowed)})"
        for field, allowed in _ONLY.items()
        if field in theirs and theirs[field] not in allowed
    ]
    if foreign:
        raise PvmlError(f"PvML's model cannot express this GPT-2: {'; '.join(foreign)}")
    sizes = {ours: theirs[field] for field, ours in _SIZES.items() if field in theirs}
    if sizes.get("d_mlp", 0) is None:  # their way of leaving n_inner out
        del sizes["d_mlp"]
    return Config(**sizes)


def from_hugging_face(
    state: Mapping[str, Tensor], cfg: Config, *, tied: bool | None = None
) -> dict[str, Tensor]:
    """PvML's tensors, by name, out of a GPT2LMHeadModel's or a GPT2Model's state dict.

    Prefixes left by wrappers are understood, and the mask buffers of old files passed over. tied:
    whether W_U is W_E transposed (True), a table of its own (False), or whatever the state dict
    holds (None). Views of the given tensors where possible. How many heads share the projections'
    columns cannot be seen in them: it is taken from cfg.

    Raises: PvmlError listing every tensor that is missing, unexpected or of another shape.
    """
    _require_gpt2(cfg)
    given = _without_prefixes(state)
    parts = {part.theirs: part for part in _parts(cfg)}
    for i in range(cfg.n_layers):
        for buffer in ("bias", "masked_bias"):
            given.pop(f"h.{i}.attn.{buffer}", None)
    has_head = _HEAD in given or tied is False
    if not has_head:
        del parts[_HEAD]
    _require_all(given, parts, cfg)
    if has_head and (tied or cfg.tie_embeddings):
        _require_same_table(given[_HEAD], given["wte.weight"])

    ours: dict[str, Tensor] = {}
    for part in parts.values():
        ours |= part.convert(given[part.theirs])
    if cfg.tie_embeddings:
        ours.pop("unembed.W_U", None)
    elif not has_head:
        ours["unembed.W_U"] = ours["embed.W_E"].T
    return {**ours, "unembed.b_U": ours["embed.W_E"].new_zeros(cfg.d_vocab)}


class _Part(NamedTuple):
    """One of their tensors: its name, the shape it must have, and what it becomes by our names."""

    theirs: str
    shape: tuple[int, ...]
    convert: Callable[[Tensor], dict[str, Tensor]]


def _parts(cfg: Config) -> Iterator[_Part]:
    """Every tensor of a GPT2LMHeadModel of this shape."""
    d_model, d_mlp, table = cfg.d_model, cfg.d_mlp, (cfg.d_vocab, cfg.d_model)
    yield _renamed("wte.weight", "embed.W_E", *table)
    yield _renamed("wpe.weight", "pos_embed.W_pos", cfg.n_ctx, d_model)
    for i in range(cfg.n_layers):
        theirs, ours = f"h.{i}.", f"blocks.{i}."
        for norm in ("1", "2"):
            yield _renamed(f"{theirs}ln_{norm}.weight", f"{ours}ln{norm}.w", d_model)
            yield _renamed(f"{theirs}ln_{norm}.bias", f"{ours}ln{norm}.b", d_model)
        yield from _attention(f"{theirs}attn.", f"{ours}attn.", cfg)
        yield _renamed(f"{theirs}mlp.c_fc.weight", f"{ours}mlp.W_in", d_model, d_mlp)
        yield _renamed(f"{theirs}mlp.c_fc.bias", f"{ours}mlp.b_in", d_mlp)
        yield _renamed(f"{theirs}mlp.c_proj.weight", f"{ours}mlp.W_out", d_mlp, d_model)
        yield _renamed(f"{theirs}mlp.c_proj.bias", f"{ours}mlp.b_out", d_model)
    yield _renamed("ln_f.weight", "ln_final.w", d_model)
    yield _renamed("ln_f.bias", "ln_final.b", d_model)
    yield _Part(_HEAD, table, lambda x: {"unembed.W_U": x.T})


def _renamed(theirs: str, ours: str, *shape: int) -> _Part:
    return _Part(theirs, shape, lambda x: {ours: x})


def _attention(theirs: str, ours: str, cfg: Config) -> Iterator[_Part]:
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

    yield _Part(f"{theirs}c_attn.weight", (d_model, 3 * columns), split_weight)
    yield _Part(f"{theirs}c_attn.bias", (3 * columns,), split_bias)
    yield _Part(f"{theirs}c_proj.weight", (columns, d_model), split_output)
    yield _renamed(f"{theirs}c_proj.bias", f"{ours}b_O", d_model)


def _without_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    given: dict[str, Tensor] = {}
    for name, x in state.items():
        bare = name
        while bare.startswith(_WRAPPERS):
            bare = bare.partition(".")[2]
        bare = bare.removeprefix("transformer.")
        if bare in given:
            raise PvmlError(f"two tensors are called {bare} once {name!r} has lost its prefix")
        given[bare] = x
    return given


def _require_all(given: Mapping[str, Tensor], parts: Mapping[str, _Part], cfg: Config) -> None:
    """Nothing, if these are the tensors, no more and no less, in the right shapes."""
    faults = {
        "missing": [name for name in parts if name not in given],
        "unexpected": [name for name in given if name not in parts],
        "of another shape": [
            f"{name} {tuple(given[name].shape)} instead of {part.shape}"
            for name, part in parts.items()
            if name in given and tuple(given[name].shape) != part.shape
        ],
    }
    if any(faults.values()):
        told = "; ".join(f"{fault}: {', '.join(names)}" for fault, names in faults.items() if names)
        raise PvmlError(
            f"these are not the tensors of a GPT-2 with d_model {cfg.d_model}, n_heads "
            f"{cfg.n_heads}, d_head {cfg.d_head}, n_layers {cfg.n_layers}. {told}"
        )


def _require_same_table(head: Tensor, table: Tensor) -> None:
    if not t.equal(head, table):
        raise PvmlError(
            f"{_HEAD} and wte.weight differ, but are said to be one table: set "
            f"tie_word_embeddings (PvML: tie_embeddings) to false for a model with two"
        )


def _require_gpt2(cfg: Config) -> None:
    if (cfg.attn_only, cfg.positions, cfg.normalization) != (False, "standard", "LN"):
        raise PvmlError(
            f"a GPT-2 has MLPs, standard positions and LayerNorm; this Config has attn_only "
            f"{cfg.attn_only}, positions {cfg.positions}, normalization {cfg.normalization}"
        )
