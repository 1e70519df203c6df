"""The model that a training starts from: freshly drawn, its positions perhaps as waves."""

import torch as t
from jaxtyping import Float
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.training.args import LARGEST, TrainingArgs


def first_model(cfg: Config, args: TrainingArgs) -> Transformer:
    """What `Transformer(cfg, seed=args.seed)` draws, with `args.position_waves` applied to W_pos.

    Raises: PvmlError for waves in a model that has no W_pos, or an init_range above 1e6.
    """
    if cfg.init_range > LARGEST:
        raise PvmlError(
            f"init_range must be at most {LARGEST:g} for a training, got {cfg.init_range:g}: "
            f"products of such weights overflow. GPT-2's is {Config.init_range:g}"
        )
    model = Transformer(cfg, seed=args.seed)
    if args.position_waves is not None:
        if cfg.positions == "none":
            raise PvmlError(
                f"position_waves {args.position_waves} has no meaning in a model with positions "
                f"none, which has no W_pos: leave it out, or use positions standard"
            )
        start_positions_as_waves(model.pos_embed.W_pos, args.position_waves)
    return model


@t.no_grad()
def start_positions_as_waves(W_pos: Float[Tensor, "n_ctx d_model"], amplitude: float) -> None:
    """Let positions begin as waves of many lengths: learning them from noise takes long.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5, with wavelengths up to 2 pi 1,000.
    """
    n_ctx, d_model = W_pos.shape
    speeds = 1000.0 ** -(t.arange(0, d_model, 2) / d_model)
    angles = t.arange(n_ctx)[:, None] * speeds
    W_pos.copy_(amplitude * t.cat([angles.sin(), angles.cos()], dim=1)[:, :d_model])
