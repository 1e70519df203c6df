"""PvML's way: factors, streamed."""

from collections.abc import Callable
from functools import cache

import torch as t
import torch.nn.functional as F
from torch import Tensor

from peers.readers.task import Task
from pvml.circuits.copying import copying_score, ov_eigenvalues
from pvml.circuits.factored import FactoredMap
from pvml.circuits.maps import ov
from pvml.circuits.streamed import GROUP, Diagonal, Histogram, RowTop, Statistic, Top, scan
from pvml.modules.matmul_route import fastest_float32
from pvml.modules.transformer import Transformer

ROWS = 256
"""In a block of the bare product: the fastest of 64, 128, 256, 512."""


def build(model: Transformer) -> Callable[[Task], list[float]]:
    """What each task finds, as a few numbers that a peer has to find too."""
    blocks = _Blocks()

    @cache
    def table_of(head: tuple[int, int], d_vocab: int) -> FactoredMap:
        table = ov(model, head, norms="ignored").map
        n = d_vocab or len(table.left)
        return FactoredMap(table.left[:n], table.right[:, :n])

    def read(task: Task) -> list[float]:
        if task.what == "eigenvalues":
            scores: list[float] = copying_score(ov_eigenvalues(model, "ignored")).flatten().tolist()
            return scores
        table = table_of(task.head, task.d_vocab)
        if task.what == "matmul":
            return blocks.multiply(table)
        top = RowTop(task.k)
        statistics: dict[str, tuple[Statistic, ...]] = {
            "row top": (top,),
            "survey": (top, Top(task.k), Diagonal()),
            "histogram": (Histogram(),),
        }
        scan(table, *statistics[task.what])
        return [] if task.what == "histogram" else top.values.mean(0, dtype=t.float64).tolist()

    return read


class _Blocks:
    """The bare blocked product: rows filled up to a whole number of groups, one block's memory."""

    def __init__(self) -> None:
        self._room: Tensor | None = None

    def multiply(self, table: FactoredMap) -> list[float]:
        right = F.pad(table.right, (0, -table.shape[1] % GROUP))
        if self._room is None or self._room.shape[1] != right.shape[1]:
            self._room = t.empty(ROWS, right.shape[1])
        with fastest_float32(table.device, table.dtype):
            for left in table.left.split(ROWS):
                t.mm(left, right, out=self._room[: len(left)])
        return []
