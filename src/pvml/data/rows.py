"""A token stream cut into rows that a model reads, and the order in which training takes them.

Every token is in exactly one row or in the reported remainder. Making the stream is in `stream.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch as t
from jaxtyping import Int, Integer
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from pvml.data.stream import token_stream
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of n_ctx tokens: BOS, then the next n_ctx - 1 of the stream.

    As a dataset, row i is {"tokens": (n_ctx,)}.

    Raises: PvmlError for an n_ctx below 2, or a stream too short for one row.
    """

    def __init__(
        self, stream: Integer[np.ndarray[Any, Any], " n_tokens"], n_ctx: int, bos_token_id: int
    ):
        if n_ctx < 2:
            raise PvmlError(
                f"n_ctx must be at least 2 to cut rows, got {n_ctx}: a row is BOS and n_ctx - 1 "
                f"tokens"
            )
        if len(stream) < n_ctx - 1:
            raise PvmlError(
                f"{len(stream):,} tokens do not fill one row: n_ctx {n_ctx:,} takes {n_ctx - 1:,} "
                f"besides BOS. Give more text (or hold out more documents), or lower n_ctx to at "
                f"most {len(stream) + 1:,}"
            )
        self.stream = stream
        self.n_ctx = n_ctx
        self.bos_token_id = bos_token_id
        self._grid = stream[: len(self) * (n_ctx - 1)].reshape(-1, n_ctx - 1)

    @property
    def tail(self) -> Integer[np.ndarray[Any, Any], " remainder"]:
        """The tokens after the last full row."""
        return self.stream[len(self) * (self.n_ctx - 1) :]

    @property
    def remainder(self) -> int:
        """How many tokens are in no row: fewer than n_ctx - 1."""
        return len(self.stream) % (self.n_ctx - 1)

    def __len__(self) -> int:
        return len(self.stream) // (self.n_ctx - 1)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"tokens": self.batch([row])[0]}

    def batch(self, rows: Sequence[int]) -> Int[Tensor, "batch n_ctx"]:
        """Several rows as one tensor of ids."""
        taken = np.full((len(rows), self.n_ctx), self.bos_token_id, np.int64)
        taken[:, 1:] = self._grid[np.asarray(rows, np.int64)]
        return t.from_numpy(taken)


def pack(tokenizer: Tokenizer, documents: Sequence[str], n_ctx: int) -> Rows:
    """The rows of all documents, each followed by one end-of-text; no token is lost.

    Raises: PvmlError if there is no text, or too little for one row.
    """
    if not any(documents):
        raise PvmlError(
            f"nothing to cut into rows: all of the {len(documents):,} documents are empty"
            if documents
            else "nothing to cut into rows: there are no documents"
        )
    return Rows(token_stream(tokenizer, documents), n_ctx, tokenizer.bos_token_id)


class Batches(Sampler[list[int]]):
    """Which rows each training step takes: `batches(step)` is a pure function of seed and step.

    The steps go through one permutation of all rows, then through the next; a batch that the end of
    one cuts short is filled from the next, so each pass visits every row once.

    Iterating (as a DataLoader's batch_sampler) gives ceil(n_rows / batch_size) steps and goes on
    where the last iteration stopped, so an epoch that is capped does not see the same rows again.
    """

    def __init__(self, n_rows: int, batch_size: int, seed: int):
        if n_rows < 1 or batch_size < 1:
            raise PvmlError(
                f"batches need at least 1 row and a batch_size of at least 1, "
                f"got {n_rows} rows and batch_size {batch_size}"
            )
        if not 0 <= seed < 1 << 32:
            raise PvmlError(f"seed must lie between 0 and {(1 << 32) - 1}, got {seed}")
        self.n_rows = n_rows
        self.batch_size = batch_size
        self.seed = seed
        self.next_step = 0
        self._orders: dict[int, Int[np.ndarray[Any, Any], " n_rows"]] = {}

    def __call__(self, step: int) -> list[int]:
        """The row ids of step 0, 1, 2, ..."""
        if step < 0:
            raise PvmlError(f"steps count from 0, got {step}")
        at, end = step * self.batch_size, (step + 1) * self.batch_size
        rows: list[int] = []
        while at < end:
            turn, place = divmod(at, self.n_rows)
            taken = self._order(turn)[place : place + end - at].tolist()
            rows += taken
            at += len(taken)
        return rows

    def __len__(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            step, self.next_step = self.next_step, self.next_step + 1
            yield self(step)

    def _order(self, turn: int) -> Int[np.ndarray[Any, Any], " n_rows"]:
        if turn not in self._orders:
            self._orders = {k: v for k, v in self._orders.items() if k == turn - 1}
            # RandomState's numbers never change between NumPy versions; default_rng's may, and then
            # a resumed run would take other rows.
            order = np.random.RandomState([self.seed, turn]).permutation(self.n_rows)
            self._orders[turn] = order
        return self._orders[turn]
