"""GPT-2's forward pass in plain float64 NumPy, from the formulae alone: a layer, a function.

It shares no function with `pvml.modules` or `pvml.trace`, so a mistake there is not repeated here.
Every layer returns its tensors by the names that the trace uses, in the order they arise, its
result last. Comparing a model with it is in `pvml.parity`.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from pvml.config import Config

Tensors = dict[str, Array]
Parameters = Mapping[str, Array]
Shapes = dict[str, tuple[int, ...]]


def forward(
    parameters: Parameters,
    cfg: Config,
    tokens: Int[Array, "batch posn"],
    attention_mask: Bool[Array, "batch posn"] | Int[Array, "batch posn"] | None = None,
    dtype: type[np.floating] = np.float64,
) -> Tensors:
    """Every named tensor of a pass, `embed.in` to `unembed.logits`, by its full name.

    parameters: arrays by PvML's names (see `parameter_shapes`), of any floating type.
    attention_mask: 1 (or True) at real tokens, 0 at padding.
    dtype: what to compute in; any other than float64 shows what rounding alone does.
    """
    named: Tensors = {}

    def part(path: str) -> Tensors:
        own = _under({name: parameters[name] for name in _names_under(cfg, path)}, path)
        return {name: array.astype(dtype, copy=False) for name, array in own.items()}

    def keep(path: str, tensors: Tensors) -> Array:
        named.update({f"{path}.{name}": tensor for name, tensor in tensors.items()})
        return _last(tensors)

    real = None if attention_mask is None else attention_mask.astype(bool)
    hidden = cannot_attend(np.ones(tokens.shape[1], bool) if real is None else real)
    stream = keep("embed", embed(part("embed"), tokens))
    positions = None
    if cfg.positions != "none":
        positions = keep("pos_embed", pos_embed(part("pos_embed"), tokens, real))
    if cfg.positions == "standard":
        stream, positions = stream + positions, None
    for i in range(cfg.n_layers):
        stream = keep(
            f"blocks.{i}", block(part(f"blocks.{i}"), cfg, stream, hidden=hidden, added=positions)
        )
    if cfg.normalization == "LN":
        stream = keep("ln_final", layer_norm(part("ln_final"), stream, cfg.layer_norm_eps))
    last = part("unembed")
    if cfg.tie_embeddings:
        last["W_U"] = part("embed")["W_E"].T
    keep("unembed", unembed(last, stream))
    return named


def embed(p: Tensors, tokens: Int[Array, "batch posn"]) -> Tensors:
    """out[b, i] = W_E[tokens[b, i]]."""
    return {"in": tokens, "out": p["W_E"][tokens]}


def pos_embed(
    p: Tensors, tokens: Int[Array, "batch posn"], real: Bool[Array, "batch posn"] | None = None
) -> Tensors:
    """out[b, i] = W_pos[i]; with padding, i counts real tokens and padding takes the last i."""
    if real is None:
        real = np.ones(tokens.shape, bool)
    sliced = p["W_pos"][: tokens.shape[1]]
    place = np.maximum(np.cumsum(real, axis=1) - 1, 0)
    return {"in": tokens, "sliced": sliced, "out": sliced[place]}


def layer_norm(p: Tensors, residual: Float[Array, "batch posn d_model"], eps: float) -> Tensors:
    """out = (x - mean) / std * w + b, where std = sqrt(mean of (x - mean)^2 + eps)."""
    mean = residual.mean(-1, keepdims=True)
    std = np.sqrt(((residual - mean) ** 2).mean(-1, keepdims=True) + eps)
    normalized = (residual - mean) / std
    return {
        "residual": residual,
        "residual_mean": mean,
        "residual_std": std,
        "normalized": normalized,
        "out": normalized * p["w"] + p["b"],
    }


def attention(
    p: Tensors,
    x: Float[Array, "batch posn d_model"],
    *,
    hidden: Bool[Array, "posn posn"] | Bool[Array, "batch posn posn"] | None = None,
    added: Float[Array, "batch posn d_model"] | None = None,
) -> Tensors:
    """attn_out = sum over heads of softmax(mask(q k^T / sqrt(d_head))) v W_O, plus b_O.

    hidden: True where the query (row) must not see the key (column). Unset: where it is later.
    added: what queries and keys see on top of x (shortformer's positions); values do not.
    """
    if hidden is None:
        hidden = cannot_attend(np.ones(x.shape[1], bool))
    qk = x if added is None else x + added
    q, k, v = (
        np.stack([y @ W for W in p[f"W_{letter}"]], axis=2) + p[f"b_{letter}"]
        for y, letter in ((qk, "Q"), (qk, "K"), (x, "V"))
    )
    scores = q.swapaxes(1, 2) @ k.transpose(0, 2, 3, 1)
    masked = np.where(hidden[..., None, :, :], -np.inf, scores / q.shape[-1] ** 0.5)
    pattern = softmax(masked)
    z = (pattern @ v.swapaxes(1, 2)).swapaxes(1, 2)
    out = sum(z[:, :, head] @ W for head, W in enumerate(p["W_O"])) + p["b_O"]
    return {
        "normalized_resid_pre": x,
        **({} if added is None else {"qk_input": qk}),
        "q": q,
        "k": k,
        "v": v,
        "attn_scores": scores,
        "mask": hidden,
        "attn_scores_masked": masked,
        "attn_pattern": pattern,
        "z": z,
        "attn_out": out,
    }


def cannot_attend(
    real: Bool[Array, " posn"] | Bool[Array, "batch posn"],
) -> Bool[Array, "posn posn"] | Bool[Array, "batch posn posn"]:
    """True where query i must not see key j: j > i, or j is padding and not i itself."""
    i = np.arange(real.shape[-1])[:, None]
    j = np.arange(real.shape[-1])
    hidden: Array = (j > i) | (~real[..., None, :] & (j != i))
    return hidden


def softmax(x: Float[Array, "*rows posn_k"]) -> Float[Array, "*rows posn_k"]:
    """exp(x) over its row's sum; the row's largest is taken off first, against overflow."""
    grown = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    shares: Array = grown / grown.sum(-1, keepdims=True)
    return shares


def mlp(p: Tensors, x: Float[Array, "batch posn d_model"]) -> Tensors:
    """mlp_out = gelu_new(x W_in + b_in) W_out + b_out."""
    pre = x @ p["W_in"] + p["b_in"]
    post = gelu_new(pre)
    mlp_out = post @ p["W_out"] + p["b_out"]
    return {"normalized_resid_mid": x, "pre": pre, "post": post, "mlp_out": mlp_out}


def gelu_new(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    Source: Hendrycks, Gimpel 2016, arXiv:1606.08415, section 2.
    """
    y: Array = x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return y


def block(
    p: Tensors,
    cfg: Config,
    resid_pre: Float[Array, "batch posn d_model"],
    *,
    hidden: Bool[Array, "posn posn"] | Bool[Array, "batch posn posn"] | None = None,
    added: Float[Array, "batch posn d_model"] | None = None,
) -> Tensors:
    """resid_mid = resid_pre + attn(ln1(resid_pre)); resid_post = resid_mid + mlp(ln2(resid_mid)).

    hidden, added: attention's. The layers' tensors stand between the block's own.
    """
    named: Tensors = {"resid_pre": resid_pre}

    def keep(path: str, tensors: Tensors) -> Array:
        named.update({f"{path}.{name}": tensor for name, tensor in tensors.items()})
        return _last(tensors)

    def norm(path: str, x: Array) -> Array:
        if cfg.normalization == "none":
            return x
        return keep(path, layer_norm(_under(p, path), x, cfg.layer_norm_eps))

    read = norm("ln1", resid_pre)
    wrote = keep("attn", attention(_under(p, "attn"), read, hidden=hidden, added=added))
    if cfg.attn_only:
        return {**named, "resid_post": resid_pre + wrote}
    named["resid_mid"] = resid_mid = resid_pre + wrote
    wrote = keep("mlp", mlp(_under(p, "mlp"), norm("ln2", resid_mid)))
    return {**named, "resid_post": resid_mid + wrote}


def unembed(p: Tensors, x: Float[Array, "batch posn d_model"]) -> Tensors:
    """logits = x W_U + b_U."""
    return {"normalized_resid_final": x, "logits": x @ p["W_U"] + p["b_U"]}


def parameter_shapes(cfg: Config) -> Shapes:
    """The shape of every parameter that `forward` reads, by its name."""
    d, per_head = cfg.d_model, (cfg.n_heads, cfg.d_head)
    parts: dict[str, Shapes] = {"embed": {"W_E": (cfg.d_vocab, d)}}
    if cfg.positions != "none":
        parts["pos_embed"] = {"W_pos": (cfg.n_ctx, d)}
    ln: Shapes = {"w": (d,), "b": (d,)} if cfg.normalization == "LN" else {}
    for i in range(cfg.n_layers):
        parts[f"blocks.{i}.ln1"] = ln
        parts[f"blocks.{i}.attn"] = {
            **{f"W_{letter}": (cfg.n_heads, d, cfg.d_head) for letter in "QKV"},
            **{f"b_{letter}": per_head for letter in "QKV"},
            "W_O": (*per_head, d),
            "b_O": (d,),
        }
        if not cfg.attn_only:
            parts[f"blocks.{i}.ln2"] = ln
            parts[f"blocks.{i}.mlp"] = {
                "W_in": (d, cfg.d_mlp),
                "b_in": (cfg.d_mlp,),
                "W_out": (cfg.d_mlp, d),
                "b_out": (d,),
            }
    parts["ln_final"] = ln
    parts["unembed"] = {} if cfg.tie_embeddings else {"W_U": (d, cfg.d_vocab)}
    parts["unembed"]["b_U"] = (cfg.d_vocab,)
    return {f"{path}.{name}": s for path, shapes in parts.items() for name, s in shapes.items()}


def _names_under(cfg: Config, path: str) -> list[str]:
    return [name for name in parameter_shapes(cfg) if name.startswith(f"{path}.")]


def _under(p: Parameters, path: str) -> Tensors:
    return {name[len(path) + 1 :]: x for name, x in p.items() if name.startswith(f"{path}.")}


def _last(tensors: Tensors) -> Array:
    return list(tensors.values())[-1]
