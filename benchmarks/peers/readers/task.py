"""What a reader is told to do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

What = Literal["eigenvalues", "row top", "beside matmul", "survey", "histogram"]


@dataclass(frozen=True)
class Task:
    """What is read.

    eigenvalues: of every head's OV circuit, as copying scores. row top: the largest entries of each
    row of one head's OV circuit. beside matmul: the same, each block in turn with its bare product.
    survey: row tops, the largest of all, diagonal and ranks. histogram: of the whole circuit.
    """

    what: What
    head: tuple[int, int] = (0, 0)
    """Layer and head."""
    k: int = 10
    """How many entries of each row."""
    d_vocab: int = 0
    """Only the first so many tokens; 0: all."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a task came to."""

    found: list[float] = field(default_factory=list)
    """A few numbers that a peer has to find too."""
    seconds: float | None = None
    """Where the task's own are not those that it took."""
    matmul_seconds: float | None = None
    """Of the bare products beside it."""


Reader = Callable[[Task], Told]
