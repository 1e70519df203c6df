"""What a weight reads through a LayerNorm, or writes through a pattern, put into the weight itself.

`folded` is the one place that says what it means to fold a LayerNorm: circuits that are read off an
unprocessed model use it too. The functions that change a model do so in place.
"""

from collections.abc import Iterator

import torch as t
from jaxtyping import Float
from torch import Tensor, nn

from pvml.modules.attention import Attention, side_by_side
from pvml.modules.block import TransformerBlock
from pvml.modules.mlp import MLP
from pvml.modules.normalization import LayerNorm
from pvml.modules.transformer import Transformer


def folded(
    ln: nn.Module, W: Float[Tensor, "d_model out"], b: Float[Tensor, " out"]
) -> tuple[Float[Tensor, "d_model out"], Float[Tensor, " out"]]:
    """M and c with `ln(x) W + b = x / std(x) @ M + c`; without LayerNorm W and b themselves.

    ln's w scales the rows of W, its b becomes a part of c. To centre a vector before a product is
    to centre the columns of what it is multiplied with, so M does that too. All in the type of W.
    """
    if not isinstance(ln, LayerNorm):
        return W, b
    scaled = ln.w.detach().to(W)[:, None] * W
    return scaled - scaled.mean(0), ln.b.detach().to(W) @ W + b


def exact(x: Tensor) -> Tensor:
    """A parameter's numbers in float64, on the CPU, which not every device has."""
    return x.detach().cpu().double()


def blocks_of(model: Transformer) -> Iterator[tuple[str, TransformerBlock]]:
    """Every block, with its path in the model."""
    for i, block in enumerate(model.blocks):
        assert isinstance(block, TransformerBlock)
        yield f"blocks.{i}", block


def fold_norms(model: Transformer) -> list[str]:
    """Every LayerNorm into what reads it; its w is 1 then, and its b 0. What was changed."""
    changed = []
    for path, block in blocks_of(model):
        _fold_into_heads(block.ln1, block.attn)
        changed += _reset(block.ln1, f"{path}.ln1")
        changed += [f"{path}.attn.{kind}_{which}" for kind in "Wb" for which in "QKV"]
        if not model.cfg.attn_only:
            _fold_into_hidden(block.ln2, block.mlp)
            changed += [*_reset(block.ln2, f"{path}.ln2"), f"{path}.mlp.W_in", f"{path}.mlp.b_in"]
    unembed = model.unembed
    W, b = folded(model.ln_final, exact(unembed.W_U), exact(unembed.b_U))
    unembed.W_U.copy_(W)
    unembed.b_U.copy_(b)
    return [*changed, *_reset(model.ln_final, "ln_final"), "unembed.W_U", "unembed.b_U"]


def fold_biases(model: Transformer) -> list[str]:
    """Every layer's b_V into its b_O, by way of W_O. What was changed."""
    changed = []
    for path, block in blocks_of(model):
        attn = block.attn
        through = t.einsum("hd,hdm->m", exact(attn.b_V), exact(attn.W_O))
        attn.b_O.copy_(exact(attn.b_O) + through)
        attn.b_V.zero_()
        changed += [f"{path}.attn.b_V", f"{path}.attn.b_O"]
    return changed


def _fold_into_heads(ln: nn.Module, attn: Attention) -> None:
    n_heads, d_model, d_head = attn.W_Q.shape
    for W, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V)):
        M, c = folded(ln, side_by_side(exact(W)), exact(b).flatten())
        W.copy_(M.view(d_model, n_heads, d_head).transpose(0, 1))
        b.copy_(c.view(n_heads, d_head))


def _fold_into_hidden(ln: nn.Module, mlp: MLP) -> None:
    W, b = folded(ln, exact(mlp.W_in), exact(mlp.b_in))
    mlp.W_in.copy_(W)
    mlp.b_in.copy_(b)


def _reset(ln: nn.Module, name: str) -> list[str]:
    assert isinstance(ln, LayerNorm)
    ln.w.fill_(1.0)
    ln.b.zero_()
    return [f"{name}.w", f"{name}.b"]
