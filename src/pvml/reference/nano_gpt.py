"""nanoGPT's checkpoints in PvML's names: its model_args, and its tensors, strict both ways.

Its tensors have Hugging Face's names, its matrices nn.Linear's layout. Nothing of it is imported.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.reference.names import convert_gpt2, gpt2_parts
from pvml.reference.state_dicts import Converted, Origin, Part, require_layers

_SIZES = {
    "n_embd": "d_model",
    "n_head": "n_heads",
    "n_layer": "n_layers",
    "block_size": "n_ctx",
    "vocab_size": "d_vocab",
}
_OTHERS = ("bias", "dropout")
_NO_BIAS = "zeros: bias is False in model_args"


def config_from_nano_gpt(model_args: Mapping[str, Any]) -> Config:
    """The Config that a checkpoint's model_args describe, its vocabulary as long as it is stored.

    Raises: PvmlError naming what is missing, not known, or out of range.
    """
    missing = [name for name in _SIZES if model_args.get(name) is None]
    unknown = sorted(str(name) for name in set(model_args) - {*_SIZES, *_OTHERS})
    if missing or unknown:
        told = "; ".join(
            f"{what}: {', '.join(names)}"
            for what, names in (("missing", missing), ("not known", unknown))
            if names
        )
        raise PvmlError(f"model_args are not those of a nanoGPT. {told}")
    return Config(**{ours: model_args[theirs] for theirs, ours in _SIZES.items()})


def convert_nano_gpt(state: Mapping[str, Tensor], cfg: Config, *, bias: bool) -> Converted:
    """PvML's tensors out of a nanoGPT's state dict, and where each came from.

    bias: as in model_args; without, the biases are zeros, and none may be there. W_U is
    lm_head.weight transposed, which nanoGPT ties to wte.weight.

    Raises: PvmlError listing every tensor that is missing, unexpected or of another shape.
    """
    require_layers(state, cfg.n_layers)
    biases: list[Part] = []
    needed: list[Part] = []
    for part in gpt2_parts(cfg, linear=True):
        absent = not bias and part.theirs.endswith(".bias")
        (biases if absent else needed).append(part)
    converted = convert_gpt2(state, cfg, needed, tied=None)
    for part in biases:
        zeros = converted.weights["embed.W_E"].new_zeros(part.shape)
        for ours, x in part.convert(zeros).items():
            converted.weights[ours] = x
            converted.origins.append(Origin(ours, "", _NO_BIAS))
    return converted
