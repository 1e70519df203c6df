"""What the word MODEL means, everywhere: from a folder or a name to a model and its tokenizer.

What the files of a run are called is in `pvml.runs.format`; which tensor of Hugging Face's becomes
which of ours, in `pvml.reference.names`.
"""

import difflib
import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch as t
from torch import Tensor

from pvml.bundled import bundled_folder, bundled_models
from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_device, pick_dtype
from pvml.errors import HubUnavailable, PvmlError
from pvml.hub import endpoint, require_hub
from pvml.modules.transformer import Transformer
from pvml.reference.names import config_from_hugging_face, from_hugging_face
from pvml.runs.format import RunDir
from pvml.runs.json_object import read_json
from pvml.runs.layout import run_of_checkpoint
from pvml.runs.naming import RUNS, named_run
from pvml.runs.weights import build_model, read_pickle, read_weights

HUB_MODELS = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
"""Names that stand for a model on the Hugging Face hub, and where it is there."""

_CONFIG = "config.json"
_TOKENIZER = "tokenizer.json"
_SAFETENSORS = "model.safetensors"
_PICKLE = "pytorch_model.bin"
_INDEX = ".index.json"


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode and its tokenizer; unpacks as `model, tokenizer`."""

    model: Transformer
    tokenizer: Tokenizer
    name: str
    """What to call it: the run's, the folder's or the hub's name."""
    source: str
    """Where it came from, as a phrase."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))


def load(
    MODEL: str | os.PathLike[str],
    device: str | t.device | None = None,
    dtype: str | t.dtype | None = None,
    *,
    step: int | None = None,
) -> Loaded:
    """The model that MODEL means, ready to use, with its tokenizer.

    MODEL: a run directory or one of its checkpoints (runs/NAME/checkpoints/step-N), a folder with a
    Hugging Face GPT-2, the NAME of a run in the folder runs, the name of a GPT-2 on the hub, or
    that of a bundled model; a folder goes before a name, and a run before other names. device: an
    accelerator where there is one, unless given. dtype: as Hugging Face's files have it, and
    float32 for a run or a bundled model, unless given. step: of a run, the checkpoint to take; the
    last one, unless given. torch's random state is not moved.

    Raises: PvmlError if MODEL is none of these, is damaged, or cannot be expressed, or has no
    checkpoint of that step; HubUnavailable within 5 s if the hub is needed and does not answer.
    """
    on = pick_device(device)
    kind = None if dtype is None else pick_dtype(dtype)
    name, path = os.fspath(MODEL), named_run(MODEL)
    if name and path.is_dir():
        return _from_folder(path, on, kind, step)
    if step is not None:
        raise PvmlError(f"MODEL {name!r} is not the folder of a run, so it has no step {step:,}")
    if name in bundled_models():
        model, tokenizer = _from_folder(bundled_folder(name), on, kind)
        return Loaded(model, tokenizer, name, f"the bundled model {name}")
    if name in HUB_MODELS:
        folder = _hub_folder(name)
        model = load_hugging_face(folder, on, kind)
        source = f"{HUB_MODELS[name]} on the Hugging Face hub"
        return Loaded(model, Tokenizer.gpt2(), name, source)
    raise PvmlError(_unknown(name))


def load_hugging_face(
    folder: str | os.PathLike[str],
    device: str | t.device | None = None,
    dtype: str | t.dtype | None = None,
) -> Transformer:
    """The model in a folder as `GPT2LMHeadModel.save_pretrained` writes it; no tokenizer is needed.

    Pickles are read for their tensors only; nothing in them is executed.

    Raises: PvmlError naming the file that is missing, damaged or malicious, or listing what PvML's
    model cannot express, or every tensor that is missing, unexpected or of another shape.
    """
    folder = Path(folder)
    theirs = read_json(folder / _CONFIG)
    with _naming(folder / _CONFIG):
        cfg = config_from_hugging_face(theirs)
    state, where = _read_state(folder)
    with _naming(where):
        # they tie the tables unless told otherwise, and then store one of them
        weights = from_hugging_face(state, cfg, tied=theirs.get("tie_word_embeddings", True))
        kind = pick_dtype(_widest(weights) if dtype is None else dtype)
    return build_model(cfg, weights, str(where), pick_device(device), kind)


def _from_folder(
    path: Path, device: t.device, dtype: t.dtype | None, step: int | None = None
) -> Loaded:
    """A run directory, or Hugging Face's form: the latter says its model_type."""
    checkpoint = run_of_checkpoint(path)
    if checkpoint is not None and step in (None, checkpoint[1]):
        path, step = checkpoint
    if not (path / _CONFIG).is_file():
        hidden = (
            f". It hides the bundled model {path}: give it from another folder"
            if str(path) in bundled_models()
            else ""
        )
        raise PvmlError(
            f"{path} is neither a run directory nor a folder with a Hugging Face GPT-2: "
            f"it holds no {_CONFIG}{hidden}"
        )
    if "model_type" in read_json(path / _CONFIG):
        if step is not None:
            raise PvmlError(f"{path} is not the folder of a run, so it has no step {step:,}")
        model = load_hugging_face(path, device, dtype)
        return Loaded(
            model, _tokenizer_beside(path, model), path.resolve().name, f"the GPT-2 in {path}"
        )
    run = RunDir.open(path)
    model = run.load_model(device, dtype or t.float32, step=step)
    if step is None:
        return Loaded(model, run.tokenizer(), run.name, f"the run in {path}")
    source = f"step {step:,} of the run in {path}"
    return Loaded(model, run.tokenizer(), f"{run.name}-step-{step}", source)


def _tokenizer_beside(folder: Path, model: Transformer) -> Tokenizer:
    own = (folder / _TOKENIZER).is_file()
    tokenizer = Tokenizer.load(folder / _TOKENIZER) if own else Tokenizer.gpt2()
    if tokenizer.d_vocab > model.cfg.d_vocab:
        which = f"its {_TOKENIZER}" if own else f"there is no {_TOKENIZER}, and GPT-2's tokenizer"
        raise PvmlError(
            f"{folder}: {which} has {tokenizer.d_vocab} ids, more than the model's "
            f"{model.cfg.d_vocab}. Put the model's own {_TOKENIZER} there, or take the model alone "
            f"with pvml.loading.load_hugging_face"
        )
    return tokenizer


def _read_state(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors in a folder, and the file that they came from (the index, if several)."""
    for single in (_SAFETENSORS, _PICKLE):
        if (folder / single).is_file():
            return _read_tensors(folder / single), folder / single
        if (folder / (single + _INDEX)).is_file():
            index = folder / (single + _INDEX)
            return _read_shards(index), index
    raise PvmlError(
        f"{folder} holds no weights: expected {_SAFETENSORS} or {_PICKLE}, whole or in shards"
    )


def _read_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise PvmlError(f"{index} is damaged: it has no weight_map")
    state: dict[str, Tensor] = {}
    for shard in sorted({str(file) for file in weight_map.values()}):
        if Path(shard).name != shard:
            raise PvmlError(f"{index} points out of its folder, to {shard!r}")
        if not (index.parent / shard).is_file():
            raise PvmlError(f"{index} names the shard {shard}, which is missing")
        state |= _read_tensors(index.parent / shard)
    return state


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return read_weights(path)
    saved = read_pickle(path)
    if not isinstance(saved, Mapping) or not all(
        isinstance(name, str) and isinstance(x, Tensor) for name, x in saved.items()
    ):
        raise PvmlError(f"{path} does not hold a state dict: expected tensors by name")
    return dict(saved)


def _widest(weights: Mapping[str, Tensor]) -> t.dtype:
    return functools.reduce(t.promote_types, (x.dtype for x in weights.values()))


@contextmanager
def _naming(where: Path) -> Iterator[None]:
    """Within it, an error's message begins with the file that it is about."""
    try:
        yield
    except PvmlError as error:
        raise PvmlError(f"{where}: {error}") from error


def _hub_folder(name: str) -> Path:
    """The folder in the hub's cache that holds the model's config and weights.

    What is there already is used without the network.
    """
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise PvmlError(
            f"{name} is read from the Hugging Face hub, which needs: pip install 'pvml[hub]'"
        ) from error
    # transformers caches these models under their short names, too
    for repo in (HUB_MODELS[name], name):
        files = [hub.try_to_load_from_cache(repo, file) for file in (_CONFIG, _SAFETENSORS)]
        if all(isinstance(file, str) for file in files):
            return Path(str(files[0])).parent
    # 3 s here and torch's import before it stay within 5 s of the command's start
    require_hub(f"The model {name}", timeout_s=3.0, instead=_WITHOUT_HUB)
    try:
        for file in (_CONFIG, _SAFETENSORS):
            got = hub.hf_hub_download(HUB_MODELS[name], file, endpoint=endpoint())
    except Exception as error:  # the library's own, its HTTP client's, or the disk's
        raise HubUnavailable(
            f"{HUB_MODELS[name]} could not be read from {endpoint()} "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). "
            f"{_WITHOUT_HUB}"
        ) from error
    return Path(got).parent


_WITHOUT_HUB = (
    "Without it, give a run directory (`pvml demo` or `pvml train` makes one) or a folder that "
    "holds a Hugging Face GPT-2."
)


def _unknown(name: str) -> str:
    """What MODEL can be, and which one may have been meant."""
    bundled = bundled_models()
    runs = [path.parent for path in RUNS.glob(f"*/{_CONFIG}")]
    # a run is meant by its name or by its folder
    words = [word for run in runs for word in (run.name, str(run))]
    close = difflib.get_close_matches(name, [*HUB_MODELS, *bundled, *words], n=1)
    meant = f": did you mean {close[0]}?" if close else "."
    there = "is a file" if Path(name).is_file() else "is not known"
    return (
        f"MODEL {name!r} {there}{meant} "
        f"MODEL can be a run directory, or the NAME of one in {RUNS}; a folder with a Hugging Face "
        f"GPT-2; "
        f"{', '.join(HUB_MODELS)} (from the hub); or a bundled model "
        f"({', '.join(bundled) or 'none in this version'})"
    )
