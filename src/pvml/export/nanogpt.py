"""nanoGPT's form: a ckpt.pt in its layout.

nanoGPT is no package that could be imported, so the file is read back here, by its own formulae,
once with the GELU that its code has and once with GPT-2's.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pvml.atomic import HashedFile
from pvml.config import Config
from pvml.errors import RunDirError
from pvml.export.form import Form, Reading, Source
from pvml.reference.names_out import not_in_gpt2, not_in_nanogpt, to_nanogpt
from pvml.runs.weights import read_pickle, save_pickle

_CHECKPOINT = "ckpt.pt"

Gelu = Callable[[Tensor], Tensor]


def reasons(cfg: Config, weights: Mapping[str, Tensor]) -> list[str]:
    """Why nanoGPT's model cannot be this one; empty if it can."""
    return [*not_in_gpt2(cfg, weights), *not_in_nanogpt(cfg, weights)]


def require_library() -> str:
    """What reads it, as nanoGPT is no library."""
    return "PvML by nanoGPT's formulae"


def write(source: Source, folder: Path) -> None:
    """Write ckpt.pt, with `model`, `model_args` and what sample.py looks at, and tokenizer.json.

    It holds no optimizer: nanoGPT's train.py cannot resume from it.
    """
    cfg = source.cfg
    model_args = {
        "n_layer": cfg.n_layers,
        "n_head": cfg.n_heads,
        "n_embd": cfg.d_model,
        "block_size": cfg.n_ctx,
        "bias": True,
        "vocab_size": source.rows,
        "dropout": 0.0,
    }
    checkpoint = {
        "model": to_nanogpt(source.weights, cfg, rows=source.rows),
        "model_args": model_args,
        "iter_num": 0,
        "best_val_loss": float("inf"),
        "config": {},
    }
    with HashedFile(folder / _CHECKPOINT) as file:
        save_pickle(checkpoint, file)
    (folder / "tokenizer.json").write_text(source.tokenizer.to_json(), "utf-8")


def read(folder: Path, dtype: t.dtype) -> list[Reading]:
    """The checkpoint by nanoGPT's formulae, with GPT-2's GELU and with the one in its code."""
    checkpoint: Any = read_pickle(folder / _CHECKPOINT)
    if not isinstance(checkpoint, dict) or not {"model", "model_args"} <= checkpoint.keys():
        raise RunDirError(f"{folder / _CHECKPOINT} is no checkpoint of nanoGPT")
    state = {name: x.to(dtype) for name, x in checkpoint["model"].items()}
    compute = partial(_logits, state, checkpoint["model_args"])
    tanh = partial(F.gelu, approximate="tanh")
    return [
        Reading(how="gelu_new, as GPT-2", logits=partial(compute, tanh)),
        Reading(how="GELU by erf, as in its code", logits=partial(compute, F.gelu), judged=False),
    ]


def _logits(
    state: Mapping[str, Tensor],
    args: Mapping[str, Any],
    gelu: Gelu,
    tokens: Int[Tensor, "batch posn"],
) -> Float[Tensor, "batch posn rows"]:
    """Source: nanoGPT's model.py, class GPT."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)

    def by_head(x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], args["n_head"], -1).transpose(1, 2)

    table = state["transformer.wte.weight"]
    x = table[tokens] + state["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(args["n_layer"]):
        block = f"transformer.h.{i}"
        joint = linear(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn")
        q, k, v = (by_head(part) for part in joint.chunk(3, dim=-1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(z.transpose(1, 2).flatten(2), f"{block}.attn.c_proj")
        hidden = gelu(linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc"))
        x = x + linear(hidden, f"{block}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ state["lm_head.weight"].T


FORM = Form(
    title="nanoGPT",
    tag="nanogpt",
    reasons=reasons,
    require_library=require_library,
    write=write,
    read=read,
    encode=None,
    opening="""\
# in a checkout of nanoGPT; its sample.py does the same with --init_from=resume --out_dir=FOLDER
import torch
from model import GPT, GPTConfig

checkpoint = torch.load("FOLDER/ckpt.pt", weights_only=True)
model = GPT(GPTConfig(**checkpoint["model_args"]))
model.load_state_dict(checkpoint["model"])
model.eval()
""",
    notes=(
        "nanoGPT's code has the GELU by erf where GPT-2, and PvML, have its approximation by tanh: "
        "there the logits differ as the certificate tells, until the model is trained on.",
        "The checkpoint has no optimizer, so nanoGPT's train.py cannot resume from it.",
        "nanoGPT's sample.py knows GPT-2's vocabulary only; for another one, tokenizer.json holds "
        "the ids.",
    ),
)
