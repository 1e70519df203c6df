"""The logits after sequences that grow, with as little work as is exact.

The one place that knows of the window and of keys and values kept; the sampling loop only asks.
"""

from collections.abc import Mapping, Sequence

import torch as t
from jaxtyping import Float
from torch import Tensor

from pvml.modules.cache import KVCache
from pvml.modules.transformer import Transformer


class Reader:
    """Reads a batch of sequences with a model; each gets what it would get alone.

    keep_first: the first token (BOS) stays in the window. longest: the most tokens that a sequence
    will have. use_cache: keep keys and values while a sequence fits into the window; once the
    window slides, every token stands at another position, so all of it is read anew at each step.
    """

    def __init__(
        self, model: Transformer, keep_first: bool, longest: int, use_cache: bool = True
    ) -> None:
        self.model, self.keep_first, self.use_cache = model, keep_first, use_cache
        self.n_ctx = model.cfg.n_ctx
        self.room = min(self.n_ctx, longest)
        self.cache: KVCache | None = None
        self.n_read: dict[int, int] = {}
        """By the number of each sequence in the cache, in the order of its rows: tokens read."""

    def logits_after(self, sequences: Mapping[int, Sequence[int]]) -> Float[Tensor, "row d_vocab"]:
        """Scores for the token after each sequence, in their order.

        sequences: the whole token ids, by a number that stays the sequence's own from call to call.
        They only ever grow; one that is left out does not come back.
        """
        fitting = {
            number: ids
            for number, ids in sequences.items()
            if self.use_cache and len(ids) <= self.n_ctx
        }
        others = [
            window_of(ids, self.n_ctx, self.keep_first)
            for number, ids in sequences.items()
            if number not in fitting
        ]
        kept = self._go_on(fitting) if fitting else None
        if kept is None:
            self.cache, self.n_read = None, {}
        read = self._read(others, None) if others else None
        if kept is None or read is None:
            # one of the two is there, for all sequences
            return kept if read is None else read  # type: ignore[return-value]
        rows, place = t.cat([kept, read]), [0, len(fitting)]
        order = []
        for number in sequences:
            group = int(number not in fitting)
            order.append(place[group])
            place[group] += 1
        return rows[order]

    def _go_on(self, sequences: Mapping[int, Sequence[int]]) -> Float[Tensor, "row d_vocab"]:
        """Read what is new, if the cache has room for it; else everything into a new one."""
        added = {len(ids) - self.n_read.get(number, 0) for number, ids in sequences.items()}
        if (
            self.cache is None
            or not sequences.keys() <= self.n_read.keys()
            or len(added) > 1
            or self.cache.length + max(added) > self.room
        ):
            self.cache = KVCache(
                self.model.cfg,
                batch=len(sequences),
                n_ctx=self.room,
                device=self.model.device,
                dtype=self.model.dtype,
            )
            new = list(sequences.values())
        else:
            rows = {number: row for row, number in enumerate(self.n_read)}
            if len(sequences) < len(rows):
                left = [rows[number] for number in sequences]
                self.cache.select(t.tensor(left, device=self.model.device))
            new = [ids[self.n_read[number] :] for number, ids in sequences.items()]
        self.n_read = {number: len(ids) for number, ids in sequences.items()}
        return self._read(new, self.cache)

    def _read(
        self, rows: Sequence[Sequence[int]], cache: KVCache | None
    ) -> Float[Tensor, "row d_vocab"]:
        longest = max(map(len, rows))
        padding = [longest - len(ids) for ids in rows]
        # on the left, so that every row ends at the last position
        padded = [[ids[0]] * n + list(ids) for ids, n in zip(rows, padding, strict=True)]
        tokens = t.tensor(padded, device=self.model.device)
        real = None
        if any(padding):
            real = t.arange(longest) >= t.tensor(padding)[:, None]
        stream = self.model.stream(tokens, real, cache)
        # one position of the vocabulary-wide product is wanted, not all of them
        logits: Tensor = self.model.unembed(stream[:, -1:])
        return logits[:, 0]


def window_of(ids: Sequence[int], n_ctx: int, keep_first: bool) -> list[int]:
    """The last n_ctx of ids; with keep_first, ids[0] (BOS) and the last n_ctx - 1."""
    if len(ids) <= n_ctx:
        return list(ids)
    if keep_first:
        return [ids[0], *ids[len(ids) - (n_ctx - 1) :]]
    return list(ids[len(ids) - n_ctx :])
