"""LayerNorm: each position's vector is standardised on its own, then rescaled and shifted."""

import torch as t
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pvml.config import Config
from pvml.device import product_dtype
from pvml.trace.printer import print_if_asked
from pvml.trace.tap import Tap


class LayerNorm(nn.Module):
    """`(x - mean) / sqrt(var + eps) * w + b`, the mean and biased variance taken over d_model.

    Statistics are float32 at least, whatever the model computes in.
    Source: Ba, Kiros, Hinton 2016, arXiv:1607.06450, section 3.
    """

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.tap = Tap("ln")
        self.w = nn.Parameter(t.ones(cfg.d_model))
        self.b = nn.Parameter(t.zeros(cfg.d_model))
        print_if_asked(self, cfg)

    def forward(
        self, residual: Float[Tensor, "batch posn d_model"]
    ) -> Float[Tensor, "batch posn d_model"]:
        """The stream at a common scale; a constant vector gives exactly `b`."""
        residual = self.tap.at("residual", residual)
        kind, wide = product_dtype(residual), t.promote_types(residual.dtype, t.float32)
        # Tensor.to takes a microsecond even where there is nothing to do
        x, w, b = (v if v.dtype == wide else v.to(wide) for v in (residual, self.w, self.b))
        edited = self._standardised_if_edited(x) if self.tap.listeners else None
        if edited is None:
            # the kernel centres before it scales only in float32 and float64: half types lose b
            out = F.layer_norm(x, (self.cfg.d_model,), w, b, self.cfg.layer_norm_eps)
        else:
            out = edited * w + b
        # here once, or each product that reads it would convert it for itself
        return self.tap.at("out", out if out.dtype == kind else out.to(kind))

    def _standardised_if_edited(
        self, x: Float[Tensor, "batch posn d_model"]
    ) -> Float[Tensor, "batch posn d_model"] | None:
        """The steps inside the kernel, for whoever listens; None unless one of them was edited."""
        if not self.tap.wants("residual_mean", "residual_std", "normalized"):
            return None
        mean = x.mean(-1, keepdim=True)
        std = ((x - mean).square().mean(-1, keepdim=True) + self.cfg.layer_norm_eps).sqrt()
        heard_mean, heard_std = self.tap.at("residual_mean", mean), self.tap.at("residual_std", std)
        normalized = (x - heard_mean) / heard_std
        heard = self.tap.at("normalized", normalized)
        untouched = heard_mean is mean and heard_std is std and heard is normalized
        return None if untouched else heard


if __name__ == "__main__":
    from pvml.demos.normalization import main

    main()
