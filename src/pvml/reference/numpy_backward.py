"""GPT-2's gradients in plain float64 NumPy, derived by hand: a layer, a function.

Every function goes backwards through the one of `numpy_forward` that it is named after: it takes
that layer's parameters, the tensors which that one returned (`seen`), and the gradient of some
scalar by the layer's result (`d_out`). It gives the scalar's gradient by each parameter and by each
tensor on the way, under their names. Nothing here differentiates by itself; neither torch nor
`pvml.modules` is involved.

Notation: `dx` is the scalar's derivative by x, of x's shape. Two rules do most of the work. For
`y = x W`, row by row: `dx = dy W^T` and `dW = sum over rows of x^T dy`. What is used in several
places gets the sum of what comes back from each. Source of both, and of the order of the work:
Rumelhart, Hinton, Williams 1986, "Learning representations by back-propagating errors", Nature 323.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from pvml.config import Config
from pvml.reference.numpy_forward import Parameters, Tensors, forward, parameter_shapes, softmax


def backward(
    parameters: Parameters,
    cfg: Config,
    tokens: Int[Array, "batch posn"],
    d_logits: Float[Array, "batch posn d_vocab"],
    attention_mask: Bool[Array, "batch posn"] | Int[Array, "batch posn"] | None = None,
    dtype: type[np.floating] = np.float64,
) -> Tensors:
    """A scalar's gradient by every parameter, by name, from its gradient by the logits.

    With `tie_embeddings`, W_E's is the sum over both of its uses: looked up, and as W_U transposed.
    attention_mask: 1 (or True) at real tokens, 0 at padding. dtype: what to compute in; any other
    than float64 shows what rounding alone does.
    """
    found = gradients(parameters, cfg, tokens, d_logits, attention_mask, dtype)
    return {name: found[name] for name in parameter_shapes(cfg)}


def gradients(
    parameters: Parameters,
    cfg: Config,
    tokens: Int[Array, "batch posn"],
    d_logits: Float[Array, "batch posn d_vocab"],
    attention_mask: Bool[Array, "batch posn"] | Int[Array, "batch posn"] | None = None,
    dtype: type[np.floating] = np.float64,
    *,
    as_kernels: bool = False,
) -> Tensors:
    """As `backward`, and the gradient by the tensors of the pass, too, by their full names.

    Not by ids, masks and the statistics inside a LayerNorm. Parameters come first, tensors after
    them in the order of the pass. as_kernels: see `attention`.
    """
    named = forward(parameters, cfg, tokens, attention_mask, dtype)
    p = {name: parameters[name].astype(dtype, copy=False) for name in parameter_shapes(cfg)}
    real = None if attention_mask is None else attention_mask.astype(bool)
    found: Tensors = {}

    def keep(path: str, own: Tensors) -> Tensors:
        found.update({f"{path}.{name}": dx for name, dx in own.items()})
        return own

    last = _under(p, "unembed")
    if cfg.tie_embeddings:
        last["W_U"] = p["embed.W_E"].T
    seen = _under(named, "unembed")
    d_stream = keep("unembed", unembed(last, seen, d_logits.astype(dtype, copy=False)))[
        "normalized_resid_final"
    ]
    if cfg.normalization == "LN":
        seen = _under(named, "ln_final")
        d_stream = keep("ln_final", layer_norm(_under(p, "ln_final"), seen, d_stream))["residual"]
    d_added = np.zeros_like(d_stream)
    for i in reversed(range(cfg.n_layers)):
        path = f"blocks.{i}"
        own = keep(path, block(_under(p, path), _under(named, path), d_stream, as_kernels))
        d_stream = own["resid_pre"]
        d_added = d_added + own.get("attn.qk_input", 0)
    if cfg.positions != "none":
        d_positions = d_stream if cfg.positions == "standard" else d_added
        seen = _under(named, "pos_embed")
        keep("pos_embed", pos_embed(_under(p, "pos_embed"), seen, d_positions, real))
    keep("embed", embed(_under(p, "embed"), _under(named, "embed"), d_stream))
    if cfg.tie_embeddings:
        found["embed.W_E"] = found["embed.W_E"] + found["unembed.W_U"].T
    return {name: found[name] for name in (*p, *named) if name in found}


def mean_cross_entropy(
    logits: Float[Array, "batch posn d_vocab"],
    tokens: Int[Array, "batch posn"],
    attention_mask: Bool[Array, "batch posn"] | Int[Array, "batch posn"] | None = None,
) -> Float[Array, "batch posn d_vocab"]:
    """The gradient by the logits of the mean of -log softmax(logits)[next token], in nats.

    `-log softmax(l)[c] = log sum exp(l) - l[c]`, so by l_j it is `softmax(l)_j - [j is c]`, here
    over how many are predicted. A token is predicted where it and the one before it are real.
    Source: Bridle 1990, "Probabilistic interpretation of feedforward classification network
    outputs".
    """
    real = np.ones(tokens.shape, bool) if attention_mask is None else attention_mask.astype(bool)
    row, i = np.nonzero(real[:, 1:] & real[:, :-1])
    d_logits = np.zeros_like(logits)
    d_logits[row, i] = softmax(logits[row, i])
    d_logits[row, i, tokens[row, i + 1]] -= 1
    mean: Array = d_logits / max(len(row), 1)
    return mean


def embed(p: Tensors, seen: Tensors, d_out: Float[Array, "batch posn d_model"]) -> Tensors:
    """`out = W_E[tokens]`: each use of a row adds its gradient to that row; ids have none."""
    dW_E = np.zeros_like(p["W_E"])
    np.add.at(dW_E, seen["in"], d_out)
    return {"W_E": dW_E, "out": d_out}


def pos_embed(
    p: Tensors,
    seen: Tensors,
    d_out: Float[Array, "batch posn d_model"],
    real: Bool[Array, "batch posn"] | None = None,
) -> Tensors:
    """`out[b, i] = W_pos[place of i]`: as for `embed`. real: False at padding."""
    if real is None:
        real = np.ones(seen["in"].shape, bool)
    dW_pos = np.zeros_like(p["W_pos"])
    np.add.at(dW_pos, np.maximum(np.cumsum(real, axis=1) - 1, 0), d_out)
    return {"W_pos": dW_pos, "out": d_out}


def layer_norm(p: Tensors, seen: Tensors, d_out: Float[Array, "batch posn d_model"]) -> Tensors:
    """`out = n w + b` with `n = (x - mean) / std`, eps within std.

    `dstd/dx_j = (x_j - mean) / (N std) = n_j / N` and `dmean/dx_j = 1 / N`, hence
    `dn_i/dx_j = ([i is j] - 1/N - n_i n_j / N) / std`, and with that
    `dx = (dn - mean(dn) - n mean(dn n)) / std`. The form is that of Ioffe, Szegedy 2015,
    arXiv:1502.03167, section 3, with the statistics over d_model in place of the batch.
    """
    n = seen["normalized"]
    dn = d_out * p["w"]
    dx = (dn - _mean(dn) - n * _mean(dn * n)) / seen["residual_std"]
    own = {"w": _over_rows(d_out * n), "b": _over_rows(d_out)}
    return {**own, "residual": dx, "normalized": dn, "out": d_out}


def attention(
    p: Tensors,
    seen: Tensors,
    d_out: Float[Array, "batch posn d_model"],
    as_kernels: bool = False,
) -> Tensors:
    """`attn_out = sum over heads of A v W_O, plus b_O`, with `A = softmax(mask(q k^T / sqrt(d)))`.

    With z = A v: `dA = dz v^T` and `dv = A^T dz`. A softmax's row has
    `dA_i/ds_j = A_i ([i is j] - A_j)`, hence `ds = A (dA - sum(A dA))`, which is 0 where A is:
    at masked scores. Then with `q k^T / sqrt(d)`: `dq = ds k / sqrt(d)`, `dk = ds^T q / sqrt(d)`.
    A row of ds sums to 0, so b_K's gradient is 0 but for rounding: a constant added to a row's
    scores changes no share. Source: Dao et al. 2022, arXiv:2205.14135, appendix B.2.

    as_kernels: sum(A dA) as fused kernels have it, z dz, which is the same but for rounding: where
    a share is 1, A dA cancels exactly, and z dz does not.

    With shortformer, `qk_input` gets what comes back through queries and keys, as the positions do
    that were added there; the layer's own input gets that and what comes back through values.
    """
    x, A = seen["normalized_resid_pre"], seen["attn_pattern"]
    qk = seen.get("qk_input", x)
    q, k, v = (seen[name].swapaxes(1, 2) for name in "qkv")  # batch n_heads posn d_head
    dz = np.stack([d_out @ W.T for W in p["W_O"]], axis=1)
    dA = dz @ v.swapaxes(-1, -2)
    z = seen["z"].swapaxes(1, 2)
    mean_dA = (z * dz if as_kernels else A * dA).sum(-1, keepdims=True)
    d_masked = A * (dA - mean_dA)
    d_scores = d_masked / q.shape[-1] ** 0.5
    back = {
        "Q": (qk, d_scores @ k),
        "K": (qk, d_scores.swapaxes(-1, -2) @ q),
        "V": (x, A.swapaxes(-1, -2) @ dz),
    }
    into = {letter: _into_heads(p[f"W_{letter}"], *pair) for letter, pair in back.items()}
    d_qk = into["Q"]["x"] + into["K"]["x"]
    return {
        **{f"W_{letter}": own["W"] for letter, own in into.items()},
        **{f"b_{letter}": own["b"] for letter, own in into.items()},
        "W_O": np.stack([_outer(seen["z"][:, :, h], d_out) for h in range(len(p["W_O"]))]),
        "b_O": _over_rows(d_out),
        "normalized_resid_pre": d_qk + into["V"]["x"],
        **({"qk_input": d_qk} if "qk_input" in seen else {}),
        **{letter.lower(): d.swapaxes(1, 2) for letter, (_, d) in back.items()},
        "attn_scores": d_scores,
        "attn_scores_masked": d_masked,
        "attn_pattern": dA,
        "z": dz.swapaxes(1, 2),
        "attn_out": d_out,
    }


def _into_heads(
    W: Float[Array, "n_heads d_model d_head"],
    x: Float[Array, "batch posn d_model"],
    dy: Float[Array, "batch n_heads posn d_head"],
) -> Tensors:
    """`y = x W + b` for each head: dx is summed over the heads."""
    heads = range(len(W))
    return {
        "x": sum((dy[:, h] @ W[h].T for h in heads), np.zeros_like(x)),
        "W": np.stack([_outer(x, dy[:, h]) for h in heads]),
        "b": dy.sum((0, 2)),
    }


def mlp(p: Tensors, seen: Tensors, d_out: Float[Array, "batch posn d_model"]) -> Tensors:
    """`mlp_out = post W_out + b_out` with `post = gelu_new(pre)`, `pre = x W_in + b_in`."""
    d_post = d_out @ p["W_out"].T
    d_pre = d_post * gelu_new(seen["pre"])
    return {
        "W_in": _outer(seen["normalized_resid_mid"], d_pre),
        "b_in": _over_rows(d_pre),
        "W_out": _outer(seen["post"], d_out),
        "b_out": _over_rows(d_out),
        "normalized_resid_mid": d_pre @ p["W_in"].T,
        "pre": d_pre,
        "post": d_post,
        "mlp_out": d_out,
    }


def gelu_new(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """The slope of `x/2 (1 + tanh u)`, `u = sqrt(2/pi) (x + 0.044715 x^3)`.

    By the product's rule, and `dtanh(u) = (1 - tanh(u)^2) du`:
    `(1 + tanh u) / 2 + x/2 (1 - tanh(u)^2) sqrt(2/pi) (1 + 3 * 0.044715 x^2)`.
    """
    root = (2 / np.pi) ** 0.5
    tanh = np.tanh(root * (x + 0.044715 * x**3))
    slope: Array = (1 + tanh) / 2 + x / 2 * (1 - tanh**2) * root * (1 + 3 * 0.044715 * x**2)
    return slope


def block(
    p: Tensors,
    seen: Tensors,
    d_out: Float[Array, "batch posn d_model"],
    as_kernels: bool = False,
) -> Tensors:
    """Each `y = x + f(norm(x))` gives `dx = dy + what comes back through f and norm`.

    What belongs to a layer is by its name in the block (`attn.W_Q`). Layers that the forward did
    not have (attention-only, without LayerNorm) are not there.
    """
    found: Tensors = {"resid_post": d_out}

    def keep(path: str, own: Tensors) -> Tensors:
        found.update({f"{path}.{name}": dx for name, dx in own.items()})
        return own

    def norm(path: str, d: Array) -> Array:
        own = _under(seen, path)
        return keep(path, layer_norm(_under(p, path), own, d))["residual"] if own else d

    d_mid = d_out
    if "resid_mid" in seen:
        own = keep("mlp", mlp(_under(p, "mlp"), _under(seen, "mlp"), d_out))
        found["resid_mid"] = d_mid = d_out + norm("ln2", own["normalized_resid_mid"])
    own = keep("attn", attention(_under(p, "attn"), _under(seen, "attn"), d_mid, as_kernels))
    found["resid_pre"] = d_mid + norm("ln1", own["normalized_resid_pre"])
    return found


def unembed(p: Tensors, seen: Tensors, d_out: Float[Array, "batch posn d_vocab"]) -> Tensors:
    """`logits = x W_U + b_U`."""
    x = seen["normalized_resid_final"]
    return {
        "W_U": _outer(x, d_out),
        "b_U": _over_rows(d_out),
        "normalized_resid_final": d_out @ p["W_U"].T,
        "logits": d_out,
    }


def _outer(x: Float[Array, "batch posn m"], dy: Float[Array, "batch posn n"]) -> Array:
    """Sum over rows of x^T dy."""
    product: Array = x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])
    return product


def _over_rows(d: Float[Array, "batch posn n"]) -> Array:
    """What is added at every position gets the sum over all of them."""
    total: Array = d.reshape(-1, d.shape[-1]).sum(0)
    return total


def _mean(x: Float[Array, "batch posn n"]) -> Array:
    mean: Array = x.mean(-1, keepdims=True)
    return mean


def _under(named: Parameters, path: str) -> Tensors:
    return {name[len(path) + 1 :]: x for name, x in named.items() if name.startswith(f"{path}.")}
