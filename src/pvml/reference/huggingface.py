"""Hugging Face's GPT-2 as a reference: a tiny random one, and the tensors that hooks reach in it.

The only file that imports its models; needs the extra `hub`. Converting parameters is in
`names.py`, loading published weights in `pvml.loading`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as t
from jaxtyping import Int
from torch import Tensor

try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as problem:
    raise ImportError(
        "Hugging Face's GPT-2 needs the package transformers: pip install 'pvml[hub]'"
    ) from problem

BEFORE_BLOCKS = (
    ("transformer.wte", "input", "embed.in pos_embed.in"),
    ("transformer.wte", "output", "embed.out"),
    ("transformer.wpe", "output", "pos_embed.out"),
)
IN_BLOCK = (
    ("", "input", "resid_pre"),
    ("ln_1", "input", "ln1.residual"),
    ("ln_1", "output", "ln1.out"),
    ("attn.c_attn", "input", "attn.normalized_resid_pre"),
    ("attn.c_attn", "output", "attn.q attn.k attn.v"),
    ("attn", "weights", "attn.attn_pattern"),
    ("attn.c_proj", "input", "attn.z"),
    ("attn.c_proj", "output", "attn.attn_out"),
    ("ln_2", "input", "resid_mid ln2.residual"),
    ("ln_2", "output", "ln2.out"),
    ("mlp.c_fc", "input", "mlp.normalized_resid_mid"),
    ("mlp.c_fc", "output", "mlp.pre"),
    ("mlp.act", "output", "mlp.post"),
    ("mlp.c_proj", "output", "mlp.mlp_out"),
    ("", "output", "resid_post"),
)
AFTER_BLOCKS = (
    ("transformer.ln_f", "input", "ln_final.residual"),
    ("transformer.ln_f", "output", "ln_final.out"),
    ("lm_head", "input", "unembed.normalized_resid_final"),
    ("lm_head", "output", "unembed.logits"),
)
"""Where each tensor is found there: module, side of it, and PvML's names for what is there."""


def tiny_gpt2(
    seed: int = 0,
    *,
    d_model: int = 21,
    n_heads: int = 3,
    n_layers: int = 2,
    n_ctx: int = 17,
    d_vocab: int = 53,
    d_mlp: int = 37,
    dtype: t.dtype = t.float64,
) -> GPT2LMHeadModel:
    """A random GPT2LMHeadModel in evaluation mode, every parameter drawn anew around its default.

    Biases and LayerNorms are off zero and one, and weights large enough that attention prefers
    some keys and gelu bends. Reproducible; torch's own generator is left alone.

    Raises: ValueError, from Hugging Face, where n_heads does not divide d_model.
    """
    sizes = GPT2Config(
        n_embd=d_model,
        n_head=n_heads,
        n_layer=n_layers,
        n_positions=n_ctx,
        vocab_size=d_vocab,
        n_inner=d_mlp,
        # the defaults are GPT-2's own ids: outside a small vocabulary, which is warned about
        bos_token_id=d_vocab - 1,
        eos_token_id=d_vocab - 1,
        # the other kernels never write the attention grid out
        attn_implementation="eager",
    )
    with t.random.fork_rng(devices=[]):
        t.manual_seed(seed)
        model = GPT2LMHeadModel(sizes).to(dtype).eval()
    draw = t.Generator().manual_seed(seed)
    with t.no_grad():
        for name, x in model.named_parameters():
            matrix = x.ndim == 2 and "wte" not in name and "wpe" not in name
            spread = x.shape[0] ** -0.5 if matrix else 0.3
            x.add_(t.empty(x.shape, dtype=dtype).normal_(std=spread, generator=draw))
    return model


def activations(
    model: GPT2LMHeadModel, tokens: Int[Tensor, "batch posn"], **options: Any
) -> dict[str, Tensor]:
    """Every tensor that forward hooks reach, by PvML's full name, in the order of the pass.

    Not reached, because they arise inside a function: LayerNorm's statistics, the scores. options:
    what else the model takes, such as `attention_mask`.
    """
    places = list(BEFORE_BLOCKS)
    for i in range(model.config.n_layer):
        for module, side, names in IN_BLOCK:
            inside = f"transformer.h.{i}.{module}".rstrip(".")
            ours = " ".join(f"blocks.{i}.{name}" for name in names.split())
            places.append((inside, side, ours))
    places += AFTER_BLOCKS
    with t.no_grad(), _recording(model, {module for module, _, _ in places}) as seen:
        model(tokens, use_cache=False, **options)
    found = {}
    for module, side, names in places:
        for name, x in _named(names.split(), seen[module, side], model.config.n_head):
            found[name] = x
    # one row of positions serves every sequence there; here each sequence has its own
    found["pos_embed.out"] = found["pos_embed.out"].expand_as(found["embed.out"])
    return found


def _named(names: list[str], x: Tensor, n_heads: int) -> Iterator[tuple[str, Tensor]]:
    """Each name's own tensor: q, k and v lie side by side there, and heads in one row."""
    parts = x.chunk(3, dim=-1) if names[0].endswith(".q") else [x] * len(names)
    for name, part in zip(names, parts, strict=True):
        if name.rpartition(".")[2] in ("q", "k", "v", "z"):
            part = part.reshape(*part.shape[:2], n_heads, -1)
        yield name, part


@contextmanager
def _recording(
    model: GPT2LMHeadModel, modules: set[str]
) -> Iterator[dict[tuple[str, str], Tensor]]:
    """Within it, a pass fills the mapping: what went into each module, and what came out."""
    seen: dict[tuple[str, str], Tensor] = {}

    def recorder(path: str) -> Any:
        def record(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            given = args[0] if args else next(iter(kwargs.values()))
            seen[path, "input"] = given.detach().clone()
            # attention gives a pair, its result and the grid; so do blocks in older versions
            first, *others = result if isinstance(result, tuple) else (result,)
            seen[path, "output"] = first.detach().clone()
            if others and isinstance(others[0], Tensor):
                seen[path, "weights"] = others[0].detach().clone()

        return record

    handles = [
        model.get_submodule(path).register_forward_hook(recorder(path), with_kwargs=True)
        for path in modules
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
