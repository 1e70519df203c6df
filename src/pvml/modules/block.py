"""A block: first attention, then the MLP, each adding what it found to the stream it read."""

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from pvml.config import Config
from pvml.modules.attention import Attention
from pvml.modules.cache import LayerCache
from pvml.modules.mlp import MLP
from pvml.modules.normalization import LayerNorm
from pvml.trace.printer import print_if_asked
from pvml.trace.tap import Tap


class TransformerBlock(nn.Module):
    """`resid_mid = resid_pre + attn(ln1(resid_pre))`; resid_post adds `mlp(ln2(resid_mid))`."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.tap = Tap("block", {"attn_only": cfg.attn_only})
        part = replace(cfg, debug=False)
        self.ln1 = norm(part)
        self.attn = Attention(part)
        if not cfg.attn_only:
            self.ln2 = norm(part)
            self.mlp = MLP(part)
        print_if_asked(self, cfg)

    def forward(
        self,
        resid_pre: Float[Tensor, "batch posn d_model"],
        positions: Float[Tensor, "batch posn d_model"] | None = None,
        real: Bool[Tensor, "batch posn_k"] | None = None,
        past: LayerCache | None = None,
    ) -> Float[Tensor, "batch posn d_model"]:
        """The stream, with what this block has added. The last three are attention's."""
        resid_pre = self.tap.at("resid_pre", resid_pre)
        read = self.attn(self.ln1(resid_pre), positions, real, past)
        resid_mid = resid_pre + read
        if self.cfg.attn_only:
            return self.tap.at("resid_post", resid_mid)
        resid_mid = self.tap.at("resid_mid", resid_mid)
        return self.tap.at("resid_post", resid_mid + self.mlp(self.ln2(resid_mid)))


def norm(cfg: Config) -> nn.Module:
    """LayerNorm, or nothing at all in a model without."""
    return LayerNorm(cfg) if cfg.normalization == "LN" else nn.Identity()


if __name__ == "__main__":
    from pvml.demos.block import main

    main()
