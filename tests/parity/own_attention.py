"""A plain attention as a reader may write it, right; tests change a line of it to make it wrong."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        shape = (cfg.n_heads, cfg.d_model, cfg.d_head)
        self.W_Q = nn.Parameter(0.02 * torch.randn(shape))
        self.W_K = nn.Parameter(0.02 * torch.randn(shape))
        self.W_V = nn.Parameter(0.02 * torch.randn(shape))
        self.W_O = nn.Parameter(0.02 * torch.randn(cfg.n_heads, cfg.d_head, cfg.d_model))
        self.b_Q = nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head))
        self.b_K = nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head))
        self.b_V = nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head))
        self.b_O = nn.Parameter(torch.zeros(cfg.d_model))

    def forward(self, x):
        n = x.shape[1]
        q = torch.einsum("bnd,hde->bhne", x, self.W_Q) + self.b_Q[:, None]
        k = torch.einsum("bnd,hde->bhne", x, self.W_K) + self.b_K[:, None]
        v = torch.einsum("bnd,hde->bhne", x, self.W_V) + self.b_V[:, None]
        scores = q @ k.transpose(-2, -1) / self.cfg.d_head**0.5
        future = torch.ones(n, n).triu(1) == 1
        scores = scores.masked_fill(future, float("-inf"))
        pattern = scores.softmax(dim=-1)
        z = (pattern @ v).transpose(1, 2)
        out = torch.einsum("bnhe,hed->bnd", z, self.W_O) + self.b_O
        return out
