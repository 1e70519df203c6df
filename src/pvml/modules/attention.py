"""Attention: what a position asks for meets what earlier ones offer; their values are mixed.

The only layer in which positions read each other. Scores are q . k / sqrt(d_head), the future is
masked, a softmax turns each row into shares. Source: Vaswani et al. 2017, arXiv:1706.03762, 3.2.
"""

from contextlib import nullcontext

import torch as t
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pvml.config import Config
from pvml.device import attends_in_pieces, attention_kernel_dtype
from pvml.modules.cache import LayerCache
from pvml.modules.product import products
from pvml.trace.printer import print_if_asked
from pvml.trace.tap import Tap

SCORES = "batch posn_q n_heads d_head, batch posn_k n_heads d_head -> batch n_heads posn_q posn_k"
MIX = "batch n_heads posn_q posn_k, batch posn_k n_heads d_head -> batch posn_q n_heads d_head"
GRID = ("attn_scores", "mask", "attn_scores_masked", "attn_pattern")
QUERIES = 64
"""In a piece. More do products that the mask throws away, fewer make them too small."""


class Attention(nn.Module):
    """Heads that each read the stream through W_Q, W_K, W_V and write to it through W_O."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.tap = Tap("attn", {"positions": cfg.positions})
        self.W_Q, self.W_K, self.W_V = (self._reading_weight() for _ in "QKV")
        self.W_O = nn.Parameter(
            t.empty(cfg.n_heads, cfg.d_head, cfg.d_model).normal_(std=cfg.init_range)
        )
        self.b_Q, self.b_K, self.b_V = (
            nn.Parameter(t.zeros(cfg.n_heads, cfg.d_head)) for _ in "QKV"
        )
        self.b_O = nn.Parameter(t.zeros(cfg.d_model))
        print_if_asked(self, cfg)

    def _reading_weight(self) -> nn.Parameter:
        """(n_heads, d_model, d_head), stored d_model-major, so that all heads are one matrix."""
        cfg = self.cfg
        stored = t.empty(cfg.d_model, cfg.n_heads, cfg.d_head).normal_(std=cfg.init_range)
        return nn.Parameter(stored.permute(1, 0, 2))

    def forward(
        self,
        normalized_resid_pre: Float[Tensor, "batch posn d_model"],
        positions: Float[Tensor, "batch posn d_model"] | None = None,
        real: Bool[Tensor, "batch posn_k"] | None = None,
        past: LayerCache | None = None,
    ) -> Float[Tensor, "batch posn d_model"]:
        """What every position copies from those it can see. Expects ln1's output.

        `positions` (shortformer) are added for queries and keys only. `real` is False at padding.
        `past` holds earlier keys and values, and takes these.
        """
        x = self.tap.at("normalized_resid_pre", normalized_resid_pre)
        qk = x if positions is None else self.tap.at("qk_input", x + positions)
        asks, offers, brings = (self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V)
        if qk is x:
            q, k, v = into_heads(x, asks, offers, brings)
        else:
            q, k, v = *into_heads(qk, asks, offers), *into_heads(x, brings)
        q, k, v = self.tap.at("q", q), self.tap.at("k", k), self.tap.at("v", v)
        if past is not None:
            k, v = past.extend(k, v)
        z = self.tap.at("z", attend(q, k, v, real, self.tap))
        return self.tap.at("attn_out", out_of_heads(z, self.W_O, self.b_O))


def into_heads(
    x: Float[Tensor, "batch posn d_model"],
    *weights: tuple[Float[Tensor, "n_heads d_model d_head"], Float[Tensor, "n_heads d_head"]],
) -> list[Float[Tensor, "batch posn n_heads d_head"]]:
    """`x W + b` for each W and b and each head, as one product with the heads side by side."""
    Ws, bs = zip(*weights, strict=True)
    heads = (*x.shape[:2], *bs[0].shape)
    return [y.view(heads) for y in products(x, Ws, bs, side_by_side)]


def side_by_side(W: Float[Tensor, "n_heads d_model d_head"]) -> Float[Tensor, "d_model width"]:
    """All heads as one matrix, of width n_heads d_head."""
    return W.transpose(0, 1).flatten(1)


def one_below_the_other(
    W: Float[Tensor, "n_heads d_head d_model"],
) -> Float[Tensor, "width d_model"]:
    """All heads as one matrix, of n_heads d_head rows."""
    return W.flatten(0, 1)


def out_of_heads(
    z: Float[Tensor, "batch posn n_heads d_head"],
    W: Float[Tensor, "n_heads d_head d_model"],
    b: Float[Tensor, " d_model"],
) -> Float[Tensor, "batch posn d_model"]:
    """What all heads write: the sum of every head's `z W`, plus b."""
    return products(z.flatten(2), (W,), (b,), one_below_the_other)[0]


def attend(
    q: Float[Tensor, "batch posn_q n_heads d_head"],
    k: Float[Tensor, "batch posn_k n_heads d_head"],
    v: Float[Tensor, "batch posn_k n_heads d_head"],
    real: Bool[Tensor, "batch posn_k"] | None,
    tap: Tap,
) -> Float[Tensor, "batch posn_q n_heads d_head"]:
    """`softmax(mask(q . k / sqrt(d_head))) v`. The grid is written out only if someone wants it."""
    if tap.wants(*GRID):
        scores = einsum(q, k, SCORES)
        mask = cannot_attend(q.shape[1], k.shape[1], real, q.device)
        heard_scores, heard_mask = tap.at("attn_scores", scores), tap.at("mask", mask)
        hidden = heard_mask if heard_mask.ndim == 2 else heard_mask[:, None]
        masked = (heard_scores / q.shape[-1] ** 0.5).masked_fill(hidden, -t.inf)
        heard_masked = tap.at("attn_scores_masked", masked)
        # half types round a softmax's sum visibly: it is taken in float32, as the kernel does
        wide = t.float64 if q.dtype == t.float64 else t.float32
        pattern = heard_masked.softmax(-1, dtype=wide).to(q.dtype)
        heard_pattern = tap.at("attn_pattern", pattern)
        if not (
            heard_scores is scores
            and heard_mask is mask
            and heard_masked is masked
            and heard_pattern is pattern
        ):
            return einsum(heard_pattern, v, MIX)
    return fused(q, k, v, real)


def fused(
    q: Float[Tensor, "batch posn_q n_heads d_head"],
    k: Float[Tensor, "batch posn_k n_heads d_head"],
    v: Float[Tensor, "batch posn_k n_heads d_head"],
    real: Bool[Tensor, "batch posn_k"] | None,
) -> Float[Tensor, "batch posn_q n_heads d_head"]:
    """`attend` without writing the grid: in pieces, or by PyTorch's kernel, whichever is faster."""
    n_q, n_k = q.shape[1], k.shape[1]
    whole = real is None and n_q == n_k
    if whole and attends_in_pieces(q):
        return in_pieces(q, k, v)
    sees_all = real is None and n_q == 1
    visible = None
    if not (whole or sees_all):
        visible = ~cannot_attend(n_q, n_k, real, q.device)
        visible = visible if visible.ndim == 2 else visible[:, None]
    given, fast = q.dtype, attention_kernel_dtype(q)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if fast != given:
        q, k, v = q.to(fast), k.to(fast), v.to(fast)
    autocasts = t.is_autocast_enabled(q.device.type)
    with t.autocast(q.device.type, enabled=False) if autocasts else nullcontext():
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=whole)
    return z.transpose(1, 2) if fast == given else z.transpose(1, 2).to(given)


def in_pieces(
    q: Float[Tensor, "batch posn n_heads d_head"],
    k: Float[Tensor, "batch posn n_heads d_head"],
    v: Float[Tensor, "batch posn n_heads d_head"],
) -> Float[Tensor, "batch posn n_heads d_head"]:
    """`attend` for some queries at a time, and only the keys up to the last of them."""
    batch, n, n_heads, d_head = q.shape
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (batch n_heads) posn d_head
    mask = q.new_full((n, n), -t.inf).triu(1)
    z = []
    for start in range(0, n, QUERIES):
        here, seen = slice(start, start + QUERIES), slice(start + QUERIES)
        scores = t.baddbmm(mask[here, seen], q[:, here], k[:, seen].mT, alpha=d_head**-0.5)
        z.append(scores.softmax(-1) @ v[:, seen])
    return t.cat(z, 1).view(batch, n_heads, n, d_head).transpose(1, 2)


def cannot_attend(
    n_q: int, n_k: int, real: Bool[Tensor, "batch posn_k"] | None, device: t.device
) -> Bool[Tensor, "n_q n_k"] | Bool[Tensor, "batch n_q n_k"]:
    """True where a query must not look: at its future, and at padding other than itself.

    The queries are the last n_q of n_k positions. Padding sees itself, so that no row is empty and
    no softmax is over nothing; no real position sees it.
    """
    behind = n_k - n_q
    future = t.ones(n_q, n_k, dtype=t.bool, device=device).triu(1 + behind)
    if real is None:
        return future
    itself = t.ones(n_q, n_k, dtype=t.bool, device=device).tril(behind).triu(behind)
    return future | (~real[:, None, :] & ~itself)


if __name__ == "__main__":
    from pvml.demos.attention import main

    main()
