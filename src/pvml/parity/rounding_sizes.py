"""How large a difference is rounding where a tensor's own size does not tell: sizes to judge by.

A gradient may be a sum that cancels, all of it or nearly, and a softmax of large scores turns a
unit of rounding into many. A difference is then small beside what was summed, not beside what is
left.
"""

from collections.abc import Mapping

import numpy as np
import torch as t

from pvml.parity.check import DOUBLE, ROUNDINGS
from pvml.parity.passes import Arrays

_LUCK = 16.0
"""How many times larger than in one pass of float32 the error in float64 may be, in its units:
where a softmax is near a tie, one pass says little of the next. Of 18 models with sharp attention
that are right, the largest was 50 times as large, where this times `ROUNDINGS` is allowed."""

_ADDED_TO = {
    **{f"attn.b_{letter}": f"attn.{letter.lower()}" for letter in "QKV"},
    "attn.b_O": "attn.attn_out",
    "mlp.b_in": "mlp.pre",
    "mlp.b_out": "mlp.mlp_out",
}
"""Each bias of a block, and what it is added to at every position."""


def sizes_of_terms(tensors: Arrays, gradients: Arrays) -> dict[str, float]:
    """For gradients that may cancel, the largest sum of the absolute values of what they sum.

    tensors, gradients: the reference's, by full name. Those of queries, keys and their weights,
    which are 0 where attention is indifferent, and of biases, which are sums over positions. A
    softmax's row has `ds = A (dA - sum(A dA))`, and A itself is off by as many units of rounding
    as its scores are large: with S the largest score, the terms of ds are as large as
    `A (|dA| + sum(A |dA|)) (1 + S)`.
    """
    found = {}
    for name in gradients:
        path, _, own = name.rpartition("attn.b_K")
        if path and not own:
            found.update(_of_attention(f"{path}attn", tensors, gradients))
    for name in gradients:
        bias = ".".join(name.split(".")[-2:])
        terms = f"{name.removesuffix(bias)}{_ADDED_TO.get(bias)}"
        if bias in _ADDED_TO and terms in gradients:
            total = float(np.abs(gradients[terms]).sum((0, 1)).max(initial=0.0))
            found[name] = max(found.get(name, 0.0), total)
    return found


def _of_attention(path: str, tensors: Arrays, gradients: Arrays) -> dict[str, float]:
    A, scores = tensors[f"{path}.attn_pattern"], tensors[f"{path}.attn_scores"]
    q, k, v = (np.abs(tensors[f"{path}.{name}"]).swapaxes(1, 2) for name in "qkv")
    x = tensors.get(f"{path}.qk_input", tensors[f"{path}.normalized_resid_pre"])
    x = np.abs(x).reshape(-1, x.shape[-1])
    dA = np.abs(gradients[f"{path}.z"]).swapaxes(1, 2) @ v.swapaxes(-1, -2)
    ds = A * (dA + (A * dA).sum(-1, keepdims=True)) * (1 + np.abs(scores).max(initial=0.0))
    ds = ds / q.shape[-1] ** 0.5
    found = {}
    for letter, d in (("Q", ds @ k), ("K", ds.swapaxes(-1, -2) @ q)):
        rows = d.swapaxes(0, 1).reshape(d.shape[1], -1, d.shape[-1])
        found[f"{path}.{letter.lower()}"] = float(d.max(initial=0.0))
        found[f"{path}.W_{letter}"] = float((x.T @ rows).max(initial=0.0))
        found[f"{path}.b_{letter}"] = float(rows.sum(1).max(initial=0.0))
    return found


def sizes_for_float64(
    truth: Arrays, rounding: Mapping[str, float], allowed: float, scales: Mapping[str, float]
) -> dict[str, float]:
    """Sizes of which `allowed` is what float64 rounds, as told from what float32 does.

    rounding: the reference's relative error in float32, for each name, of the larger of its
    tensor and its scale. In float64 that error is 2^29 times smaller. scales: sizes that are known;
    none of the result's is smaller.
    """
    narrower = _LUCK * ROUNDINGS * DOUBLE / t.finfo(t.float32).eps / allowed
    sizes = dict(scales)
    for name, right in truth.items():
        scale = scales.get(name, 0.0)
        size = max(scale, float(np.abs(right[np.isfinite(right)]).max(initial=0.0)))
        if np.isfinite(rounding.get(name, 0.0)):
            sizes[name] = max(scale, size * rounding.get(name, 0.0) * narrower)
    return sizes
