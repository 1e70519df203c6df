"""A token stream cut into rows that a model reads, and the order in which training takes them.

Every token is in a row, or in what is reported as cut off or as remainder. Making the stream is in
`stream.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch as t
from jaxtyping import Int, Integer
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from pvml.data.args import Packing
from pvml.data.stream import TokenStream, token_stream
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of n_ctx tokens: BOS, then n_ctx - 1 consecutive tokens of the stream.

    packing "stream": each row goes on where the one before ended. "document": each row starts with
    the document that did not fit into the row before, so every document is whole in some row, but
    for what is cut off of one longer than a row.

    As a dataset, row i is {"tokens": (n_ctx,)}.

    Raises: PvmlError for an n_ctx below 2, a packing that is none of the two, ids that are no whole
    numbers from 0, or a stream too short for one row.
    """

    def __init__(
        self,
        stream: TokenStream | Integer[np.ndarray[Any, Any], " n_tokens"],
        n_ctx: int,
        bos_token_id: int,
        packing: Packing = "stream",
    ):
        """stream: an array's documents are told by the end-of-text, which is BOS, after each."""
        if packing not in get_args(Packing):
            raise PvmlError(
                f"packing must be one of {', '.join(get_args(Packing))}, got {packing!r}"
            )
        _require_whole("n_ctx", n_ctx)
        if n_ctx < 2:
            raise PvmlError(
                f"n_ctx must be at least 2 to cut rows, got {n_ctx}: a row is BOS and n_ctx - 1 "
                f"tokens"
            )
        if isinstance(stream, np.ndarray):
            stream = TokenStream.of_ids(stream, bos_token_id)
        if len(stream) < n_ctx - 1:
            raise PvmlError(
                f"{len(stream):,} tokens do not fill one row: n_ctx {n_ctx:,} takes {n_ctx - 1:,} "
                f"besides BOS. Give more text, or lower n_ctx to at most {len(stream) + 1:,}"
            )
        self.stream = stream
        self.n_ctx = n_ctx
        self.bos_token_id = bos_token_id
        self.packing: Packing = packing
        width = n_ctx - 1
        if packing == "stream":
            self._row_starts, between = None, np.zeros(0, np.int64)
            self._n_rows = len(stream) // width
            end = self._n_rows * width
        else:
            self._row_starts = _starts_at_documents(stream.starts, len(stream), width)
            self._n_rows = len(self._row_starts)
            between, end = np.diff(self._row_starts) - width, int(self._row_starts[-1]) + width
        self.remainder = len(stream) - end
        """Tokens after the last full row."""
        self.cut_off = int(between.clip(min=0).sum())
        """Tokens between two rows, in none: of documents longer than a row. 0 for "stream"."""
        self.repeated = int(-between.clip(max=0).sum())
        """Tokens in two rows: a document that does not fit begins the next one. 0 for "stream"."""

    @property
    def tail(self) -> Integer[np.ndarray[Any, Any], " remainder"]:
        """The remainder's tokens."""
        start = np.array([len(self.stream) - self.remainder])
        return self.stream.take(start, self.remainder).reshape(-1)

    @cached_property
    def identity(self) -> str:
        """What tells one set of rows from another: number, length, packing, a hash of the ids."""
        packed = ", each with a document that did not fit" if self.packing == "document" else ""
        return f"{len(self):,} rows of {self.n_ctx}{packed}, tokens {self.stream.digest}"

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"tokens": self.batch([row])[0]}

    def batch(self, rows: Sequence[int]) -> Int[Tensor, "batch n_ctx"]:
        """Several rows as one tensor of ids, read from where the stream lies.

        Raises: IndexError for a row that is not there; PvmlError for a row id that is not whole.
        """
        taken = np.full((len(rows), self.n_ctx), self.bos_token_id, np.int64)
        taken[:, 1:] = self.stream.take(self.starts(rows), self.n_ctx - 1)
        return t.from_numpy(taken)

    def starts(self, rows: Sequence[int] | None = None) -> Int[np.ndarray[Any, Any], " n"]:
        """Where (tokens) in the stream these rows start, or all.

        Raises: IndexError for a row that is not there; PvmlError for a row id that is not whole.
        """
        given = np.asarray(range(len(self)) if rows is None else rows)
        if given.size and not np.issubdtype(given.dtype, np.integer):
            raise PvmlError(f"row ids must be whole numbers, got {given.dtype}: {given.tolist()}")
        wanted = given.astype(np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"rows count from 0 to {len(self) - 1}, got {list(wanted)}")
        if self._row_starts is None:
            return wanted * (self.n_ctx - 1)
        return self._row_starts[wanted]


def _starts_at_documents(
    starts: Int[np.ndarray[Any, Any], " n_documents"], n_tokens: int, width: int
) -> Int[np.ndarray[Any, Any], " n_rows"]:
    """Where each row starts if it starts with the document that the row before does not hold."""
    # for each document, the last one that starts within a row that starts with it, or just behind
    reached = np.searchsorted(starts, starts + width, "right") - 1
    following = np.maximum(reached, np.arange(1, len(starts) + 1)).data
    n_full = int(np.searchsorted(starts, n_tokens - width, "right"))

    def documents() -> Iterator[int]:
        document = 0
        while document < n_full:
            yield document
            document = following[document]

    return starts[np.fromiter(documents(), np.int64)]


def pack(
    tokenizer: Tokenizer, documents: Iterable[str], n_ctx: int, packing: Packing = "stream"
) -> Rows:
    """The rows of all documents, each followed by one end-of-text; see `Rows` for the packings.

    Raises: PvmlError if there is no text, or too little for one row.
    """
    stream = token_stream(tokenizer, documents)
    if stream.n_bytes is None or not stream.n_bytes.any():
        raise PvmlError(
            f"nothing to cut into rows: all of the {len(stream.starts):,} documents are empty"
            if len(stream.starts)
            else "nothing to cut into rows: there are no documents"
        )
    return Rows(stream, n_ctx, tokenizer.bos_token_id, packing)


def _require_whole(name: str, number: int) -> None:
    if not isinstance(number, int | np.integer) or isinstance(number, bool):
        raise PvmlError(f"{name} must be a whole number, got {number!r}")


class Batches(Sampler[list[int]]):
    """Which rows each training step takes: `batches(step)` is a pure function of seed and step.

    The steps go through one permutation of all rows, then through the next; a batch that the end of
    one cuts short is filled from the next, so each pass visits every row once.

    Iterating (as a DataLoader's batch_sampler) gives ceil(n_rows / batch_size) steps and goes on
    where the last iteration stopped, so an epoch that is capped does not see the same rows again.
    """

    def __init__(self, n_rows: int, batch_size: int, seed: int):
        """Raises: PvmlError for what is not whole, no rows, an empty batch, too large a seed."""
        for name, number in (("n_rows", n_rows), ("batch_size", batch_size), ("seed", seed)):
            _require_whole(name, number)
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
        """The row ids of step 0, 1, 2, ...

        Raises: PvmlError for a step below 0, not whole, or in a pass beyond the 2**32nd.
        """
        _require_whole("step", step)
        if step < 0:
            raise PvmlError(f"steps count from 0, got {step}")
        at, end = step * self.batch_size, (step + 1) * self.batch_size
        if end > self.n_rows << 32:
            last = (self.n_rows << 32) // self.batch_size - 1
            raise PvmlError(
                f"step {step:,} lies beyond the last that has an order of rows, {last:,}: 2**32 "
                f"passes over {self.n_rows:,} rows, {self.batch_size:,} a step"
            )
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
