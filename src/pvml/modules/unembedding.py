"""The unembedding: the finished stream becomes one score for every token that could come next."""

from typing import Any

import torch as t
from jaxtyping import Float, Int
from torch import Tensor, nn

from pvml.config import Config
from pvml.modules.embedding import Embed
from pvml.modules.product import product
from pvml.trace.printer import print_if_asked
from pvml.trace.tap import Tap


class Unembed(nn.Module):
    """`x W_U + b_U`. GPT-2 has no bias here: b_U is frozen at zero and only keeps the shapes.

    With `tie_embeddings` it has no table of its own: W_U is `embed`'s W_E, transposed.
    """

    def __init__(self, cfg: Config, embed: Embed | None = None) -> None:
        super().__init__()
        self.cfg = cfg
        self.tap = Tap("unembed")
        # in a list, so that the embedding is not registered here a second time
        self._tied = [embed] if cfg.tie_embeddings and embed is not None else []
        b_U = t.zeros(cfg.d_vocab)
        if self._tied:
            self.register_buffer("b_U", b_U)
        else:
            self.W_U = nn.Parameter(t.empty(cfg.d_model, cfg.d_vocab).normal_(std=cfg.init_range))
            self.b_U = nn.Parameter(b_U, requires_grad=False)
        print_if_asked(self, cfg)

    def __getattr__(self, name: str) -> Any:
        if name == "W_U" and self.__dict__.get("_tied"):
            return self._tied[0].W_E.T
        return super().__getattr__(name)

    def forward(
        self, normalized_resid_final: Float[Tensor, "batch posn d_model"]
    ) -> Float[Tensor, "batch posn d_vocab"]:
        """Logits, before any softmax. Expects ln_final's output."""
        return self.logits(self.tap.at("normalized_resid_final", normalized_resid_final))

    def logits(self, x: Float[Tensor, "batch posn d_model"]) -> Float[Tensor, "batch posn d_vocab"]:
        """The scores alone, for the loss, which needs them only if somebody listens there."""
        return self.tap.at("logits", product(x, self.W_U, self.b_U))


def log_prob_of(
    logits: Float[Tensor, "*places d_vocab"], targets: Int[Tensor, "*places"]
) -> Float[Tensor, "*places"]:
    """Log-probability, in nats, of each target under the logits at the same place."""
    # a half type resolves 10 nats no better than to 0.01 or 0.1
    wide = t.promote_types(logits.dtype, t.float32)
    log_probs = logits.log_softmax(-1, dtype=wide)
    return log_probs.gather(-1, targets.long()[..., None])[..., 0]


if __name__ == "__main__":
    from pvml.demos.unembedding import main

    main()
