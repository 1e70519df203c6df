"""What a reader is told to do."""

from dataclasses import dataclass
from typing import Literal

What = Literal["eigenvalues", "row top", "matmul", "survey", "histogram"]


@dataclass(frozen=True)
class Task:
    """What is read.

    eigenvalues: of every head's OV circuit, as copying scores. row top: the largest entries of each
    row of one head's OV circuit. matmul: the blocks of that circuit, and nothing done with them.
    survey: row tops, the largest of all, diagonal and ranks. histogram: of the whole circuit.
    """

    what: What
    head: tuple[int, int] = (0, 0)
    """Layer and head."""
    k: int = 10
    """How many entries of each row."""
    d_vocab: int = 0
    """Only the first so many tokens; 0: all."""
