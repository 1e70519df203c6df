"""The model as the seed posts build it: eager einsums, a written mask and softmax, all log-probs.

Written from the posts' formulae, in their order: LayerNorm out of its mean and variance, the future
masked in place on the scaled scores, gelu_new out of elementary operations, and a loss that takes
the log-softmax of every logit and then gathers.
"""

import math

import torch as t
from einops import einsum, repeat
from torch import Tensor, nn

from peers.contract import Peer
from pvml.config import Config
from pvml.modules.transformer import Transformer


def empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(t.empty(shape))


class LayerNorm(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.eps = cfg.layer_norm_eps
        self.w, self.b = empty(cfg.d_model), empty(cfg.d_model)

    def forward(self, residual: Tensor) -> Tensor:
        mean = residual.mean(dim=-1, keepdim=True)
        std = (residual.var(dim=-1, keepdim=True, unbiased=False) + self.eps).sqrt()
        residual = (residual - mean) / std
        return residual * self.w + self.b


class Attention(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.d_head = cfg.d_head
        for name in "QKV":
            setattr(self, f"W_{name}", empty(cfg.n_heads, cfg.d_model, cfg.d_head))
            setattr(self, f"b_{name}", empty(cfg.n_heads, cfg.d_head))
        self.W_O, self.b_O = empty(cfg.n_heads, cfg.d_head, cfg.d_model), empty(cfg.d_model)
        self.register_buffer("IGNORE", t.tensor(-math.inf), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = "batch posn d_model, n_heads d_model d_head -> batch posn n_heads d_head"
        q = einsum(x, self.W_Q, heads) + self.b_Q
        k = einsum(x, self.W_K, heads) + self.b_K
        v = einsum(x, self.W_V, heads) + self.b_V
        grid = "batch q n_heads d_head, batch k n_heads d_head -> batch n_heads q k"
        pattern = self.masked(einsum(q, k, grid) / self.d_head**0.5).softmax(-1)
        mix = "batch k n_heads d_head, batch n_heads q k -> batch q n_heads d_head"
        out = "batch q n_heads d_head, n_heads d_head d_model -> batch q d_model"
        return einsum(einsum(v, pattern, mix), self.W_O, out) + self.b_O

    def masked(self, scores: Tensor) -> Tensor:
        future = t.triu(t.ones(scores.shape[-2:], device=scores.device), diagonal=1).bool()
        return scores.masked_fill_(future, self.IGNORE)


class MLP(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.W_in, self.b_in = empty(cfg.d_model, cfg.d_mlp), empty(cfg.d_mlp)
        self.W_out, self.b_out = empty(cfg.d_mlp, cfg.d_model), empty(cfg.d_model)

    def forward(self, x: Tensor) -> Tensor:
        pre = einsum(x, self.W_in, "batch posn d_model, d_model d_mlp -> batch posn d_mlp")
        post = gelu_new(pre + self.b_in)
        out = einsum(post, self.W_out, "batch posn d_mlp, d_mlp d_model -> batch posn d_model")
        return out + self.b_out


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + t.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


class Block(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.ln1, self.attn = LayerNorm(cfg), Attention(cfg)
        self.ln2, self.mlp = LayerNorm(cfg), MLP(cfg)

    def forward(self, residual: Tensor) -> Tensor:
        residual = self.attn(self.ln1(residual)) + residual
        return self.mlp(self.ln2(residual)) + residual


class Seeds(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.W_E, self.W_pos = empty(cfg.d_vocab, cfg.d_model), empty(cfg.n_ctx, cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = LayerNorm(cfg)
        self.W_U = empty(cfg.d_model, cfg.d_vocab)
        self.b_U = nn.Parameter(t.zeros(cfg.d_vocab), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, posn = tokens.shape
        positions = repeat(self.W_pos[:posn], "posn d_model -> batch posn d_model", batch=batch)
        residual = self.W_E[tokens] + positions
        for block in self.blocks:
            residual = block(residual)
        across = "batch posn d_model, d_model d_vocab -> batch posn d_vocab"
        return einsum(self.ln_final(residual), self.W_U, across) + self.b_U


def get_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    log_probs = logits.log_softmax(dim=-1)
    return log_probs[:, :-1].gather(dim=-1, index=tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


def build(model: Transformer) -> Peer:
    """The names inside blocks are ours; the tables lie one level higher."""
    seeds = Seeds(model.cfg).to(model.dtype)
    tables = ("embed.", "pos_embed.", "unembed.")
    state = {}
    for name, x in model.state_dict().items():
        table = next((table for table in tables if name.startswith(table)), "")
        state[name.removeprefix(table)] = x
    seeds.load_state_dict(state)
    return seeds, lambda tokens: -get_log_probs(seeds(tokens), tokens).mean()
