"""What a sweep of patches found: a number for each cell, between those of the two prompts."""

import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import torch as t
from jaxtyping import Float
from torch import Tensor

from pvml.atomic import write_whole
from pvml.circuits.claims.as_json import decode, encode
from pvml.errors import PvmlError
from pvml.runs.json_object import read_json, to_json

Direction = Literal["denoising", "noising"]
"""Clean activations into the corrupted prompt's pass, or corrupted ones into the clean prompt's."""
_FORMAT = "pvml activation patching 1"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One patch: where it was put in, and what came of it."""

    place: tuple[int, ...]
    """The layer, then the head or position or both, each counted from 0."""
    name: str
    """The same in words."""
    value: float
    """The metric with this patch, in its own unit."""
    normalised: float
    """The same where 0 is the corrupted prompt's and 1 the clean one's."""
    effect: float
    """How far the patch moved it, from 0 if it is denoising and from 1 if it is noising."""


@dataclass(frozen=True, kw_only=True)
class Patched:
    """The metric with each patch, beside what it is for the two prompts alone."""

    over: str
    """Which tensor was patched, as `z` or `resid_pre`."""
    direction: Direction
    metric: str
    """In words."""
    axes: tuple[str, ...]
    """What a cell is one of, outermost first: layer, head, position."""
    shape: tuple[int, ...]
    """How many there are along each."""
    numbers: tuple[float, ...]
    """The metric with each patch, in its own unit; the last axis is the fastest."""
    clean: float
    """The metric for the clean prompt alone."""
    corrupted: float
    """And for the corrupted one."""
    clean_tokens: tuple[str, ...]
    """The clean prompt's tokens in words; of several prompts, positions."""
    corrupted_tokens: tuple[str, ...]
    n_prompts: int
    """How many pairs of prompts the metric is over."""
    processing: tuple[str, ...] = ()
    """How the model's weights were rewritten, as its own `processing` says."""

    def __post_init__(self) -> None:
        if self.direction not in get_args(Direction):
            raise PvmlError(f"direction must be denoising or noising, got {self.direction!r}")
        if math.prod(self.shape) != len(self.numbers) or len(self.axes) != len(self.shape):
            raise PvmlError(
                f"{len(self.numbers)} numbers do not fill cells of shape {self.shape} over "
                f"{', '.join(self.axes)}"
            )

    @property
    def values(self) -> Float[Tensor, "..."]:
        """The metric with each patch, in its own unit; axes as in `axes`, in float64."""
        return t.tensor(self.numbers, dtype=t.float64, device="cpu").view(self.shape)

    @property
    def normalised(self) -> Float[Tensor, "..."]:
        """The same where 0 is what the corrupted prompt gives and 1 what the clean one gives.

        It may be below 0 or above 1: a patch can do more than the whole prompt.
        """
        return (self.values - self.corrupted) / (self.clean - self.corrupted)

    @property
    def base(self) -> float:
        """What `normalised` is where a patch changes nothing: 0 if denoising, 1 if noising."""
        return 0.0 if self.direction == "denoising" else 1.0

    def largest(self, n: int) -> list[Cell]:
        """The cells whose patch changes most, the largest change first.

        Raises: PvmlError for fewer than one.
        """
        if n < 1:
            raise PvmlError(f"the largest {n} cells were asked for: give at least 1")
        normalised = self.normalised.flatten()
        effects = normalised - self.base
        order = effects.abs().argsort(descending=True, stable=True)[:n].tolist()
        found = []
        places = list(product(*map(range, self.shape)))
        for i in order:
            place = places[i]
            found.append(
                Cell(
                    place=place,
                    name=self.name_of(place),
                    value=self.numbers[i],
                    normalised=float(normalised[i]),
                    effect=float(effects[i]),
                )
            )
        return found

    def name_of(self, place: tuple[int, ...]) -> str:
        """A cell in words: `head 1.3`, `layer 0, position 4 ' rain'/' cake'` (clean/corrupted)."""
        at = dict(zip(self.axes, place, strict=True))
        words = [f"head {at['layer']}.{at['head']}" if "head" in at else f"layer {at['layer']}"]
        if "position" in at:
            words.append(f"position {at['position']}{self._token(at['position'])}")
        return ", ".join(words)

    def _token(self, position: int) -> str:
        if self.n_prompts > 1:
            return ""
        clean, other = self.clean_tokens[position], self.corrupted_tokens[position]
        return f" {clean!r}" + (f"/{other!r}" if other != clean else "")

    @property
    def title(self) -> str:
        """What was done, in a line; what was measured is in `metric`."""
        ends = ("clean", "corrupted") if self.direction == "denoising" else ("corrupted", "clean")
        return f"Patching {self.over} from the {ends[0]} prompt into the {ends[1]} one"

    def table(self, most: int = 20) -> str:
        """A line for each cell whose patch changes most; those left out are counted.

        Raises: PvmlError for fewer than one line.
        """
        cells = self.largest(most)
        width = max(len("patch"), *(len(cell.name) for cell in cells))
        lines = [f"{'patch':<{width}}   metric  normalised  change"]
        lines += [
            f"{cell.name:<{width}}  {cell.value:+z7.3f}  {cell.normalised:+z10.3f}  "
            f"{cell.effect:+z6.3f}"
            for cell in cells
        ]
        left_out = len(self.numbers) - len(cells)
        if left_out:
            lines.append(f"and {left_out:,} that change less")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values; `from_json` gives an equal one."""
        return {"format": _FORMAT, **encode(self)}

    @classmethod
    def from_json(cls, saved: Any, where: str = "this") -> "Patched":
        """What `to_json` described. where: what messages call it.

        Raises: PvmlError naming what is missing, unknown or of another kind.
        """
        if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
            raise PvmlError(f"{where} is no {_FORMAT!r}: `Patched.save` writes one")
        return decode(cls, {key: x for key, x in saved.items() if key != "format"}, where)

    def save(self, path: Path) -> Path:
        """Write all of it as one JSON file, whole or not at all; its path.

        Raises: RunDirError naming the file if the disk refuses.
        """
        write_whole(path, to_json(self.to_json(), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> "Patched":
        """What `save` wrote.

        Raises: RunDirError for a file that is missing or damaged, PvmlError if it holds another.
        """
        return cls.from_json(read_json(path), str(path))
