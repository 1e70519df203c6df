"""nanoGPT's architecture in plain PyTorch: Linear layers, one for q, k and v, and the fused kernel.

Biases as GPT-2 has them. Two departures, so that all contestants do the same work on the same
weights: the unembedding is not tied to the embedding, and GELU is GPT-2's tanh form. As in nanoGPT,
the model returns its logits along with the loss. Compiled so that it returns the loss only it is
faster and needs half the memory, since the compiler may drop the logits: a variant of its own here.
"""

from collections.abc import Callable

import torch as t
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from peers.contract import Peer
from pvml.config import Config
from pvml.modules.transformer import Transformer


class SelfAttention(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)

    def forward(self, x: Tensor) -> Tensor:
        batch, posn, width = x.shape
        heads = (batch, posn, self.n_heads, width // self.n_heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(z.transpose(1, 2).reshape(batch, posn, width))


class Block(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.norm1 = nn.LayerNorm(cfg.d_model, eps=cfg.layer_norm_eps)
        self.attention = SelfAttention(cfg)
        self.norm2 = nn.LayerNorm(cfg.d_model, eps=cfg.layer_norm_eps)
        self.wide = nn.Linear(cfg.d_model, cfg.d_mlp)
        self.narrow = nn.Linear(cfg.d_mlp, cfg.d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class NanoGPT(nn.Module):
    """The loss is computed inside the model, where torch.compile sees it too."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.tokens = nn.Embedding(cfg.d_vocab, cfg.d_model)
        self.positions = nn.Embedding(cfg.n_ctx, cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.norm = nn.LayerNorm(cfg.d_model, eps=cfg.layer_norm_eps)
        self.head = nn.Linear(cfg.d_model, cfg.d_vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(tokens) + self.positions(t.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss


def build(model: Transformer, variant: str = "") -> Peer:
    """Our weights, transposed to (out, in) and with the heads side by side.

    variant: unset, or `compiled` or `compiled-loss`, which go through torch.compile and so need a
    C++ compiler on a CPU.
    """
    nano = NanoGPT(model.cfg).to(model.dtype)
    nano.load_state_dict(converted(model))
    both: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = nano
    if variant == "compiled":
        both = t.compile(nano)
    loss_only = lambda tokens, targets: both(tokens, targets)[1]  # noqa: E731
    if variant == "compiled-loss":
        loss_only = t.compile(loss_only)
    return nano, lambda tokens: loss_only(tokens, next_tokens(tokens))


def next_tokens(tokens: Tensor) -> Tensor:
    """What each position has to predict; the last one nothing."""
    return F.pad(tokens[:, 1:], (0, 1), value=-1)


def converted(model: Transformer) -> dict[str, Tensor]:
    state = {
        "tokens.weight": model.embed.W_E,
        "positions.weight": model.pos_embed.W_pos,
        "norm.weight": model.ln_final.w,
        "norm.bias": model.ln_final.b,
        "head.weight": model.unembed.W_U.T,
    }
    for i, block in enumerate(model.blocks):
        attn, mlp = block.attn, block.mlp
        qkv = t.stack([attn.W_Q, attn.W_K, attn.W_V])
        biases = t.stack([attn.b_Q, attn.b_K, attn.b_V])
        ours = {
            "norm1.weight": block.ln1.w,
            "norm1.bias": block.ln1.b,
            "attention.qkv.weight": rearrange(qkv, "three head model d -> (three head d) model"),
            "attention.qkv.bias": biases.flatten(),
            "attention.out.weight": rearrange(attn.W_O, "head d model -> model (head d)"),
            "attention.out.bias": attn.b_O,
            "norm2.weight": block.ln2.w,
            "norm2.bias": block.ln2.b,
            "wide.weight": mlp.W_in.T,
            "wide.bias": mlp.b_in,
            "narrow.weight": mlp.W_out.T,
            "narrow.bias": mlp.b_out,
        }
        state |= {f"blocks.{i}.{name}": x for name, x in ours.items()}
    return {name: x.detach() for name, x in state.items()}
