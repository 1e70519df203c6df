"""TransformerLens 4's native model, as `boot_native` makes it, under its own loss function."""

import transformer_lens.model_bridge.sources.native  # noqa: F401  # this is what adds boot_native
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from peers import nanogpt
from peers.contract import Peer
from pvml.modules.transformer import Transformer

_MODULES = {
    "tokens": "embed",
    "positions": "pos_embed",
    "norm": "ln_final",
    "head": "unembed",
    "norm1": "ln1",
    "norm2": "ln2",
    "attention.out": "attn.o",
    "wide": "mlp.in",
    "narrow": "mlp.out",
}
"""Theirs for what nanoGPT's shape calls so."""


def build(model: Transformer) -> Peer:
    """The weights by way of nanoGPT's shape; their q, k and v are layers of their own."""
    cfg = model.cfg
    theirs = TransformerBridge.boot_native(
        TransformerBridgeConfig(
            d_model=cfg.d_model,
            n_heads=cfg.n_heads,
            d_head=cfg.d_head,
            d_mlp=cfg.d_mlp,
            n_layers=cfg.n_layers,
            n_ctx=cfg.n_ctx,
            d_vocab=cfg.d_vocab,
            eps=cfg.layer_norm_eps,
            act_fn="gelu_new",
            normalization_type="LN",
        ),
        dtype=model.dtype,
    ).train()
    state = {"unembed.bias": model.unembed.b_U}
    for name, x in nanogpt.converted(model).items():
        module, _, kind = name.rpartition(".")
        block = ""
        if module.startswith("blocks."):
            _, i, module = module.split(".", 2)
            block = f"blocks.{i}."
        if module == "attention.qkv":
            for part, rows in zip("qkv", x.chunk(3), strict=True):
                state[f"{block}attn.{part}.{kind}"] = rows
        else:
            state[f"{block}{_MODULES[module]}.{kind}"] = x
    theirs.load_state_dict(state)
    return theirs, lambda tokens: theirs(tokens, return_type="loss")
