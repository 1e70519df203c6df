"""A model made of a file's tensors, and the report of where each tensor came from."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.device import DTYPES
from pvml.errors import PvmlError
from pvml.finite import all_finite
from pvml.modules.transformer import Transformer
from pvml.reference.state_dicts import AS_IT_IS, Converted
from pvml.runs.weights import build_model

_NAMED = 5
"""Tensors that a note names."""


class Row(NamedTuple):
    """One of the model's tensors."""

    ours: str
    """Its name in PvML."""
    shape: tuple[int, ...]
    theirs: str
    """The key in the file; empty for a tensor that the file does not hold."""
    done: str
    """What was done to it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where each tensor of a model came from, what was left out, and what else is to be known."""

    form: str = "a model made here"
    """What kind of file it was, as a phrase."""
    where: str = ""
    """The file, or the index of the files, that held the tensors."""
    rows: tuple[Row, ...] = ()
    """Each of the model's tensors, in the model's order."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Keys of the file that no tensor was made of, and why."""
    notes: tuple[str, ...] = ()
    """Sentences on what else the model's user must know."""

    def saying(self, *notes: str) -> "Report":
        """The report with these sentences besides."""
        return replace(self, notes=(*self.notes, *notes))

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {**asdict(self), "rows": [row._asdict() for row in self.rows]}

    def __str__(self) -> str:
        """All of it as text; layers that agree share a line."""
        head = ("tensor", "shape", "from", "done")
        lines = [head, *_merged(self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(3)]
        table = (
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[3]])
            for line in lines
        )
        left_out = [f"ignored: {key} ({why})" for key, why in _merged_keys(self.ignored)]
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([f"{self.form}, {self.where}", *table, *left_out, *notes])


class Built(NamedTuple):
    """A model in evaluation mode, and its report."""

    model: Transformer
    report: Report


def build(
    form: str,
    where: Path,
    cfg: Config,
    converted: Converted,
    device: t.device,
    dtype: t.dtype | None = None,
) -> Built:
    """The model of this shape with these tensors, and how each came in.

    dtype: unset, the widest of the tensors'.

    Raises: RunDirError beginning with `where`, listing every tensor that does not fit.
    """
    kind = widest(converted.weights) if dtype is None else dtype
    model = build_model(cfg, converted.weights, str(where), device, kind)
    origins = {origin.ours: origin for origin in converted.origins}
    rows = []
    for name, x in model.state_dict().items():
        _, theirs, done = origins[name]
        given = converted.weights[name].dtype
        if theirs and given != kind:
            cast = f"cast from {_word(given)} to {_word(kind)}"
            done = cast if done == AS_IT_IS else f"{done}, {cast}"
        rows.append(Row(name, tuple(x.shape), theirs, done))
    report = Report(
        form=form,
        where=str(where),
        rows=tuple(rows),
        ignored=converted.ignored,
        notes=(*_not_finite(model), *_two_tables(model)),
    )
    return Built(model, report)


def _not_finite(model: Transformer) -> list[str]:
    """A note that names the tensors with numbers that make every logit NaN, if there are any."""
    names = [name for name, x in model.state_dict().items() if not all_finite(x)]
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [
        f"holds NaN or Inf in {', '.join(names[:_NAMED])}{more}: what it computes means nothing"
    ]


def _two_tables(model: Transformer) -> list[str]:
    """A note where one table became two that start equal."""
    if model.cfg.tie_embeddings or not t.equal(model.unembed.W_U, model.embed.W_E.T):
        return []
    return ["W_U is W_E transposed, and a table of its own here: training would move them apart"]


def sizes_note(model: Transformer) -> str:
    """How many parameters the model has, with a table of its own for the unembedding and without.

    b_U counts with the former, though it is zero and never trained.
    """
    total, tied = model.parameter_counts()["total"], model.cfg.tie_embeddings
    own = (model.cfg.d_model + 1) * model.cfg.d_vocab
    one = total if tied else total - own
    return (
        f"{one + own:,} parameters with a table for the embedding and one for the unembedding, "
        f"{one:,} with one for both: it has {'one' if tied else 'two'} here"
    )


def widest(weights: Mapping[str, Tensor]) -> t.dtype:
    """The narrowest dtype that holds all these tensors' numbers, of those that PvML computes in."""
    here = {x.dtype for x in weights.values()} & set(DTYPES.values())
    return functools.reduce(t.promote_types, here) if here else t.float32


@contextmanager
def naming(where: Path) -> Iterator[None]:
    """Within it, an error's message begins with the file that it is about."""
    try:
        yield
    except PvmlError as error:
        raise PvmlError(f"{where}: {error}") from error


def _word(dtype: t.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def _merged(rows: Iterable[Row]) -> list[tuple[str, str, str, str]]:
    """The rows as words; those that differ in the layer only are one."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for row in rows:
        layer = _LAYER.search(row.ours)
        words = (row.ours, str(row.shape), row.theirs or "-", row.done)
        if layer is None:
            groups[words] = []
            continue
        one, _, two, three = words
        key = (_LAYER.sub("{}", one, 1), words[1], _LAYER.sub("{}", two, 1), three)
        groups.setdefault(key, []).append(int(layer[0]))
    return [
        (ours.replace("{}", told), shape, theirs.replace("{}", told), done)
        for (ours, shape, theirs, done), layers in groups.items()
        for told in (_spans(layers) or [""])
    ]


def _merged_keys(ignored: Mapping[str, str]) -> list[tuple[str, str]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for key, why in ignored.items():
        layer = _LAYER.search(key)
        group = groups.setdefault((_LAYER.sub("{}", key, 1), why), [])
        group += [int(layer[0])] if layer else []
    return [
        (key.replace("{}", told), why)
        for (key, why), layers in groups.items()
        for told in (_spans(layers) or [""])
    ]


def _spans(numbers: list[int]) -> list[str]:
    """0, 1, 2, 5 as "0-2" and "5"."""
    spans = []
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in group]
        spans.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return spans
