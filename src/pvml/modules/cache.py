"""Keys and values already computed, so that a pass over new tokens need not repeat the old ones.

Once a window slides, they are void: keys contain the position that they were made at, and, without
positions too, what later layers keep was computed from streams that had read the dropped tokens.
"""

import torch as t
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError


class LayerCache:
    """One layer's keys and values, in room set aside for the longest sequence."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.length = 0
        """Positions filled (tokens)."""

    def extend(
        self,
        k: Float[Tensor, "batch posn n_heads d_head"],
        v: Float[Tensor, "batch posn n_heads d_head"],
    ) -> tuple[
        Float[Tensor, "batch posn_k n_heads d_head"], Float[Tensor, "batch posn_k n_heads d_head"]
    ]:
        """All keys and values so far, these included."""
        if t.is_grad_enabled() and k.requires_grad:
            raise PvmlError("a cache is for inference: use it under torch.no_grad()")
        end = self.length + k.shape[1]
        self.keys[:, self.length : end].copy_(k)
        self.values[:, self.length : end].copy_(v)
        return self.keys[:, :end], self.values[:, :end]

    def select(self, rows: Int[Tensor, " batch"], start: int) -> None:
        """Row i becomes what rows[i] was; positions before `start` may be those of any row."""
        if len(rows) != len(self.keys):
            self.keys, self.values = self.keys[rows], self.values[rows]
            return
        for kept in (self.keys, self.values):
            kept[:, start : self.length] = kept[rows, start : self.length]


class KVCache:
    """The keys and values of every layer, and which of the positions are real (not padding)."""

    def __init__(
        self,
        cfg: Config,
        batch: int = 1,
        n_ctx: int | None = None,
        device: str | t.device | None = None,
        dtype: t.dtype = t.float32,
    ) -> None:
        if batch < 0 or (n_ctx is not None and n_ctx < 0):
            raise PvmlError(f"batch and n_ctx must be at least 0, got {batch} and {n_ctx}")
        self.cfg = cfg
        self.n_ctx = cfg.n_ctx if n_ctx is None else min(n_ctx, cfg.n_ctx)
        shape = (batch, self.n_ctx, cfg.n_heads, cfg.d_head)
        self.layers = [
            LayerCache(
                t.empty(shape, device=device, dtype=dtype),
                t.empty(shape, device=device, dtype=dtype),
            )
            for _ in range(cfg.n_layers)
        ]
        self.batch = batch
        self.length = 0
        """Positions filled (tokens)."""
        self.real: Bool[Tensor, "batch posn_k"] | None = None
        """False at padding, over the positions filled; None while there has been none."""

    def real_with(
        self, new: Bool[Tensor, "batch posn"] | None, n_new: int, device: t.device
    ) -> Bool[Tensor, "batch posn_k"] | None:
        """Which positions are real once `n_new` more have come; None if all of them are."""
        if self.real is None and new is None:
            return None
        old = self.real
        if old is None:
            old = t.ones(self.batch, self.length, dtype=t.bool, device=device)
        if new is None:
            new = t.ones(self.batch, n_new, dtype=t.bool, device=device)
        return t.cat([old, new], dim=1)

    def advance(self, n_new: int, real: Bool[Tensor, "batch posn_k"] | None) -> None:
        """Count the positions of a pass that has gone through every layer."""
        self.length += n_new
        self.real = real
        for layer in self.layers:
            layer.length = self.length

    def select(self, rows: Int[Tensor, " batch"], start: int = 0) -> None:
        """Go on with these rows, in this order; a row may come several times, or not at all.

        start: positions before it hold the same in all rows, which spares moving them.
        """
        self.batch = len(rows)
        if self.real is not None:
            self.real = self.real[rows]
        for layer in self.layers:
            layer.select(rows, start)

    def clear(self) -> None:
        """Forget everything; the room stays."""
        self.advance(-self.length, None)
