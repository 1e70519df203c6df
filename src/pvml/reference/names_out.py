"""PvML's tensors by others' names, in their layouts: Hugging Face's, nanoGPT's, TransformerLens's.

The way in is `names.py`. Nothing is written to disk here, and nothing of theirs is imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

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
}
_CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
"""Matrices that Hugging Face keeps as (in, out), as PvML does, and nanoGPT as (out, in)."""


def hugging_face_fields(cfg: Config, *, tied: bool) -> dict[str, Any]:
    """What a Hugging Face GPT2Config must say for this model: no dropout, GPT-2's own GELU.

    tied: whether W_U is W_E transposed. Ids of special tokens are the tokenizer's to tell.

    Raises: PvmlError with every reason why a GPT-2 cannot be this model.
    """
    _require_gpt2(cfg)
    return {
        **{theirs: getattr(cfg, ours) for theirs, ours in _SIZES.items()},
        "layer_norm_epsilon": float(cfg.layer_norm_eps),
        "initializer_range": float(cfg.init_range),
        "activation_function": "gelu_new",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        "tie_word_embeddings": tied,
    }


def to_hugging_face(weights: Mapping[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """A GPT2LMHeadModel's tensors, by its names, out of PvML's; `from_hugging_face` turned round.

    A tied model gets no `lm_head.weight`. Views of the given tensors where possible.

    Raises: PvmlError with every reason why a GPT-2 cannot hold these weights.
    """
    _require_gpt2(cfg, weights)
    named = {f"transformer.{name}": x for name, x in _body(weights, cfg)}
    if "unembed.W_U" in weights:
        named["lm_head.weight"] = weights["unembed.W_U"].T
    return named


def to_nanogpt(weights: Mapping[str, Tensor], cfg: Config, *, rows: int = 0) -> dict[str, Tensor]:
    """nanoGPT's tensors, by its names: (out, in) matrices, one table under two names.

    rows: how many its vocabulary has, the rows past d_vocab being zeros. 0: d_vocab.

    Raises: PvmlError with every reason why nanoGPT cannot hold these weights.
    """
    reasons = [*not_in_gpt2(cfg, weights), *not_in_nanogpt(cfg, weights)]
    if reasons:
        raise PvmlError(f"nanoGPT cannot hold this model: {'; '.join(reasons)}")
    named = {
        f"transformer.{name}": x.T.contiguous() if name.endswith(_CONV1D) else x.contiguous()
        for name, x in _body(weights, cfg)
    }
    table = named["transformer.wte.weight"]
    if rows > cfg.d_vocab:
        table = t.cat([table, table.new_zeros(rows - cfg.d_vocab, cfg.d_model)])
    return {**named, "transformer.wte.weight": table, "lm_head.weight": table}


def lens_fields(cfg: Config) -> dict[str, Any]:
    """What a TransformerLens 4 TransformerBridgeConfig must say for `boot_native` to build this.

    Raises: PvmlError with the reason why it cannot.
    """
    reasons = not_in_lens(cfg)
    if reasons:
        raise PvmlError(f"TransformerLens cannot build this model: {'; '.join(reasons)}")
    same = ("d_model", "n_heads", "d_head", "n_layers", "n_ctx", "d_vocab", "d_mlp", "attn_only")
    return {
        **{name: getattr(cfg, name) for name in same},
        "act_fn": "gelu_new",
        "eps": float(cfg.layer_norm_eps),
        "initializer_range": float(cfg.init_range),
        "normalization_type": None if cfg.normalization == "none" else "LN",
        "positional_embedding_type": "standard",
        "default_prepend_bos": True,
    }


def to_lens(weights: Mapping[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """What HookedTransformer's state dict held: PvML's own names, with a W_U even where it is tied.

    Raises: PvmlError as `lens_fields` does.
    """
    lens_fields(cfg)
    return {**weights, "unembed.W_U": weights.get("unembed.W_U", weights["embed.W_E"].T)}


def has_one_table(weights: Mapping[str, Tensor], cfg: Config) -> bool:
    """Whether W_U is W_E transposed, by the Config or by what the two hold."""
    if cfg.tie_embeddings or "unembed.W_U" not in weights:
        return True
    return t.equal(weights["unembed.W_U"], weights["embed.W_E"].T)


def not_in_gpt2(cfg: Config, weights: Mapping[str, Tensor] | None = None) -> list[str]:
    """The reasons why a GPT-2, Hugging Face's or nanoGPT's, cannot be this model; empty: it can.

    weights: PvML's, to look for what no Config tells.
    """
    b_U = (weights or {}).get("unembed.b_U")
    found = {
        "it has no MLPs (attn_only), and a GPT-2 has one in every block": cfg.attn_only,
        f"its positions are {cfg.positions}, and a GPT-2 adds them to the stream (standard)": (
            cfg.positions != "standard"
        ),
        "it has no LayerNorm (normalization none), and a GPT-2 has": cfg.normalization != "LN",
        f"its {cfg.n_heads} heads of {cfg.d_head} are not as wide together as the stream, "
        f"{cfg.d_model}, and a GPT-2's are": cfg.n_heads * cfg.d_head != cfg.d_model,
        "its b_U is not zero (as after weights were processed), and a GPT-2 has no bias there": (
            b_U is not None and bool(b_U.any())
        ),
    }
    return [reason for reason, holds in found.items() if holds]


def not_in_nanogpt(cfg: Config, weights: Mapping[str, Tensor]) -> list[str]:
    """The further reasons why nanoGPT's GPT-2 cannot be this model."""
    found = {
        "its W_U is a table of its own (untied), and nanoGPT always ties it to W_E (pvml train "
        "--tie-embeddings makes a model that can go)": (not has_one_table(weights, cfg)),
        f"its d_mlp is {cfg.d_mlp}, and nanoGPT's is always 4 x d_model, {4 * cfg.d_model}": (
            cfg.d_mlp != 4 * cfg.d_model
        ),
        f"its layer_norm_eps is {cfg.layer_norm_eps:g}, and nanoGPT's is always 1e-05": (
            cfg.layer_norm_eps != 1e-5
        ),
    }
    return [reason for reason, holds in found.items() if holds]


def not_in_lens(cfg: Config) -> list[str]:
    """The reasons why TransformerLens 4 cannot build this model natively; empty: it can."""
    found = {
        f"its positions are {cfg.positions}, and TransformerLens's native models have standard or "
        f"rotary ones": cfg.positions != "standard",
        "it has no layers (n_layers 0), and TransformerLens divides by their number": (
            cfg.n_layers == 0
        ),
    }
    return [reason for reason, holds in found.items() if holds]


def _body(weights: Mapping[str, Tensor], cfg: Config) -> Iterator[tuple[str, Tensor]]:
    """All but the unembedding, by the names that both libraries have within `transformer`."""
    yield "wte.weight", weights["embed.W_E"]
    yield "wpe.weight", weights["pos_embed.W_pos"]
    for i in range(cfg.n_layers):
        theirs, ours = f"h.{i}.", f"blocks.{i}."
        for norm in ("1", "2"):
            yield f"{theirs}ln_{norm}.weight", weights[f"{ours}ln{norm}.w"]
            yield f"{theirs}ln_{norm}.bias", weights[f"{ours}ln{norm}.b"]
        # the columns run over q, k, v first, then over the heads, then within a head
        W = t.stack([weights[f"{ours}attn.W_{part}"] for part in "QKV"])
        b = t.stack([weights[f"{ours}attn.b_{part}"] for part in "QKV"])
        joint = "part n_heads d_model d_head -> d_model (part n_heads d_head)"
        yield f"{theirs}attn.c_attn.weight", rearrange(W, joint)
        yield f"{theirs}attn.c_attn.bias", b.flatten()
        yield f"{theirs}attn.c_proj.weight", weights[f"{ours}attn.W_O"].flatten(0, 1)
        yield f"{theirs}attn.c_proj.bias", weights[f"{ours}attn.b_O"]
        for part, name in (("in", "c_fc"), ("out", "c_proj")):
            yield f"{theirs}mlp.{name}.weight", weights[f"{ours}mlp.W_{part}"]
            yield f"{theirs}mlp.{name}.bias", weights[f"{ours}mlp.b_{part}"]
    yield "ln_f.weight", weights["ln_final.w"]
    yield "ln_f.bias", weights["ln_final.b"]


def _require_gpt2(cfg: Config, weights: Mapping[str, Tensor] | None = None) -> None:
    reasons = not_in_gpt2(cfg, weights)
    if reasons:
        raise PvmlError(f"Hugging Face's GPT-2 cannot hold this model: {'; '.join(reasons)}")
