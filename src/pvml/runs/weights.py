"""A model's numbers in one file, and back into a model: every weight accounted for, by name.

Where the file lies is in `format.py`. Weights under other projects' names are not read here.
"""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch as t
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pvml.atomic import HashedFile
from pvml.config import Config
from pvml.errors import RunDirError
from pvml.modules.transformer import Transformer

_NOT_WEIGHTS = ("mask", "IGNORE")
"""Buffers that the seeds' attention kept in its state dict; PvML computes its mask."""
_TABLES = ("embed.W_E", "pos_embed.W_pos", "unembed.W_U", "unembed.b_U")


def save_weights(model: nn.Module, path: Path) -> None:
    """Write all of the model's tensors, by name, as safetensors.

    Raises: OSError if the disk refuses.
    """
    # the readable shape of W_Q, W_K, W_V is a view of a faster layout, and the format has no views
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path, metadata={"format": "pt"})
        path.chmod(mode)  # the library makes files that nobody else may read
    except SafetensorError as error:
        raise OSError(str(error)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name, on the CPU.

    Raises: RunDirError naming the file if it is missing, damaged or cut short.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunDirError(f"{path} is missing, damaged or cut short: {error}") from error


def save_pickle(value: object, file: HashedFile) -> None:
    """Write tensors (in their own layout) and plain values, so that `read_pickle` can read them.

    Raises: OSError if the disk refuses.
    """
    try:
        t.save(value, file)  # type: ignore[arg-type]  # it calls write and flush, no more
    except RuntimeError as error:  # on its way out torch's writer complains of its own position
        raise file.error or error from error


def read_pickle(path: Path) -> object:
    """What `torch.save` wrote, on the CPU: tensors and plain values only, never code.

    Raises: RunDirError naming the file if it is missing, damaged, or holds anything else.
    """
    try:
        return t.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise RunDirError(
            f"{path} is damaged, or holds more than tensors and plain values, and a pickle that "
            f"could run code is never loaded: save the model's state_dict() instead ({reason})"
        ) from error
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RunDirError(f"{path} is missing, damaged or cut short: {error}") from error


def read_seeds_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a `model.pt`, the seeds' older form.

    Raises: RunDirError naming the file if it holds anything else.
    """
    saved = read_pickle(path)
    if not isinstance(saved, dict) or not all(isinstance(x, Tensor) for x in saved.values()):
        raise RunDirError(f"{path} does not hold a state dict: expected tensors by name")
    return saved


def fill(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into the model; its layout, device and dtype stay.

    where: what the weights came from, for the message.

    Raises: RunDirError listing every missing and unexpected name, and every wrong shape.
    """
    wanted = model.state_dict()
    given = {k: x for k, x in weights.items() if k.rpartition(".")[2] not in _NOT_WEIGHTS}
    missing, unexpected = sorted(wanted.keys() - given), sorted(given.keys() - wanted.keys())
    wrong = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & given)
        if given[name].shape != wanted[name].shape
    ]
    found = {"missing": missing, "unexpected": unexpected, "wrong shape": wrong}
    if any(found.values()):
        told = "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items() if names)
        raise RunDirError(f"{where} does not hold this model's weights. {told}")
    model.load_state_dict(given)


def build_model(
    cfg: Config,
    weights: Mapping[str, Tensor],
    where: str,
    device: t.device,
    dtype: t.dtype = t.float32,
) -> Transformer:
    """A model of this shape that holds these weights, and drew no random number.

    Raises: RunDirError as `fill` does.
    """
    model = empty_model(cfg).to(dtype).to_empty(device=device)
    fill(model, weights, where)
    return model.eval()


def empty_model(cfg: Config) -> Transformer:
    """A model's shapes without numbers: nothing is allocated or drawn."""
    with t.device("meta"):
        return Transformer(cfg)


def parameter_totals(model: Transformer) -> dict[str, int]:
    """How many parameters, `total` and `non_embedding`: without the vocabulary and position tables.

    A tied table counts once; b_U, frozen at zero, belongs to the tables.
    """
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    total = sum(sizes.values())
    return {"total": total, "non_embedding": total - sum(sizes.get(name, 0) for name in _TABLES)}
