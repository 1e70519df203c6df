"""A model's numbers in one file, and back into a model: every weight accounted for, by name.

Where the file lies is in `format.py`. Weights under other projects' names are not read here.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch as t
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pvml.atomic import HashedFile
from pvml.config import Config
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.reference.state_dicts import faults, require_layers, same_names

_TABLES = ("embed.W_E", "pos_embed.W_pos", "unembed.W_U", "unembed.b_U")

_ARCHIVE = b"PK\x03\x04"
"""What a file by `torch.save` begins with; its list of contents is at the end."""
_PROCESSING = "processing"
"""Under which a file of weights says how they were rewritten."""


def save_weights(model: nn.Module, path: Path) -> None:
    """Write all of the model's tensors, by name, as safetensors; and how they were processed.

    Raises: OSError if the disk refuses.
    """
    # the readable shape of W_Q, W_K, W_V is a view of a faster layout, and the format has no views
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    processing = " ".join(getattr(model, "processing", ()))
    save_tensors(tensors, path, {_PROCESSING: processing} if processing else {})


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name as safetensors. metadata: what else the file is to say.

    Raises: OSError if the disk refuses.
    """
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(dict(tensors), path, metadata={"format": "pt", **(metadata or {})})
        path.chmod(mode)  # the library makes files that nobody else may read
    except SafetensorError as error:
        raise OSError(str(error)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name, on the CPU, mapped until they are used.

    Raises: RunDirError naming the file if it is missing, damaged or cut short.
    """
    _require_file(path)
    try:
        return load_file(path)
    except Exception as error:  # a header that lies may trip the library anywhere
        raise RunDirError(f"{path} is missing, damaged or cut short: {error}") from error


def read_processing(path: Path) -> tuple[str, ...]:
    """How the weights in a file were processed, as `save_weights` noted it; empty if they were not.

    Raises: RunDirError naming the file if it is missing, damaged or cut short.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return tuple((file.metadata() or {}).get(_PROCESSING, "").split())
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


def read_pickle(path: Path, *, mapped: bool = False) -> object:
    """What `torch.save` wrote, on the CPU: tensors and plain values only, never code.

    mapped: leave tensors in the file until they are used, where its format allows that.

    Raises: RunDirError naming the file if it is missing, damaged, or holds anything else.
    """
    _require_file(path)
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:
            _require_as_torch_writes(path)
        else:
            _require_an_end(path)
        with warnings.catch_warnings(action="ignore"):  # of kinds that are refused
            return t.load(path, map_location="cpu", weights_only=True, mmap=mapped and zipped)
    except pickle.UnpicklingError as error:
        raise RunDirError(
            f"{path} is damaged, or holds more than tensors and plain values, and a pickle that "
            f"could run code is never loaded: save the model's state_dict() instead"
            f"{_refused(error)}"
        ) from error
    except Exception as error:  # bytes that are no pickle may trip its reader anywhere
        reason = str(error).partition("\n")[0].partition(". ")[0]  # then comes torch's advice
        raise RunDirError(f"{path} is missing, damaged or cut short: {reason}") from error


def _refused(error: pickle.UnpicklingError) -> str:
    """What a pickle asked to call, without torch's advice on how to call it nevertheless."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f" (it asks for {found[1]})" if found else ""


def _require_file(path: Path) -> None:
    """Nothing, if a plain file is there: a pipe or a device would be read without end."""
    if not path.is_file():
        raise RunDirError(f"{path} is missing, damaged or cut short: it is no file")


def _require_an_end(path: Path) -> None:
    """Nothing, if a file that is no archive may be one of torch's older ones.

    Raises: ValueError if it is empty, or the beginning of an archive.
    """
    with path.open("rb") as file:
        begins = file.read(len(_ARCHIVE))
    if not begins:
        raise ValueError("it is empty")
    if begins == _ARCHIVE:
        raise ValueError(f"it has {path.stat().st_size:,} bytes, and torch's archive goes on")


def _require_as_torch_writes(path: Path) -> None:
    """Nothing, if the archive holds no more bytes than the file: a compressed one may grow.

    Raises: ValueError otherwise.
    """
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > path.stat().st_size:
                raise ValueError(
                    f"its entry {entry.filename} is compressed, or longer than the file, as torch "
                    f"writes none"
                )


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that holds nothing else, by name, on the CPU; mapped where possible.

    A safetensors file or, by any other ending, what `torch.save` wrote of a state dict.

    Raises: RunDirError naming the file if it is missing, damaged or malicious, or holds more.
    """
    if path.suffix == ".safetensors":
        return read_weights(path)
    return require_state_dict(read_pickle(path, mapped=True), str(path))


def require_state_dict(saved: object, where: str) -> dict[str, Tensor]:
    """What was read, if it is tensors by name.

    Raises: RunDirError that begins with `where`.
    """
    if isinstance(saved, Mapping) and _is_state_dict(saved):
        return dict(saved)
    entries = saved if isinstance(saved, Mapping) else {}
    inside = [name for name, x in entries.items() if isinstance(x, Mapping) and _is_state_dict(x)]
    hint = ""
    if inside:
        hint = (
            f". Its entry {inside[0]!r} is one: load the file with torch.load(..., "
            f"weights_only=True), save that entry alone with torch.save, and give the new file"
        )
    raise RunDirError(f"{where} does not hold a state dict: expected tensors by name{hint}")


def _is_state_dict(saved: Mapping[object, object]) -> bool:
    return all(isinstance(name, str) and _is_array(x) for name, x in saved.items())


def _is_array(x: object) -> bool:
    return isinstance(x, Tensor) and not x.is_nested  # which has no shape


def _weights_for(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The weights by the model's own names, if they are all of its weights and nothing else."""
    try:
        given = same_names(weights).weights
    except PvmlError as error:
        raise RunDirError(f"{where}: {error}") from error
    fault = faults(given, {name: tuple(x.shape) for name, x in model.state_dict().items()})
    if fault:
        raise RunDirError(f"{where} does not hold this model's weights. {fault}")
    return given


def build_model(
    cfg: Config,
    weights: Mapping[str, Tensor],
    where: str,
    device: t.device,
    dtype: t.dtype = t.float32,
) -> Transformer:
    """A model of this shape that holds these weights, and drew no random number.

    Wrappers' prefixes are understood.

    Raises: RunDirError listing every missing and unexpected name, and every wrong shape; nothing is
    allocated then.
    """
    try:
        require_layers(weights, cfg.n_layers)
        model = empty_model(cfg)
    except (PvmlError, RuntimeError) as error:  # the latter for a tensor that nothing can hold
        raise RunDirError(f"{where} does not hold this model's weights: {error}") from error
    given = _weights_for(model, weights, where)
    placed = {
        # the model's own layout, which is not the file's
        name: t.empty_strided(x.shape, x.stride(), dtype=dtype, device=device).copy_(given[name])
        for name, x in model.state_dict().items()
    }
    model.load_state_dict(placed, assign=True)
    return model.eval()


def empty_model(cfg: Config) -> Transformer:
    """A model's shapes without numbers: nothing is allocated or drawn."""
    with t.device("meta"), _Undrawn():
        return Transformer(cfg)


class _Undrawn(TorchFunctionMode):
    """Within it, no tensor is drawn: without numbers to draw, torch loads its compiler for that."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return args[0] if func is Tensor.normal_ else func(*args, **(kwargs or {}))


def parameter_totals(model: Transformer) -> dict[str, int]:
    """How many parameters, `total` and `non_embedding`: without the vocabulary and position tables.

    A tied table counts once; b_U, frozen at zero, belongs to the tables.
    """
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    total = sum(sizes.values())
    return {"total": total, "non_embedding": total - sum(sizes.get(name, 0) for name in _TABLES)}
