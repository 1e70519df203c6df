"""What an export must know of another library's form. Each form has a file of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

Word = Literal["hf", "transformer_lens", "nanogpt"]
"""The word for a form, as `pvml export --to` takes it."""

_HOMES = {"hf": "hugging_face", "transformer_lens": "lens", "nanogpt": "nanogpt"}

Logits = Callable[[Int[Tensor, "batch posn"]], Float[Tensor, "batch posn d_vocab"]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model as it is exported: its shape, its numbers on the CPU, and its tokenizer."""

    cfg: Config
    weights: Mapping[str, Tensor]
    """By PvML's names."""
    dtype: t.dtype
    """What the numbers are stored in."""
    tokenizer: Tokenizer
    rows: int
    """How many entries the vocabulary is written with: d_vocab, or more where it is padded."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An exported folder, opened by the library that it was made for."""

    how: str
    """What computes: a class, or a formula where there are several."""
    logits: Logits
    continued: Callable[[list[int], int], list[int]] | None = None
    """The library's own greedy continuation of these ids, by so many tokens at most."""
    judged: bool = True
    """Whether it must compute what PvML does; else the difference is told, and that is all."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a model is written for a library, and how that library reads it."""

    title: str
    """The library's name, as a sentence has it."""
    tag: str
    """What the hub calls the library."""
    reasons: Callable[[Config, Mapping[str, Tensor]], list[str]]
    """Why a model cannot be written in this form; empty if it can. Weights by PvML's names."""
    require_library: Callable[[], str]
    """What reads it, with its version. Raises PvmlError if it is not installed."""
    write: Callable[[Source, Path], None]
    """Write the files into a folder that is there and empty."""
    read: Callable[[Path, t.dtype], list[Reading]]
    """Open a folder that `write` filled, to compute in a dtype, on the CPU."""
    encode: Callable[[Path], Callable[[str], list[int]]] | None
    """The ids of a text by the tokenizer in the folder; None where the library reads none."""
    opening: str
    """Python that opens the folder FOLDER."""
    notes: tuple[str, ...] = ()
    """Sentences on what is not the same there."""


def form_of(word: str) -> Form:
    """The form that a word stands for.

    Raises: PvmlError for another word.
    """
    if word not in get_args(Word):
        raise PvmlError(f"there is no form {word!r} to export to: {', '.join(get_args(Word))}")
    form: Form = import_module(f"pvml.export.{_HOMES[word]}").FORM
    return form
