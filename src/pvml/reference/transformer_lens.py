"""TransformerLens 4 as a reference: what its hooks hold for the same weights, by PvML's names.

The only file that imports it; needs the extra `lens`. Where its tensor of a name is another one
than PvML's is told in `pvml.trace.points`, as `differs`.
"""

from typing import Any, Literal

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.reference.names_out import lens_fields, not_in_gpt2, to_lens
from pvml.trace.tap import places

try:
    from transformer_lens import TransformerBridgeConfig
    from transformer_lens.conversion_utils import convert_tl_checkpoint
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    from pvml.reference.huggingface import gpt2_with
except ImportError as problem:
    raise ImportError(
        "TransformerLens as a reference needs its version 4: pip install 'pvml[lens]'"
    ) from problem

Build = Literal["bridge", "native"]
"""Around Hugging Face's GPT-2, or TransformerLens's own modules."""

_ELSEWHERE = {
    "embed": {"in": "hook_in"},
    "ln": {"residual": "hook_in", "normalized": "hook_normalized", "out": "hook_out"},
    "attn": {"normalized_resid_pre": "hook_in"},
    "mlp": {"normalized_resid_mid": "hook_in"},
    "unembed": {"normalized_resid_final": "hook_in", "logits": "hook_out"},
}
"""Tensors that HookedTransformer had no name for, or another one than version 4 has: the module's
kind, PvML's name within it, version 4's."""


def lens_activations(
    model: Transformer, tokens: Int[Tensor, "batch posn"], *, build: Build | None = None
) -> dict[str, Tensor]:
    """Every tensor that TransformerLens's hooks reach, by PvML's full name, in the pass's order.

    The weights are the model's own, the arithmetic TransformerLens's, on the CPU. build: "bridge"
    is its hooks around Hugging Face's GPT-2, "native" its own modules, which can be attention-only
    or without LayerNorm; unset, the bridge where a GPT-2 can hold the model. Not reached:
    LayerNorm's mean, the raw scores, the mask, the sliced positions; natively, the masked scores
    neither.

    Raises: PvmlError with the reasons, if that build cannot hold this model.
    """
    bridge = lens_model(model, build=build)
    with t.no_grad():
        _, seen = bridge.run_with_cache(tokens.cpu(), return_cache_object=False)
    native = bridge.cfg.architecture == "TransformerLensNative"
    ours = {}
    for place in places(model):
        path = place.name.removesuffix(f".{place.point.name}")
        other = _ELSEWHERE.get(place.tap.kind, {}).get(place.point.name)
        theirs = f"{path}.{other}" if other else place.lens
        # natively, the masked scores' name holds the pattern
        if theirs and not (native and place.point.name == "attn_scores_masked"):
            ours[theirs] = place.name
    return {ours[name]: x for name, x in seen.items() if name in ours}


def lens_model(model: Transformer, *, build: Build | None = None, compatible: bool = True) -> Any:
    """A TransformerBridge with this model's weights, in its dtype, on the CPU, to evaluate.

    build: as in `lens_activations`. compatible: a bridge around a GPT-2 is in compatibility mode,
    without processing, so that masked scores are -inf, as HookedTransformer's were.

    Raises: PvmlError with the reasons, if that build cannot hold this model.
    """
    cfg = model.cfg
    weights = {name: x.detach().cpu() for name, x in model.state_dict().items()}
    not_bridged = not_in_gpt2(cfg, weights)
    if build == "native" or (build is None and not_bridged):
        return native_bridge(lens_fields(cfg), to_lens(weights, cfg), model.dtype)
    if not_bridged:
        raise PvmlError(
            f"TransformerLens's bridge cannot hold this model: {'; '.join(not_bridged)}"
        )
    theirs = gpt2_with(weights, cfg, model.dtype)
    with t.random.fork_rng(devices=[]):  # it draws weights and throws them away
        bridge = build_bridge_from_module(theirs, "GPT2LMHeadModel", hf_config=theirs.config)
    if compatible:
        bridge.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    return bridge


def native_bridge(fields: dict[str, Any], weights: dict[str, Tensor], dtype: t.dtype) -> Any:
    """What TransformerLens's own loaders make of a config's fields and a HookedTransformer's state.

    `boot_native` and `convert_tl_checkpoint`; in evaluation mode, on the CPU.
    """
    sizes = TransformerBridgeConfig.from_dict({**fields, "seed": 0, "device": "cpu"})
    bridge = TransformerBridge.boot_native(sizes, device="cpu", dtype=dtype)
    bridge.load_state_dict(convert_tl_checkpoint(weights, sizes))
    return bridge.eval()
