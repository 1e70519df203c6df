"""nanoGPT's checkpoint, `ckpt.pt`: model_args beside the model's state dict in one pickle."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch as t
import torch.nn.functional as F
from torch import Tensor

from pvml.config import Config
from pvml.device import pick_device, pick_dtype
from pvml.errors import PvmlError
from pvml.loading.report import Built, build, naming, sizes_note
from pvml.modules.transformer import Transformer
from pvml.reference.nano_gpt import config_from_nano_gpt, convert_nano_gpt
from pvml.reference.state_dicts import Converted, bare_names
from pvml.runs.weights import read_pickle, require_state_dict

FORM = "a nanoGPT checkpoint"
CHECKPOINT = "ckpt.pt"
"""What nanoGPT calls it."""
_ROWS = 64
"""nanoGPT rounds the vocabulary up to a multiple of it: 50,257 becomes 50,304."""
_TRIED = 32
"""Random tokens on which the two forms of GELU are compared."""


def is_nano_gpt(saved: object) -> bool:
    """Whether what a pickle held is a nanoGPT checkpoint."""
    return isinstance(saved, Mapping) and {"model_args", "model"} <= saved.keys()


def require_model_args(saved: object, path: Path) -> None:
    """Nothing, unless these are a nanoGPT's tensors, alone or as `model`, without model_args.

    Raises: PvmlError that says what model_args must hold.
    """
    state = saved.get("model", saved) if isinstance(saved, Mapping) else {}
    if is_nano_gpt(saved) or not _is_nano_gpt_state(state):
        return
    raise PvmlError(
        f"{path} holds a nanoGPT's tensors, and no model_args, which tell what tensors cannot: how "
        f"many heads there are. Give the ckpt.pt that nanoGPT's train.py saved, or make one: "
        f"torch.save({{'model': state_dict, 'model_args': {{'n_layer': ..., 'n_head': ..., "
        f"'n_embd': ..., 'block_size': ..., 'vocab_size': ..., 'bias': ...}}}}, 'ckpt.pt')"
    )


def _is_nano_gpt_state(state: object) -> bool:
    """Whether these are tensors in its names and its layout, the transpose of Hugging Face's."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        return False
    joint = state.get(bare_names(state).get("transformer.h.0.attn.c_attn.weight", ""))
    return isinstance(joint, Tensor) and joint.ndim == 2 and len(joint) == 3 * joint.shape[1]


def load_nano_gpt(
    path: str | os.PathLike[str],
    device: str | t.device | None = None,
    dtype: str | t.dtype | None = None,
    *,
    d_vocab: int | None = None,
) -> Transformer:
    """The model in a nanoGPT checkpoint, as float32 unless it is stored otherwise; no tokenizer.

    path: the file, or the folder that holds it as ckpt.pt. d_vocab: the vocabulary without the rows
    that nanoGPT pads it with, such as 50257 of 50,304. Unset: as it is stored.

    Raises: PvmlError naming the file if it is missing, damaged or malicious, or listing every
    tensor that is missing, unexpected or of another shape.
    """
    path = Path(path)
    if (path / CHECKPOINT).is_file():
        path = path / CHECKPOINT
    saved = read_pickle(path, mapped=True)
    require_model_args(saved, path)
    if not is_nano_gpt(saved):
        raise PvmlError(f"{path} is not a nanoGPT checkpoint: it lacks model_args and model")
    kind = None if dtype is None else pick_dtype(dtype)
    return build_nano_gpt(saved, path, pick_device(device), kind, d_vocab).model


def build_nano_gpt(
    saved: Any, path: Path, device: t.device, dtype: t.dtype | None, d_vocab: int | None = None
) -> Built:
    """`load_nano_gpt` of what the file held, with the report.

    d_vocab: of the tokenizer; rows that only pad its vocabulary are cut off.

    Raises: PvmlError as `load_nano_gpt`.
    """
    args = saved["model_args"]
    if not isinstance(args, dict):
        raise PvmlError(f"{path}: model_args is no dictionary")
    state = require_state_dict(saved["model"], f"{path}: its entry model")
    notes = []
    with naming(path):
        cfg = config_from_nano_gpt(args)
        # where it is not told, nanoGPT has biases
        converted = convert_nano_gpt(state, cfg, bias=bool(args.get("bias", True)))
        if d_vocab is not None and d_vocab < cfg.d_vocab == -(-d_vocab // _ROWS) * _ROWS:
            notes.append(_cut(converted, cfg, d_vocab))
            cfg = replace(cfg, d_vocab=d_vocab)
    model, report = build(FORM, path, cfg, converted, device, dtype)
    return Built(model, report.saying(sizes_note(model), *notes, *_gelu(model, saved)))


def stored_vocabulary(saved: Any) -> int | None:
    """How many rows the vocabulary of a checkpoint has; None if it does not say."""
    args = saved["model_args"]
    size = args.get("vocab_size") if isinstance(args, dict) else None
    return size if isinstance(size, int) else None


def _cut(converted: Converted, cfg: Config, d_vocab: int) -> str:
    """Leave out the rows past d_vocab; a sentence that tells so."""
    done = f"cut to {d_vocab:,} ids"
    weights = converted.weights
    converted.replacing("embed.W_E", weights["embed.W_E"][:d_vocab], done)
    converted.replacing("unembed.W_U", weights["unembed.W_U"][:, :d_vocab], done)
    converted.replacing("unembed.b_U", weights["unembed.b_U"][:d_vocab], done)
    return (
        f"its vocabulary was padded to {cfg.d_vocab:,} rows, and no text has the last "
        f"{cfg.d_vocab - d_vocab}: they are left out. The other logits are what they were; "
        f"probabilities are no longer shared with ids that nothing can write"
    )


def _gelu(model: Transformer, saved: Any) -> list[str]:
    """Sentences on the form of GELU, of which the checkpoint does not say which it was."""
    if model.cfg.n_layers == 0:
        return []
    gap, largest = _gelu_gap(model)
    note = (
        f"PvML computes GELU in GPT-2's tanh form, as older nanoGPTs do; newer ones use the error "
        f"function, and a checkpoint does not tell which. With that, logits differ by up to "
        f"{gap:.2g} on {_TRIED} random tokens (the largest is {largest:.2g})"
    )
    config = saved.get("config")
    began = str(config.get("init_from", "")) if isinstance(config, Mapping) else ""
    from_gpt2 = f"it began from {began}, which was trained with the tanh form"
    return [note, *([from_gpt2] if began.startswith("gpt2") else [])]


@t.no_grad()
def _gelu_gap(model: Transformer) -> tuple[float, float]:
    """The largest change of any logit when GELU is the exact one; and the largest logit."""
    draw = t.Generator().manual_seed(0)
    n = min(_TRIED, model.cfg.n_ctx)
    tokens = t.randint(model.cfg.d_vocab, (1, n), generator=draw).to(model.device)
    before: list[Tensor] = []

    def exact(x: Tensor, hook: Any) -> Tensor:
        return F.gelu(before.pop())

    hooks = [("*.mlp.pre", lambda x, hook: before.append(x)), ("*.mlp.post", exact)]
    ours, theirs = model(tokens), model.run_with_hooks(tokens, fwd_hooks=hooks)
    return float((ours - theirs).abs().max()), float(ours.abs().max())
