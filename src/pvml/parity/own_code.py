"""A reader's own class: found in its file, and its errors told by file and line.

The file is executed, as any import does. What it raises is the reader's to see, never a crash here.
"""

import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from pvml.config import Config
from pvml.errors import PvmlError

KINDS = {
    "embed": "embed",
    "pos_embed": "pos_embed",
    "layer_norm": "ln",
    "attention": "attn",
    "mlp": "mlp",
    "block": "block",
    "unembed": "unembed",
    "transformer": "transformer",
}
"""The kinds of module by the word for `--kind`, and their keys in `pvml.trace.points`, which has
none for the whole model."""

_SPEAKING = {
    "unembed": "unembed",
    "pos": "pos_embed",
    "embed": "embed",
    "norm": "layer_norm",
    "attention": "attention",
    "attn": "attention",
    "mlp": "mlp",
    "feedforward": "mlp",
    "block": "block",
    "transformer": "transformer",
    "model": "transformer",
    "gpt": "transformer",
}
"""What in a class's name, small and without underscores, tells which kind."""

_IN_NANO_GPT = {
    "n_embd": "d_model",
    "n_head": "n_heads",
    "n_layer": "n_layers",
    "block_size": "n_ctx",
    "vocab_size": "d_vocab",
    "n_positions": "n_ctx",
    "n_inner": "d_mlp",
    "layer_norm_epsilon": "layer_norm_eps",
}
"""What nanoGPT and Hugging Face's GPT-2 call a field of the Config."""

_LONGEST = 1000
"""Characters of a message to show."""

_MODULE = "pvml_own_module"
"""What the file's module is called while it is here."""


class OwnError(Exception):
    """Something that the reader's code did; the message is ready to be shown."""


@dataclass(frozen=True)
class OwnClass:
    """A class to check."""

    cls: type[nn.Module]
    kind: str
    """A key of KINDS."""
    file: Path


def guess_kind(name: str) -> str | None:
    """Which kind of module a class of this name is: a key of KINDS, or None.

    The word that ends last tells: a NormedAttention is an attention. Only of an embedding what
    stands before says which.
    """
    plain = name.lower().replace("_", "")
    ends = {word: plain.rfind(word) + len(word) for word in _SPEAKING if word in plain}
    if not ends:
        return None
    last = max(ends, key=lambda word: ends[word])
    if last == "embed":
        last = next(word for word in ("unembed", "pos", "embed") if word in ends)
    return _SPEAKING[last]


def find_class(where: str, kind: str | None = None) -> OwnClass:
    """The class that `FILE:CLASS` names, after executing FILE.

    Without `:CLASS`, the one module in the file whose name tells its kind.

    Raises: PvmlError for a file or class that is not there, is no module, or of several candidates.
        OwnError for what the file itself raised.
    """
    file, name = _split(where)
    if kind is not None and kind not in KINDS:
        raise PvmlError(f"there is no kind {kind!r} of module: it is one of {', '.join(KINDS)}")
    if not file.is_file():
        raise PvmlError(
            f"there is no file {str(file)!r}: give FILE:CLASS, as in my_attention.py:Attention"
        )
    namespace = vars(_executed(file))
    own = {
        one.__name__: one
        for one in namespace.values()
        if isinstance(one, type) and issubclass(one, nn.Module) and one.__module__ == _MODULE
    }
    if not name:
        name = _only_candidate(file, own, kind)
    cls = namespace.get(name)
    if not isinstance(cls, type):
        raise PvmlError(f"{file.name} has no class {name!r}: {_what_there_is(name, own)}")
    if not issubclass(cls, nn.Module):
        raise PvmlError(
            f"{name} in {file.name} is no torch.nn.Module: write class {name}(nn.Module)"
        )
    kind = kind or guess_kind(name)
    if kind is None:
        raise PvmlError(
            f"which kind of module is {name!r}? Its name does not tell: give --kind, one of "
            f"{', '.join(KINDS)}"
        )
    return OwnClass(cls, kind, file)


def parts_in(own: OwnClass) -> list[str]:
    """The names of the classes in a model's file, its own and imported ones, that are its parts."""
    there = getattr(own.cls.__init__, "__globals__", {})
    return [
        name
        for name, one in there.items()
        if isinstance(one, type)
        and issubclass(one, nn.Module)
        and guess_kind(name) not in (None, "transformer")
    ]


def _split(where: str) -> tuple[Path, str]:
    file, colon, name = where.rpartition(":")
    # without a class, and in C:\own.py, what follows a colon is no name
    return (Path(file), name) if colon and name.isidentifier() else (Path(where), "")


def _only_candidate(file: Path, own: dict[str, type[nn.Module]], kind: str | None) -> str:
    fitting = [name for name in own if kind is None or guess_kind(name) in (kind, None)]
    speaking = [name for name in fitting if guess_kind(name)] or fitting
    if len(speaking) == 1:
        return speaking[0]
    if not own:
        raise PvmlError(f"{file.name} defines no torch.nn.Module")
    raise PvmlError(
        f"{file.name} defines {', '.join(own)}: say which, as in {file.name}:{next(iter(own))}"
    )


def _what_there_is(name: str, own: dict[str, type[nn.Module]]) -> str:
    close = difflib.get_close_matches(name, own, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"its modules are {', '.join(own)}" if own else "it defines no torch.nn.Module"


def _executed(file: Path) -> ModuleType:
    """The file's module. Always from its source: a stored compilation may be of an older text."""
    module = ModuleType(_MODULE)
    module.__file__ = str(file)
    sys.modules[_MODULE] = module  # dataclasses look their own module up
    with beside(file), told(file, "importing it"):
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    return module


@contextmanager
def beside(file: Path) -> Iterator[None]:
    """While it is open, the file's code may import what lies in its folder."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def told(file: Path, doing: str, called: Callable[..., Any] | None = None) -> Iterator[None]:
    """What is raised inside, as an OwnError that says where in the file.

    doing: what was going on. called: what had been called, where no line of the file was reached.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # exit() in a file must not end the check
        line, text = _last_line_in(file, error)
        if line is None and called is not None:
            line = _where_defined(called, file)
        at = f"{file.name}, line {line}" if line is not None else file.name
        code = f"\n    {text}" if text else ""
        said = _message(error)
        name = type(error).__name__
        raise OwnError(f"{at}: {name} while {doing}: {said}{code}{_hint(said)}") from error


def _message(error: BaseException) -> str:
    try:
        said = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    except Exception:  # an exception class of the reader's may fail at this, too
        said = ""
    return (said if len(said) <= _LONGEST else f"{said[:_LONGEST]}...") or "no message"


def _last_line_in(file: Path, error: BaseException) -> tuple[int | None, str]:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno, (error.text or "").strip()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return (frames[-1].lineno, frames[-1].line or "") if frames else (None, "")


def _where_defined(called: Callable[..., Any], file: Path) -> int | None:
    code = getattr(inspect.unwrap(called), "__code__", None)
    if code is None or code.co_filename != str(file):
        return None
    first: int = code.co_firstlineno
    return first


def _hint(said: str) -> str:
    """What to do about errors that are made often; empty for others."""
    missing = re.search(r"'Config' object has no attribute '(\w+)'", said)
    if missing:
        names = [field.name for field in fields(Config)]
        close = difflib.get_close_matches(missing[1], names, n=1)
        if missing[1] in _IN_NANO_GPT:
            close = [_IN_NANO_GPT[missing[1]]]
        meant = f"did you mean cfg.{close[0]}?" if close else f"it has {', '.join(names)}"
        return f"\n  the config has no {missing[1]}: {meant}"
    if "positional argument" in said and "__init__" in said:
        return "\n  the constructor is called with one argument, the config: CLASS(cfg)"
    if "positional argument" in said:
        one = "forward is called with one argument, what the module reads"
        return f"\n  {one}: give any other a default"
    if "leaf Variable that requires grad" in said or "modified by an inplace operation" in said:
        return "\n  something is changed in place: write x = x + y, not x += y"
    if re.search(r"same dtype|scalar type|dtype of|Float and Double|Double and Float", said):
        return (
            "\n  a tensor made in __init__ or on the way keeps its own dtype: register_buffer lets "
            "it follow the module, and torch.zeros(..., dtype=x.dtype, device=x.device) the input"
        )
    return ""
