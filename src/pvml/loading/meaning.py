"""What the word MODEL means, everywhere: from a name, a folder or a file to a model.

How each form is read is in a file of its own beside this one.
"""

import difflib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch as t

from pvml.bundled import bundled_folder, bundled_models
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_device, pick_dtype
from pvml.errors import HubUnavailable, PvmlError
from pvml.loading.files import CONFIG, TOKENIZER
from pvml.loading.hub import ALSO_CALLED, HUB_MODELS, hub_folder, is_hub_id
from pvml.loading.hugging_face import build_hugging_face
from pvml.loading.lens import WEIGHTS, build_lens, is_lens_state, require_hooked, weights_in
from pvml.loading.nano_gpt import (
    CHECKPOINT,
    build_nano_gpt,
    is_nano_gpt,
    require_model_args,
    stored_vocabulary,
)
from pvml.loading.report import Built, Report
from pvml.loading.runs import build_run
from pvml.modules.transformer import Transformer
from pvml.reference.lens_names import is_lens_config
from pvml.runs.format import RunDir
from pvml.runs.json_object import read_json
from pvml.runs.layout import CHECKPOINTS, LATEST, run_of_checkpoint
from pvml.runs.naming import RUNS, named_run
from pvml.runs.weights import read_pickle, read_state_dict, require_state_dict

_TELLS_ITS_SHAPE = (
    "cfg is for a file with a state dict in TransformerLens's names, and {} is none: leave it out"
)


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode and its tokenizer; unpacks as `model, tokenizer`."""

    model: Transformer
    tokenizer: Tokenizer
    name: str
    """What to call it: the run's, the folder's, the file's or the hub's name."""
    source: str
    """Where it came from, as a phrase."""
    report: Report = field(default_factory=Report, compare=False)
    """Where each of its tensors came from, and what was done to it; `print` shows it."""

    def __post_init__(self) -> None:
        self.model.tokenizer = self.tokenizer  # so that it can be given text

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))


@dataclass(frozen=True)
class Alone:
    """A model in evaluation mode, without its tokenizer."""

    model: Transformer
    name: str
    """As in Loaded."""
    source: str
    report: Report
    tokenizer: Tokenizer | None = None
    """None where none was asked for."""


@dataclass(frozen=True)
class _Wish:
    """How a model is wanted."""

    device: t.device
    dtype: t.dtype | None
    step: int | None = None
    tokenizer: Tokenizer | None = None
    text: bool = True
    """Whether a tokenizer is wanted, too."""
    cfg: Config | None = None
    """Of a state dict in TransformerLens's names, instead of what lies beside it."""


def load(
    MODEL: str | os.PathLike[str],
    device: str | t.device | None = None,
    dtype: str | t.dtype | None = None,
    *,
    step: int | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    cfg: Config | None = None,
) -> Loaded:
    """The model that MODEL means, ready to use, with its tokenizer.

    MODEL: a run directory, PvML's or the seeds', or one of its checkpoints
    (runs/NAME/checkpoints/step-N); a folder or a file with a Hugging Face GPT-2, a nanoGPT
    checkpoint, or a state dict in TransformerLens's names; the NAME of a run in the folder runs;
    that of a bundled model; gpt2 and its family, or any owner/name on the hub (hf://owner/name/dir
    for a folder in it). What is there goes before a name, and a run before other names. device: an
    accelerator where there is one, unless given. dtype: as the file has it, for a run or a
    bundled model float32 at least, unless given. step: of a run, the checkpoint to take; the last
    one, unless given. tokenizer: one, or the path of a tokenizer.json, instead of what lies beside.
    cfg: what a file with a state dict in TransformerLens's names does not tell, such as LayerNorms
    that are not there and shortformer positions, instead of a config.json beside it. torch's random
    state is not moved.

    Raises: PvmlError if MODEL is none of these, is damaged or malicious, or cannot be expressed,
    has no checkpoint of that step, or tells its own shape though cfg is given; HubUnavailable
    within 5 s if the hub is needed and does not answer.
    """
    wish = _wish(device, dtype, cfg)
    found = _found(MODEL, replace(wish, step=step, tokenizer=_given(tokenizer)))
    assert found.tokenizer is not None
    return Loaded(found.model, found.tokenizer, found.name, found.source, found.report)


def load_alone(
    MODEL: str | os.PathLike[str],
    device: str | t.device | None = None,
    dtype: str | t.dtype | None = None,
    *,
    cfg: Config | None = None,
) -> Alone:
    """The model that MODEL means, as `load` gives it, where no text is to be read.

    There need not be a tokenizer that fits. A nanoGPT's vocabulary is as its file has it, padded.

    Raises: as `load`.
    """
    return _found(MODEL, replace(_wish(device, dtype, cfg), text=False))


def _wish(device: str | t.device | None, dtype: str | t.dtype | None, cfg: Config | None) -> _Wish:
    """Raises: PvmlError for a device or a dtype that there is not, or a cfg that is none."""
    if not isinstance(cfg, Config | None):
        raise PvmlError(f"cfg must be a pvml.Config, got {type(cfg).__name__} {cfg!r:.60}")
    kind = None if dtype is None else pick_dtype(dtype)
    return _Wish(pick_device(device), kind, cfg=cfg)


def _given(tokenizer: object) -> Tokenizer | None:
    """The tokenizer that was given, itself or by its path.

    Raises: PvmlError if it is none.
    """
    if isinstance(tokenizer, str | os.PathLike):
        return Tokenizer.load(tokenizer)
    if isinstance(tokenizer, Tokenizer | None):
        return tokenizer
    raise PvmlError(
        f"tokenizer must be the path of a {TOKENIZER}, or a Tokenizer of pvml.data.tokenizer, got "
        f"{type(tokenizer).__name__} {tokenizer!r:.60}"
    )


def _found(MODEL: str | os.PathLike[str], wish: _Wish) -> Alone:
    name, step = _word(MODEL), wish.step
    path = named_run(name)
    if wish.cfg is not None and not (path.suffix in WEIGHTS and path.is_file()):
        there = path.exists() or path.suffix not in WEIGHTS
        raise PvmlError(_TELLS_ITS_SHAPE.format(name) if name and there else _unknown(name))
    if name and path.is_dir():
        return _from_folder(path, wish)
    if step is not None:
        raise PvmlError(f"MODEL {name!r} is not the folder of a run, so it has no step {step:,}")
    if path.suffix in WEIGHTS and path.is_file():
        return _from_file(path, wish)
    if name in bundled_models():
        loaded = _from_folder(bundled_folder(name), wish)
        return replace(loaded, name=name, source=f"the bundled model {name}")
    if is_hub_id(name) and not _is_of_here(path):
        return _from_hub(name, wish)
    raise PvmlError(_unknown(name))


def _word(MODEL: object) -> str:
    """Raises: PvmlError for what is no name and no path."""
    name = os.fspath(MODEL) if isinstance(MODEL, str | os.PathLike) else None
    if not isinstance(name, str):
        kind = type(MODEL).__name__
        raise PvmlError(f"MODEL must be a name or a path, got {kind} {MODEL!r:.60}")
    try:
        os.path.lexists(name) or os.stat(name)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise PvmlError(f"MODEL {name!r:.60}... is longer than a file's name can be") from error
    except ValueError:  # a name with a 0 byte, which is unknown like any other
        pass
    return name


def _is_file(path: Path) -> bool:
    """Whether a file is there.

    Raises: PvmlError if something else is: a pipe, a folder, a link to nothing.
    """
    if os.path.lexists(path) and not path.is_file():
        raise PvmlError(f"{path} is there, and is no file that can be read")
    return path.is_file()


def _from_hub(name: str, wish: _Wish) -> Alone:
    name = ALSO_CALLED.get(name, name)
    try:
        folder = hub_folder(name)
    except HubUnavailable as error:
        if name in HUB_MODELS:
            raise
        raise HubUnavailable(f"nothing here is called {name}. {error}") from error
    if name in HUB_MODELS and wish.text:
        wish = replace(wish, tokenizer=wish.tokenizer or Tokenizer.gpt2())
    loaded = _from_folder(folder, wish)
    repo = HUB_MODELS.get(name, name)
    short = name if name in HUB_MODELS else name.rstrip("/").rpartition("/")[2]
    return replace(loaded, name=short, source=f"{repo} on the Hugging Face hub")


def _from_folder(path: Path, wish: _Wish) -> Alone:
    """Whatever a folder holds; its config.json tells what that is, or its ckpt.pt."""
    checkpoint = run_of_checkpoint(path)
    if checkpoint is not None and wish.step in (None, checkpoint[1]):
        path, step = checkpoint
        wish = replace(wish, step=step)
    if not _is_file(path / CONFIG):
        if (path / CHECKPOINT).is_file() and wish.step is None:
            return _from_file(path / CHECKPOINT, wish, name=path.resolve().name)
        hidden = (
            f". It hides the bundled model {path}: give it from another folder"
            if str(path) in bundled_models()
            else ""
        )
        raise PvmlError(
            f"{path} is neither a run directory nor a folder with a Hugging Face GPT-2: "
            f"it holds no {CONFIG}, and no {CHECKPOINT} of nanoGPT's{hidden}"
        )
    says = read_json(path / CONFIG)
    if "model_type" not in says and not is_lens_config(says):
        return _from_run(RunDir.open(path), wish)
    if wish.step is not None:
        raise PvmlError(f"{path} is not the folder of a run, so it has no step {wish.step:,}")
    if "model_type" not in says:
        return _from_file(weights_in(path), wish, name=path.resolve().name)
    built = build_hugging_face(path, wish.device, wish.dtype)
    return _loaded(built, path, wish, path.resolve().name, f"the GPT-2 in {path}")


def _from_run(run: RunDir, wish: _Wish) -> Alone:
    built = build_run(run, wish.device, wish.dtype, wish.step)
    own = run.tokenizer() if wish.text and wish.tokenizer is None else None
    tokenizer = _tokenizer(run.path, wish, built.model.cfg.d_vocab, own)
    if wish.step is None:
        return Alone(built.model, run.name, f"the run in {run.path}", built.report, tokenizer)
    source, name = f"step {wish.step:,} of the run in {run.path}", f"{run.name}-step-{wish.step}"
    return Alone(built.model, name, source, built.report, tokenizer)


def _from_file(path: Path, wish: _Wish, *, name: str | None = None) -> Alone:
    """A nanoGPT checkpoint, or a state dict in TransformerLens's names; the content tells which."""
    source, name = f"the weights in {path}", name or path.stem
    saved: Any
    if path.suffix == ".safetensors":
        saved = read_state_dict(path)
    else:
        saved = read_pickle(path, mapped=True)
    if is_nano_gpt(saved):
        if wish.cfg is not None:
            raise PvmlError(_TELLS_ITS_SHAPE.format(path))
        tokenizer = _tokenizer(path, wish, stored_vocabulary(saved))
        d_vocab = None if tokenizer is None else tokenizer.d_vocab
        built = build_nano_gpt(saved, path, wish.device, wish.dtype, d_vocab)
        return _loaded(built, path, wish, name, f"the nanoGPT checkpoint {path}")
    require_model_args(saved, path)
    state = require_state_dict(saved, str(path))
    require_hooked(state, path)
    if is_lens_state(state):
        built = build_lens(state, path, wish.device, wish.dtype, wish.cfg)
        return _loaded(built, path, wish, name, source)
    raise PvmlError(
        f"{path} holds no model's tensors in TransformerLens's names, and is no nanoGPT checkpoint"
        f" (it holds {', '.join(sorted(state)[:3]) or 'nothing'}...). For a Hugging Face GPT-2, "
        f"give the folder with its {CONFIG}"
    )


def _loaded(built: Built, place: Path, wish: _Wish, name: str, source: str) -> Alone:
    """The model with its tokenizer, and a note in the report if some ids have no text.

    place: as in `_tokenizer`.
    """
    d_vocab = built.model.cfg.d_vocab
    tokenizer = _tokenizer(place, wish, d_vocab)
    report = built.report
    if tokenizer is not None and tokenizer.d_vocab < d_vocab:
        report = report.saying(
            f"{_which_tokenizer(_beside(place), wish)} has {tokenizer.d_vocab:,} ids, the model "
            f"{d_vocab:,}: the rest have no text"
        )
    return Alone(built.model, name, source, report, tokenizer)


def _tokenizer(
    place: Path, wish: _Wish, d_vocab: int | None, own: Tokenizer | None = None
) -> Tokenizer | None:
    """The tokenizer given, the model's own, or GPT-2's, for a model with so many ids, if wanted.

    place: the model's file or folder. own: what lies beside, if it has been read.

    Raises: PvmlError if it has more ids than the model.
    """
    if not wish.text:
        return None
    tokenizer = wish.tokenizer or own
    beside = _beside(place)
    if tokenizer is None:
        tokenizer = Tokenizer.load(beside) if _is_file(beside) else Tokenizer.gpt2()
    if d_vocab is not None and tokenizer.d_vocab > d_vocab:
        raise PvmlError(
            f"{place}: {_which_tokenizer(beside, wish)} has {tokenizer.d_vocab} ids, more than "
            f"the model's {d_vocab}. Put the model's own there, as {beside}; or give it, "
            f"to pvml import with --tokenizer, to pvml.load with tokenizer=; or take the model "
            f"without one, and map text to ids yourself: pvml.loading.load_alone(...).model"
        )
    return tokenizer


def _beside(place: Path) -> Path:
    """Where a model's tokenizer lies, if it has one."""
    return (place if place.is_dir() else place.parent) / TOKENIZER


def _which_tokenizer(beside: Path, wish: _Wish) -> str:
    if wish.tokenizer is not None:
        return "the tokenizer given"
    if beside.is_file():
        return f"its {TOKENIZER}"
    return f"there is no {TOKENIZER}, and GPT-2's tokenizer"


def _is_of_here(word: Path) -> bool:
    """Whether a word with a slash is meant for this disk, by how it begins or ends."""
    first, *rest = word.parts or ("",)
    return bool(rest) and (Path(first).exists() or first == str(RUNS) or word.suffix in WEIGHTS)


def _unknown(name: str) -> str:
    """What MODEL can be, and which one may have been meant."""
    *_, folder, last = ("", "", *Path(name).parts)
    if (folder, last) == (CHECKPOINTS, LATEST):
        run = Path(name).parent.parent
        return (
            f"{name} only says which step of the run is the last: give the run, {run}, for that "
            f"one, or {run / CHECKPOINTS}/step-N"
        )
    bundled = bundled_models()
    found = (path.parent for path in RUNS.glob(f"*/{CONFIG}"))
    runs = [run for run in found if not run.name.startswith(".")]  # hidden: being made
    # a run is meant by its name or by its folder
    words = [word for run in runs for word in (run.name, str(run))]
    close = difflib.get_close_matches(name, [*HUB_MODELS, *bundled, *words], n=1)
    meant = f": did you mean {close[0]}?" if close else "."
    there = "is a file of no kind that is read" if Path(name).is_file() else "is not known"
    return (
        f"MODEL {name!r} {there}{meant} "
        f"MODEL can be a run directory, or the NAME of one in {RUNS}; a folder with a Hugging Face "
        f"GPT-2; a nanoGPT checkpoint; a state dict in TransformerLens's names; "
        f"{', '.join(HUB_MODELS)} or owner/name (from the hub); or a bundled model "
        f"({', '.join(bundled) or 'none in this version'})"
    )
