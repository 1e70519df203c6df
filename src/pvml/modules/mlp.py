"""The MLP: each position on its own goes into a wider layer, bends there, and comes back."""

import torch as t
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pvml.config import Config
from pvml.modules.product import product
from pvml.trace.printer import print_if_asked
from pvml.trace.tap import Tap


class MLP(nn.Module):
    """`gelu_new(x W_in + b_in) W_out + b_out`, the same at every position.

    Source of gelu_new: Hendrycks, Gimpel 2016, arXiv:1606.08415, section 2 (the tanh form).
    """

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.tap = Tap("mlp")
        self.W_in = nn.Parameter(t.empty(cfg.d_model, cfg.d_mlp).normal_(std=cfg.init_range))
        self.W_out = nn.Parameter(t.empty(cfg.d_mlp, cfg.d_model).normal_(std=cfg.init_range))
        self.b_in = nn.Parameter(t.zeros(cfg.d_mlp))
        self.b_out = nn.Parameter(t.zeros(cfg.d_model))
        print_if_asked(self, cfg)

    def forward(
        self, normalized_resid_mid: Float[Tensor, "batch posn d_model"]
    ) -> Float[Tensor, "batch posn d_model"]:
        """What the MLP adds to the stream. Expects ln2's output."""
        x = self.tap.at("normalized_resid_mid", normalized_resid_mid)
        pre = self.tap.at("pre", product(x, self.W_in, self.b_in))
        post = self.tap.at("post", F.gelu(pre, approximate="tanh"))
        return self.tap.at("mlp_out", product(post, self.W_out, self.b_out))


if __name__ == "__main__":
    from pvml.demos.mlp import main

    main()
