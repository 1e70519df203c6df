"""Hugging Face's GPT-2 as a reference: models of it, and the tensors that hooks reach in them.

Needs the extra `hub`. Converting parameters is in `names.py` and `names_out.py`, loading published
weights in `pvml.loading`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch as t
from jaxtyping import Float, Int
from torch import Tensor, nn

from pvml.config import Config
from pvml.reference.names import from_hugging_face
from pvml.reference.names_out import hugging_face_fields, to_hugging_face

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
    ("ln_2", "before", "resid_mid"),
    ("ln_2", "input", "ln2.residual"),
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
"""Where each tensor is found there: module, side of it, and PvML's names for what is there.

`before` is what a module was given, `input` its own view of it: they are the same numbers, but the
gradient of the first comes from everybody who reads it, that of the second from this module alone.
"""

EAGER = {"attn_implementation": "eager"}
"""The other kernels never write the attention grid out."""


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
        **_special_ids(d_vocab),
        **EAGER,
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


def _special_ids(d_vocab: int) -> dict[str, int]:
    # the defaults are GPT-2's own ids: outside a small vocabulary, which is warned about
    return {"bos_token_id": d_vocab - 1, "eos_token_id": d_vocab - 1}


def gpt2_with(
    weights: Mapping[str, Tensor], cfg: Config, dtype: t.dtype = t.float64
) -> GPT2LMHeadModel:
    """A GPT2LMHeadModel with these weights of PvML's, in evaluation mode, on the CPU.

    Raises: PvmlError with every reason why a GPT-2 cannot hold them.
    """
    state = to_hugging_face({name: x.detach().cpu() for name, x in weights.items()}, cfg)
    # a tied table has two names there
    state.setdefault("lm_head.weight", state["transformer.wte.weight"])
    sizes = GPT2Config(
        **hugging_face_fields(cfg, tied=cfg.tie_embeddings), **_special_ids(cfg.d_vocab), **EAGER
    )
    with t.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(sizes).to(dtype).eval()
    model.load_state_dict(state)
    return model


def published(
    source: str | os.PathLike[str], dtype: t.dtype, *, tied: bool = False
) -> GPT2LMHeadModel:
    """The GPT2LMHeadModel in a folder or on the hub, as Hugging Face itself reads it, on the CPU.

    tied: whether its two vocabulary tables are to stay one, where they are. Untied they hold the
    same numbers, and each gets its own gradient.

    Raises: what Hugging Face raises for a folder that it cannot read.
    """
    with quiet():
        model = GPT2LMHeadModel.from_pretrained(source, dtype=dtype, **EAGER).eval()
    if not tied and model.lm_head.weight is model.transformer.wte.weight:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, transformers shows no progress bar and gives no advice."""
    from transformers.utils import logging as theirs

    said: Any = theirs.get_verbosity()
    shown = theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(said)
        if shown:
            theirs.enable_progress_bar()


def weights_of(model: GPT2LMHeadModel, cfg: Config) -> dict[str, Tensor]:
    """Its parameters by PvML's names; views of them, but for the b_U that it has none of.

    Raises: PvmlError if they are not those of a model with this Config.
    """
    return from_hugging_face(model.state_dict(), cfg, tied=cfg.tie_embeddings)


def activations(
    model: GPT2LMHeadModel, tokens: Int[Tensor, "batch posn"], **options: Any
) -> dict[str, Tensor]:
    """Every tensor that forward hooks reach, by PvML's full name, in the order of the pass.

    Not reached, because they arise inside a function: LayerNorm's statistics, the scores. options:
    what else the model takes, such as `attention_mask`.
    """
    places = _places(model)
    with t.no_grad(), _recording(model, {module for module, _, _ in places}) as seen:
        model(tokens, use_cache=False, **options)
    found = _by_our_names(places, seen, model.config.n_head)
    # one row of positions serves every sequence there; here each sequence has its own
    found["pos_embed.out"] = found["pos_embed.out"].expand_as(found["embed.out"])
    return found


def gradients(
    model: GPT2LMHeadModel,
    cfg: Config,
    tokens: Int[Tensor, "batch posn"],
    loss: Callable[[Float[Tensor, "batch posn d_vocab"], Int[Tensor, "batch posn"]], Tensor],
) -> dict[str, Tensor]:
    """The gradient of `loss(logits, tokens)` by every parameter and by what forward hooks reach.

    By PvML's full names. Gradients of parameters come first; b_U, which a GPT-2 has none of, has
    none here either.
    """
    places = _places(model)
    with t.enable_grad(), _recording(model, {module for module, _, _ in places}) as seen:
        result = loss(model(tokens, use_cache=False).logits, tokens)
    parameters = dict(model.named_parameters())
    passed = {place: x for place, x in seen.items() if x.requires_grad}
    found = t.autograd.grad(result, [*parameters.values(), *passed.values()])
    of_parameters = dict(zip(parameters, found[: len(parameters)], strict=True))
    of_tensors = dict(zip(passed, found[len(parameters) :], strict=True))
    ours = from_hugging_face(of_parameters, cfg, tied=cfg.tie_embeddings)
    del ours["unembed.b_U"]
    by_name = _by_our_names(places, of_tensors, model.config.n_head)
    # a position's one row there is summed over the batch; here each sequence adds its own
    by_name["pos_embed.out"] = by_name["embed.out"]
    return {**ours, **by_name}


def _places(model: GPT2LMHeadModel) -> list[tuple[str, str, str]]:
    places = list(BEFORE_BLOCKS)
    for i in range(model.config.n_layer):
        for module, side, names in IN_BLOCK:
            inside = f"transformer.h.{i}.{module}".rstrip(".")
            ours = " ".join(f"blocks.{i}.{name}" for name in names.split())
            places.append((inside, side, ours))
    return [*places, *AFTER_BLOCKS]


def _by_our_names(
    places: list[tuple[str, str, str]], seen: Mapping[tuple[str, str], Tensor], n_heads: int
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for module, side, names in places:
        if (module, side) in seen:
            found.update(_named(names.split(), seen[module, side], n_heads))
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
    """Within it, a pass fills the mapping: what went into each module, and what came out.

    The tensors themselves, with their gradients' history; nothing there works in place.
    """
    seen: dict[tuple[str, str], Tensor] = {}

    def entering(path: str) -> Any:
        def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            named = next(iter(kwargs)) if not args else None
            given = kwargs[named] if named else args[0]
            view = given.view_as(given)
            seen[path, "before"], seen[path, "input"] = given, view
            return ((), {**kwargs, named: view}) if named else ((view, *args[1:]), kwargs)

        return enter

    def leaving(path: str) -> Any:
        def leave(module: Any, args: tuple[Any, ...], result: Any) -> None:
            # attention gives a pair, its result and the grid; so do blocks in older versions
            first, *others = result if isinstance(result, tuple) else (result,)
            seen[path, "output"] = first
            if others and isinstance(others[0], Tensor):
                seen[path, "weights"] = others[0]

        return leave

    handles = []
    try:
        for path in modules:
            module = model.get_submodule(path)
            handles += [
                module.register_forward_pre_hook(entering(path), with_kwargs=True),
                module.register_forward_hook(leaving(path)),
            ]
        yield seen
    finally:
        for handle in handles:
            handle.remove()
