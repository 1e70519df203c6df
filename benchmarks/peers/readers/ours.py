"""PvML's way: factors, streamed."""

import time
from functools import cache

import torch as t
import torch.nn.functional as F

from peers.readers.task import Reader, Task, Told
from pvml.circuits.weights.blocks import GROUP
from pvml.circuits.weights.copying import copying_score, ov_eigenvalues
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.maps import ov
from pvml.circuits.weights.streamed import (
    Diagonal,
    Histogram,
    RowTop,
    Statistic,
    Top,
    blocks_for,
    scan,
)
from pvml.modules.matmul_route import fastest_float32
from pvml.modules.transformer import Transformer


def build(model: Transformer) -> Reader:
    """From our model to what does a task."""

    @cache
    def table_of(head: tuple[int, int], d_vocab: int) -> FactoredMap:
        table = ov(model, head, norms="ignored").map
        n = d_vocab or len(table.left)
        return FactoredMap(table.left[:n], table.right[:, :n])

    def read(task: Task) -> Told:
        if task.what == "eigenvalues":
            return Told(found=copying_score(ov_eigenvalues(model, "ignored")).flatten().tolist())
        table, top = table_of(task.head, task.d_vocab), RowTop(task.k)
        if task.what == "beside matmul":
            return beside_matmul(table, top)
        statistics: dict[str, tuple[Statistic, ...]] = {
            "row top": (top,),
            "survey": (top, Top(task.k), Diagonal()),
            "histogram": (Histogram(),),
        }
        scan(table, *statistics[task.what])
        return Told() if task.what == "histogram" else Told(found=means(top))

    return read


def beside_matmul(table: FactoredMap, top: RowTop) -> Told:
    """The scan of `scan`, block by block in turn with the bare product of the same rows.

    So that whatever else the machine does slows both. The product writes each block over the last,
    in rows that are filled up to a whole number of groups: as fast as it is to be had.
    """
    seconds, matmul_seconds, room = 0.0, 0.0, table.left.new_empty(0)
    right = F.pad(table.right, (0, -table.shape[1] % GROUP))
    start = time.perf_counter()
    top.begin(table)
    for block in blocks_for([top], table):
        top.take(block)
        seconds += time.perf_counter() - start
        left = table.left[block.first : block.first + len(block.entries)]
        if not len(room):
            room = left.new_zeros(len(left), right.shape[1])
        start = time.perf_counter()
        with fastest_float32(table.device, table.dtype):
            t.mm(left, right, out=room[: len(left)])
        matmul_seconds += time.perf_counter() - start
        start = time.perf_counter()
    return Told(found=means(top), seconds=seconds, matmul_seconds=matmul_seconds)


def means(top: RowTop) -> list[float]:
    """Of the largest entries of all rows, of the second largest, and so on."""
    found: list[float] = top.values.mean(0, dtype=t.float64).tolist()
    return found
