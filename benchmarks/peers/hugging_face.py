"""Hugging Face's GPT2LMHeadModel: the fused attention kernel, untied, no dropout, labels=tokens."""

from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from peers import nanogpt
from peers.contract import Peer
from pvml.modules.transformer import Transformer

_MODULES = {
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "wide": "mlp.c_fc",
    "narrow": "mlp.c_proj",
}
"""Theirs for what nanoGPT's shape calls so. Theirs but the norms are stored (in, out)."""
_OUTSIDE = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}


def build(model: Transformer) -> Peer:
    """The weights by way of nanoGPT's shape, which is theirs but for names and two transposes."""
    cfg = model.cfg
    sizes = GPT2Config(
        vocab_size=cfg.d_vocab,
        n_positions=cfg.n_ctx,
        n_embd=cfg.d_model,
        n_layer=cfg.n_layers,
        n_head=cfg.n_heads,
        n_inner=cfg.d_mlp,
        layer_norm_epsilon=cfg.layer_norm_eps,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        tie_word_embeddings=False,
        # the defaults are GPT-2's own ids: outside a small vocabulary, which is warned about
        bos_token_id=cfg.d_vocab - 1,
        eos_token_id=cfg.d_vocab - 1,
        attn_implementation="sdpa",
    )
    theirs = GPT2LMHeadModel(sizes).to(model.dtype).train()
    theirs.load_state_dict({_name(name): _stored(name, x) for name, x in _shaped(model)})
    return theirs, lambda tokens: theirs(tokens, labels=tokens).loss


def _shaped(model: Transformer) -> list[tuple[str, Tensor]]:
    return list(nanogpt.converted(model).items())


def _name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{kind}"
    _, i, inside = module.split(".", 2)
    return f"transformer.h.{i}.{_MODULES[inside]}.{kind}"


def _stored(name: str, x: Tensor) -> Tensor:
    return x.T if name.startswith("blocks.") and x.ndim == 2 else x
