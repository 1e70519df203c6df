"""What a model in TransformerLens's names is: its Config, from their settings or from its shapes.

The tensors' names and shapes are PvML's own. Nothing of TransformerLens is imported.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.reference.settings import foreign, not_understood

_SIZES = ("d_model", "n_heads", "n_layers", "n_ctx", "d_vocab", "d_head", "d_mlp")
_ONLY: dict[str, tuple[object, ...]] = {
    "use_attn_scale": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_local_attn": (False,),
    "parallel_attn_mlp": (False,),
    "gated_mlp": (False,),
    "uses_rms_norm": (False,),
    "final_rms": (False, None),
    "num_experts": (None,),
    "attention_dir": ("causal",),
    "post_embedding_ln": (False,),
    "use_normalization_before_and_after": (False,),
    "use_qk_norm": (False,),
    "attn_scores_soft_cap": (None, -1, -1.0),
    "output_logits_soft_cap": (None, -1, -1.0),
    "scale_embedding": (None, False),
    "per_layer_head_dim": (None,),
    "per_layer_num_key_value_heads": (None,),
}
"""Settings that change what is computed, with the values that PvML's model computes too."""
_READ = [
    "eps",
    "initializer_range",
    "attn_only",
    "act_fn",
    "normalization_type",
    "normalization",
    "attn_scale",
    "positional_embedding_type",
    "shortformer_pos",
    "d_vocab_out",
    "n_key_value_heads",
]
_IDLE = [
    "NTK_by_parts_factor",
    "NTK_by_parts_high_freq_factor",
    "NTK_by_parts_low_freq_factor",
    "architecture",
    "attn_implementation",
    "attn_types",
    "checkpoint_index",
    "checkpoint_label_type",
    "checkpoint_value",
    "decoder_start_token_id",
    "default_padding_side",
    "default_prepend_bos",
    "device",
    "dtype",
    "experts_per_token",
    "from_checkpoint",
    "init_mode",
    "init_weights",
    "is_audio_model",
    "is_multimodal",
    "is_stateful",
    "is_visual_model",
    "layer_norm_folding",
    "load_in_4bit",
    "mm_tokens_per_image",
    "model_name",
    "model_type",
    "n_devices",
    "n_params",
    "original_architecture",
    "qk_norm_after_rope",
    "relative_attention_max_distance",
    "relative_attention_num_buckets",
    "rmsnorm_uses_offset",
    "rotary_adjacent_pairs",
    "rotary_base",
    "rotary_dim",
    "rotary_interleaved_cos_sin",
    "seed",
    "split_attention_weights",
    "tie_word_embeddings",
    "tokenizer_appends_eos",
    "tokenizer_name",
    "tokenizer_prepends_bos",
    "trust_remote_code",
    "ungroup_grouped_query_attention",
    "use_NTK_by_parts_rope",
    "use_attn_in",
    "use_attn_result",
    "use_hook_mlp_in",
    "use_hook_tokens",
    "use_split_qkv_input",
    "vision_hidden_size",
    "vision_num_heads",
    "vision_num_layers",
    "window_size",
]
"""TransformerLens's settings that change nothing, or only together with one that is refused."""
_NORMS = {"LN": "LN", "LNPre": "LN", None: "none"}
_POSITIONS = ("standard", "shortformer")
_SPREAD = Config.init_range


class Described(NamedTuple):
    """A Config, and what its source leaves to be said."""

    cfg: Config
    folded: bool
    """Whether LayerNorms only standardise (LNPre): their weights are folded into what follows."""
    notes: list[str]
    """Sentences on what was assumed."""


def is_lens_config(theirs: Mapping[str, Any]) -> bool:
    """Whether a config.json is TransformerLens's, or PvML's own fields: both say d_model so."""
    return "d_model" in theirs and "n_layers" in theirs


def config_from_lens(theirs: Mapping[str, Any]) -> Described:
    """The Config that TransformerLens's settings describe, or PvML's own (`Config.to_dict`).

    Raises: PvmlError naming every setting whose value PvML's model cannot express.
    """
    if "normalization" in theirs and "positions" in theirs:
        return Described(Config.from_dict(dict(theirs)), False, [])
    attn_only = bool(theirs.get("attn_only", False))
    norm = theirs.get("normalization_type", theirs.get("normalization", "LN"))
    positions = theirs.get("positional_embedding_type", "standard")
    if theirs.get("shortformer_pos"):
        positions = "shortformer"
    allowed = {
        **_ONLY,
        "normalization_type": tuple(_NORMS),
        "positional_embedding_type": _POSITIONS,
    }
    if not attn_only:
        allowed["act_fn"] = ("gelu_new",)
    for same, size in (("d_vocab_out", "d_vocab"), ("n_key_value_heads", "n_heads")):
        allowed[same] = (theirs.get(size), None, -1)
    if isinstance(theirs.get("d_head"), int) and theirs.get("attn_scale") not in (None, -1, -1.0):
        allowed["attn_scale"] = (math.sqrt(abs(theirs["d_head"])),)
    values = {**theirs, "normalization_type": norm, "positional_embedding_type": positions}
    faults = [
        f"{field} is {values[field]!r} (only {' or '.join(repr(value) for value in good)})"
        for field, good in allowed.items()
        if field in values and values[field] not in good
    ]
    known = {*_SIZES, *_ONLY, *_READ, *_IDLE}
    eps = theirs.get("eps", Config.layer_norm_eps)
    faults += foreign(theirs, known, eps)
    if faults:
        raise PvmlError(f"PvML's model cannot express this model: {'; '.join(faults)}")
    sizes = {size: theirs[size] for size in _SIZES if theirs.get(size) not in (None, -1)}
    cfg = Config(
        **sizes,
        layer_norm_eps=eps,
        init_range=_spread(theirs.get("initializer_range")),
        attn_only=attn_only,
        positions=positions,
        normalization=_NORMS[norm],  # type: ignore[arg-type]
    )
    return Described(cfg, norm == "LNPre", not_understood(theirs, known))


def config_from_shapes(state: Mapping[str, Tensor]) -> Described:
    """The Config of the model whose tensors these are, as far as shapes tell. state: bare names.

    Raises: PvmlError if a tensor that tells a size is missing or has another number of axes, or if
    there are no LayerNorms, which can mean two things.
    """
    layers = {int(m[1]) for name in state if (m := re.match(r"blocks\.(\d{1,5})\.", name))}
    n_layers = len(layers)
    d_vocab, d_model = _axes(state, "embed.W_E", 2)
    sizes = {"d_vocab": d_vocab, "d_model": d_model, "n_layers": n_layers}
    notes = [f"no config.json beside it: layer_norm_eps is taken to be {Config.layer_norm_eps:g}"]
    positions, attn_only = "none", bool(layers)
    if "pos_embed.W_pos" in state:
        sizes["n_ctx"] = _axes(state, "pos_embed.W_pos", 2)[0]
        positions = "standard"
        notes.append("positions are taken to be added to the stream (not shortformer's way)")
    else:
        notes.append(f"it has no positions, so its n_ctx is not told: {Config.n_ctx} is taken")
    if layers:
        first = min(layers)
        sizes["n_heads"], _, sizes["d_head"] = _axes(state, f"blocks.{first}.attn.W_Q", 3)
        if any(".mlp." in name for name in state):
            sizes["d_mlp"] = _axes(state, f"blocks.{first}.mlp.W_in", 2)[1]
            attn_only = False
    else:
        sizes["n_heads"] = 1
    if not any(name.startswith("ln_final.") for name in state):
        raise PvmlError(
            "it holds no ln_final.w: a model without LayerNorm, one whose LayerNorms are folded "
            "into the weights (LNPre), or a damaged one. A config.json beside it tells with "
            "normalization_type null, LNPre or LN; of a model without LayerNorm also "
            "pvml.load(file, cfg=Config(..., normalization='none'))"
        )
    cfg = Config(**sizes, attn_only=attn_only, positions=positions)  # type: ignore[arg-type]
    return Described(cfg, False, notes)


def _axes(state: Mapping[str, Tensor], name: str, n: int) -> tuple[int, ...]:
    if name not in state:
        raise PvmlError(f"missing: {name}, which tells the model's size; a config.json would, too")
    if state[name].ndim != n:
        raise PvmlError(f"{name} has shape {tuple(state[name].shape)}: expected {n} axes")
    return tuple(state[name].shape)


def _spread(given: Any) -> Any:
    """init_range; TransformerLens writes -1 for one that is yet to be chosen."""
    return _SPREAD if given is None or given == -1 else given
