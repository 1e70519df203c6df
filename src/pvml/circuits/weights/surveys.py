"""Every head's circuits over the whole vocabulary, scanned once and kept in a folder.

A file for each circuit, written whole: a survey that was stopped goes on where it was. It holds the
largest entries of each row, the largest of the whole table, and the diagonal with its ranks; and
the name of the circuit and of the survey that it is of, for files are moved, and a hash of it all.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import torch as t
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pvml.atomic import replacing, write_whole
from pvml.circuits.weights.blocks import MEMORY
from pvml.circuits.weights.maps import Circuit, Norms, ov, qk
from pvml.circuits.weights.streamed import Diagonal, RowTop, Top, scan
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.json_object import read_json, to_json
from pvml.runs.weights import save_tensors

Kind = Literal["OV", "QK"]
ABOUT = "survey.json"
_MOST = 1_000
"""Entries of a row that are kept: a survey is no copy of the table."""
_CIRCUIT, _SURVEY, _NUMBERS = "circuit", "survey", "numbers"

Told = Callable[[str, int, int], object]
"""Told a circuit's name, how many of its rows have passed, and of how many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scanned:
    """What is kept of one circuit."""

    name: str
    """As `OV 1.3`."""
    row_values: Float[Tensor, "rows k"]
    """The largest entries of each row, the largest first."""
    row_ids: Int[Tensor, "rows k"]
    """Their columns."""
    values: Float[Tensor, " n"]
    """The largest entries of the whole table, the largest first."""
    rows: Int[Tensor, " n"]
    """Their rows."""
    columns: Int[Tensor, " n"]
    """Their columns."""
    diagonal: Float[Tensor, " d_vocab"]
    """Each token's entry with itself: how far OV copies it, how far QK has it see itself."""
    ranks: Int[Tensor, " d_vocab"]
    """How many entries of its row are larger: 0 where a token favours itself."""

    @property
    def favours_itself(self) -> float:
        """The share of tokens whose own entry is the largest of their row (0 to 1)."""
        return float((self.ranks == 0).double().mean())


@dataclass(frozen=True)
class Survey:
    """A folder of scanned circuits."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> "Survey":
        """The survey in a folder, finished or not.

        Raises: PvmlError if there is none.
        """
        read_json(path / ABOUT)
        return cls(path)

    @property
    def names(self) -> list[str]:
        """The circuits that it is to hold, those that are missing included."""
        names: list[str] = read_json(self.path / ABOUT)["circuits"]
        return names

    @property
    def missing(self) -> list[str]:
        """Those that are not scanned yet."""
        return [name for name in self.names if not self._file(name).exists()]

    def matching(self, pattern: str) -> list[str]:
        """The circuits whose names fit a pattern, as `OV 0.*`.

        Raises: PvmlError if none does.
        """
        return _matching(self.names, pattern)

    def __getitem__(self, name: str) -> Scanned:
        """What was kept of a circuit, as `OV 1.3`.

        Raises: PvmlError for a name that is not there, not scanned yet, or whose file is damaged or
            of another circuit or survey.
        """
        if name not in self.names:
            raise PvmlError(f"there is no {name!r} in {self.path}: it has {', '.join(self.names)}")
        file = self._file(name)
        if not file.exists():
            raise PvmlError(f"{name} is not scanned yet: give the same call again, it goes on")
        try:
            with safe_open(file, "pt") as saved:
                says = saved.metadata() or {}
                kept = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as problem:
            raise PvmlError(
                f"{file} is damaged: {problem}. Remove it, and survey again"
            ) from problem
        expected = {field.name for field in fields(Scanned)} - {"name"}
        if set(kept) != expected or not {_CIRCUIT, _SURVEY, _NUMBERS} <= set(says):
            raise PvmlError(
                f"{file} is damaged: it is no file of a survey. Remove it, and survey again"
            )
        if says[_NUMBERS] != digest(kept):
            raise PvmlError(
                f"{file} is damaged: its numbers are not those that were kept. Remove it, and "
                f"survey again"
            )
        here = says[_SURVEY] == _mark(read_json(self.path / ABOUT))
        if not here or says[_CIRCUIT] != name:
            raise PvmlError(
                f"{file} holds {says[_CIRCUIT]} of {'this' if here else 'another'} survey, not "
                f"{name} of this: remove it, and survey again"
            )
        ids = ("row_ids", "rows", "columns", "ranks")
        return Scanned(name=name, **{k: x.long() if k in ids else x for k, x in kept.items()})

    def __iter__(self) -> Iterator[Scanned]:
        for name in self.names:
            yield self[name]

    def _file(self, name: str) -> Path:
        return self.path / f"{name.replace(' ', '-')}.safetensors"


def survey(
    model: Transformer,
    path: Path,
    *,
    kinds: tuple[Kind, ...] = ("OV", "QK"),
    top: int = 10,
    norms: Norms = "folded",
    only: str = "*",
    memory: int = MEMORY,
    tell: Told | None = None,
) -> Survey:
    """Scan the OV and QK circuits of every head over the vocabulary, and keep them in a folder.

    path: a new folder, or one of this very survey that was stopped: only what is missing is
    scanned. top: how many entries of each row, and of each table, are kept. only: scan those whose
    names fit this pattern now, as `OV 0.*`, and leave the others for later. memory: bytes that may
    be held beside the model.

    Raises: PvmlError for another folder, an unknown kind, a pattern that nothing fits, a model
        without heads, or too little memory; RunDirError if the disk refuses.
    """
    if unknown := sorted(set(kinds) - set(get_args(Kind))):
        raise PvmlError(f"kinds are {', '.join(get_args(Kind))}, got {', '.join(unknown)}")
    heads = [(i, j) for i in range(model.cfg.n_layers) for j in range(model.cfg.n_heads)]
    if not heads or not kinds:
        raise PvmlError("there is nothing to survey: the model has no heads, or no kind was given")
    if top < 1:
        raise PvmlError(f"top must be at least 1 entry, got {top}")
    if top > _MOST:
        raise PvmlError(f"top must be at most {_MOST:,} entries of a row, got {top}")
    names = [f"{kind} {layer}.{head}" for kind in kinds for layer, head in heads]
    wanted = _matching(names, only)
    about = {
        "model": model.cfg.to_dict(),
        "weights": digest(model.state_dict()),
        "top": top,
        "norms": norms,
        "circuits": names,
    }
    _claim(path, about)
    found = Survey(path)
    for kind in kinds:
        for head in heads:
            name = f"{kind} {head[0]}.{head[1]}"
            if name in found.missing and name in wanted:
                circuit = (
                    ov(model, head, norms=norms) if kind == "OV" else qk(model, head, norms=norms)
                )
                mark = {_CIRCUIT: name, _SURVEY: _mark(about)}
                _scan(circuit, found._file(name), mark, top, memory, tell)
    return found


def _matching(names: list[str], pattern: str) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise PvmlError(f"no circuit fits {pattern!r}: they are {', '.join(names)}")
    return found


def _claim(path: Path, about: dict[str, Any]) -> None:
    if (path / ABOUT).exists():
        kept = read_json(path / ABOUT)
        differing = [key for key, value in about.items() if kept.get(key) != value]
        if differing:
            raise PvmlError(
                f"{path} holds another survey (its {', '.join(differing)} differ): take a new "
                f"folder"
            )
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        there = next(path.iterdir(), None)
    except OSError as error:
        raise RunDirError(
            f"{path} cannot be made a folder, or not be read: {error.strerror}. Take another name"
        ) from error
    if there is not None:
        raise PvmlError(f"{path} is there and is no survey: take a new folder")
    write_whole(path / ABOUT, to_json(about, indent=2) + "\n")


def _scan(
    circuit: Circuit, file: Path, mark: dict[str, str], top: int, memory: int, tell: Told | None
) -> None:
    row_top, best, diagonal = RowTop(top), Top(top), Diagonal()
    told = (lambda done, of: tell(mark[_CIRCUIT], done, of)) if tell is not None else None
    scan(circuit.map, row_top, best, diagonal, memory=memory, tell=told)
    kept = {
        "row_values": row_top.values,
        "row_ids": row_top.ids.int(),
        "values": best.values,
        "rows": best.rows.int(),
        "columns": best.columns.int(),
        "diagonal": diagonal.values,
        "ranks": diagonal.ranks.int(),
    }
    kept = {key: x.contiguous().cpu() for key, x in kept.items()}
    with replacing(file) as partial:
        save_tensors(kept, partial, {**mark, _NUMBERS: digest(kept)})


def _mark(about: dict[str, Any]) -> str:
    """What tells one survey's files from another's: a hash of what it is about."""
    return hashlib.blake2b(
        to_json(dict(sorted(about.items()))).encode(), digest_size=16
    ).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """What tells some tensors from others: a hash of every name, shape and number."""
    found = hashlib.blake2b(digest_size=16)
    for name, x in sorted(tensors.items()):
        found.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
        found.update(x.detach().cpu().contiguous().view(t.uint8).numpy().data)
    return found.hexdigest()
