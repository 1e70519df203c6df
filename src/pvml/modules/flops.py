"""What a pass costs in arithmetic: the multiplications and additions of its matrix products.

Sources: Kaplan et al. 2020, arXiv:2001.08361, table 1, whose attention grid is half of ours; and
Hoffmann et al. 2022, arXiv:2203.15556, appendix F. The whole grid is counted, since the future is
computed and then hidden. Left out: LayerNorm, softmax, GELU, biases, the loss, and the embedding,
which is a lookup (Hoffmann's count makes it, and the softmax, part of the total).
"""

from dataclasses import astuple, dataclass

from pvml.config import Config
from pvml.errors import PvmlError


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Floating-point operations per token, by part. A multiplication with its addition is two."""

    projections: int
    """Queries, keys, values, and the heads' way back to the stream."""
    grid: int
    """Scores between all pairs of positions, and the values mixed by them: it grows with n_ctx."""
    mlp: int
    unembedding: int

    @property
    def total(self) -> int:
        return sum(astuple(self))


def forward_flops(cfg: Config, n_ctx: int | None = None) -> Flops:
    """The cost of a forward pass over rows of `n_ctx` tokens (unset: the model's), per token.

    Raises: PvmlError for an n_ctx below 1 or above the model's.
    """
    length = cfg.n_ctx if n_ctx is None else n_ctx
    if not 1 <= length <= cfg.n_ctx:
        raise PvmlError(f"n_ctx must lie between 1 and the model's {cfg.n_ctx}, got {length}")
    width = cfg.n_heads * cfg.d_head
    return Flops(
        projections=cfg.n_layers * 4 * 2 * cfg.d_model * width,
        grid=cfg.n_layers * 2 * 2 * length * width,
        mlp=0 if cfg.attn_only else cfg.n_layers * 2 * 2 * cfg.d_model * cfg.d_mlp,
        unembedding=2 * cfg.d_model * cfg.d_vocab,
    )


def training_flops(cfg: Config, n_ctx: int | None = None) -> Flops:
    """The cost of a training step per token: three forward passes' worth.

    The backward pass has two products for each of the forward's: one for the gradient of what was
    multiplied, one for the weights'. Nothing that a kernel computes a second time is counted.

    Raises: PvmlError as `forward_flops` does.
    """
    once = forward_flops(cfg, n_ctx)
    return Flops(
        projections=3 * once.projections,
        grid=3 * once.grid,
        mlp=3 * once.mlp,
        unembedding=3 * once.unembedding,
    )
