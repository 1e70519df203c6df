"""A plain MLP as a reader may write it, right; tests change a line of it to make it wrong."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        for name, *shape in (
            ("W_in", cfg.d_model, cfg.d_mlp),
            ("b_in", cfg.d_mlp),
            ("W_out", cfg.d_mlp, cfg.d_model),
            ("b_out", cfg.d_model),
        ):
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, x):
        x = x @ self.W_in + self.b_in
        u = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
        x = 0.5 * x * (1 + torch.tanh(u))
        return x @ self.W_out + self.b_out
