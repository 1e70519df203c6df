"""TransformerLens-style state dicts: PvML's own names, in a file alone or beside a config.json."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.loading.files import CONFIG
from pvml.loading.report import Built, build, naming
from pvml.reference.lens_names import (
    Described,
    config_from_lens,
    config_from_shapes,
    is_lens_config,
)
from pvml.reference.state_dicts import Converted, Origin, bare_names, same_names
from pvml.runs.json_object import read_json

FORM = "a state dict in TransformerLens's names"
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
"""Endings of files that may hold one."""
_BRIDGE = r"(embed|unembed|blocks\.\d+\.attn\.[qkvo])\.weight"
_FOLDED = "LayerNorm's {} is folded into the weights (LNPre)"


def is_lens_state(state: Mapping[str, Tensor]) -> bool:
    """Whether these are a model's tensors in PvML's names, some perhaps missing."""
    names = bare_names(state)
    return any(name.startswith(("embed.", "blocks.", "unembed.")) for name in names)


def require_hooked(state: Mapping[str, Tensor], path: Path) -> None:
    """Nothing, unless these are the tensors of TransformerLens 4's bridge by its own names.

    Raises: PvmlError that says how such a model is taken over.
    """
    if any(re.fullmatch(_BRIDGE, name) for name in bare_names(state)):
        raise PvmlError(
            f"{path} has the names that a TransformerBridge gives its tensors (embed.weight, "
            f"blocks.0.attn.q.weight, ...), which are not read: a state dict must have "
            f"HookedTransformer's (embed.W_E, blocks.0.attn.W_Q, ...). Give the Hugging Face "
            f"model that the bridge was made from, its folder or its name on the hub; what was "
            f"changed in the bridge since is not in it"
        )


def weights_in(folder: Path) -> Path:
    """The one file of weights in a folder.

    Raises: PvmlError if there is none, or more than one.
    """
    found = sorted(file for file in folder.iterdir() if file.suffix in WEIGHTS and file.is_file())
    if len(found) != 1:
        there = ", ".join(file.name for file in found) or "none"
        raise PvmlError(
            f"{folder} must hold one file of weights beside its {CONFIG}, ending in "
            f"{', '.join(WEIGHTS)}; there: {there}. Give the file itself"
        )
    return found[0]


def build_lens(
    state: Mapping[str, Tensor],
    path: Path,
    device: t.device,
    dtype: t.dtype | None,
    cfg: Config | None = None,
) -> Built:
    """The model in a state dict. path: its file; cfg or a config.json beside it tells the shape.

    Raises: PvmlError naming the file, or listing what PvML's model cannot express, or every tensor
    that is missing, unexpected or of another shape.
    """
    with naming(path):
        converted = same_names(state)
    no_norms = not any(_is_norm(name) for name in converted.weights)
    given = None if cfg is None else _as_given(cfg, no_norms, path)
    cfg, folded, notes = given or _described(converted.weights, path)
    if folded and no_norms:
        _add_norms(converted, cfg)
    model, report = build(FORM, path, cfg, converted, device, dtype)
    if bool(model.unembed.b_U.any()):
        notes = [*notes, "its b_U is not zero: PvML adds it to the logits, and never trains it"]
    return Built(model, report.saying(*notes))


def _as_given(cfg: Config, no_norms: bool, path: Path) -> Described:
    """The shape that was given.

    Raises: PvmlError if it has LayerNorms and the file has none.
    """
    if not no_norms:
        return Described(cfg, False, [])
    folded = f"a {CONFIG} beside it with normalization_type LNPre tells, and no cfg"
    if cfg.normalization == "LN":
        raise PvmlError(
            f"{path} holds no LayerNorm, and cfg has them. If they are folded into its weights, "
            f"{folded}; if it has none, give normalization='none'"
        )
    return Described(
        cfg, False, [f"it has no LayerNorm, as cfg says: if they were folded into it, {folded}"]
    )


def _described(weights: Mapping[str, Tensor], path: Path) -> Described:
    """The shape, from the config.json beside the file or, without one, from the tensors."""
    beside = path.parent / CONFIG
    if not beside.is_file():
        with naming(path):
            return config_from_shapes(weights)
    theirs = read_json(beside)
    with naming(beside):
        if isinstance(theirs.get("model"), dict):  # a run directory's
            return Described(Config.from_dict(theirs["model"]), False, [])
        if not is_lens_config(theirs):
            raise PvmlError(
                f"it says no d_model and n_layers, so it is not about {path.name}. Put the weights "
                f"into a folder of their own"
            )
        return config_from_lens(theirs)


def _is_norm(name: str) -> bool:
    module = name.split(".")[-2:-1]
    return module in (["ln1"], ["ln2"], ["ln_final"])


def _add_norms(converted: Converted, cfg: Config) -> None:
    """LayerNorms that only standardise, as ours with w of ones and b of zeros: the same numbers."""
    like = converted.weights.get("embed.W_E", t.empty(0))
    inside = ("ln1",) if cfg.attn_only else ("ln1", "ln2")
    norms = [f"blocks.{i}.{norm}" for i in range(cfg.n_layers) for norm in inside]
    for norm in (*norms, "ln_final"):
        for name, x in (("w", like.new_ones(cfg.d_model)), ("b", like.new_zeros(cfg.d_model))):
            converted.weights[f"{norm}.{name}"] = x
            kind = "ones" if name == "w" else "zeros"
            told = f"{kind}: {_FOLDED.format(name)}"
            converted.origins.append(Origin(f"{norm}.{name}", "", told))
