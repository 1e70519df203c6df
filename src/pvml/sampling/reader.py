"""The logits after sequences that grow, with as little work as the window's rule allows.

The one place that knows of the window and of keys and values kept; the sampling loop only asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.data.tokenizer import Ids, row_of_ids
from pvml.errors import PvmlError
from pvml.modules.cache import KVCache
from pvml.modules.matmul_route import fastest_float32
from pvml.modules.packed import PackedWeights
from pvml.modules.transformer import Transformer

Window = Literal["exact", "blocks"]
"""What a model sees of a text that is longer than n_ctx: see `dropped`."""


@dataclass
class _Group:
    """Sequences whose keys and values are in one cache."""

    cache: KVCache | None
    n_read: dict[int, int]
    """Tokens read of each sequence, window or not, in the order of the cache's rows."""
    n_dropped: dict[int, int]
    """Tokens that each sequence's window leaves out."""
    logits: Float[Tensor, "row d_vocab"] = field(default_factory=lambda: t.empty(0, 0))


class Reader:
    """Reads a batch of sequences with a model; each gets what it would get alone.

    keep_first: the first token (BOS) stays in the window. longest: the most tokens that a sequence
    will have. use_cache: keep keys and values for as long as a sequence's window only grows. Once
    it slides, all of it is read anew: every token stands at another position, and, without
    positions too, what later layers keep was computed from streams that had read the tokens that
    are now dropped. packed: what products take.
    """

    def __init__(
        self,
        model: Transformer,
        keep_first: bool,
        longest: int,
        use_cache: bool = True,
        window: Window = "exact",
        packed: PackedWeights | None = None,
    ) -> None:
        self.model, self.keep_first, self.use_cache = model, keep_first, use_cache
        self.n_ctx, self.block = model.cfg.n_ctx, block_of(window, model.cfg.n_ctx)
        self.room = min(self.n_ctx, longest)
        self.packed = packed
        self._groups: list[_Group] = []

    def logits_after(self, sequences: Mapping[int, Sequence[int]]) -> Float[Tensor, "row d_vocab"]:
        """Scores for the token after each sequence, in their order.

        sequences: the whole token ids, by a number that stays the sequence's own from call to call.
        They only ever grow; one that is left out does not come back.
        """
        drop = {n: dropped(len(ids), self.n_ctx, self.block) for n, ids in sequences.items()}
        going = [group for group in self._groups if self._go_on(group, sequences, drop)]
        gone_on = {number for group in going for number in group.n_read}
        together: dict[int, list[int]] = {}
        for number, ids in sequences.items():
            if number not in gone_on:
                # padding would fill a cache early, and have all of it read again
                kind = len(ids) - drop[number] if drop[number] else 0
                together.setdefault(kind, []).append(number)
        going += [self._begin(numbers, sequences, drop) for numbers in together.values()]
        self._groups = [group for group in going if group.cache is not None]
        if len(going) == 1:
            return going[0].logits
        at = {n: row for row, n in enumerate(n for group in going for n in group.n_read)}
        return t.cat([group.logits for group in going])[[at[number] for number in sequences]]

    def _slides(self, ids: Sequence[int]) -> bool:
        """Whether nothing that is read now can be of use at the next step."""
        return not self.use_cache or (self.block == 1 and len(ids) > self.n_ctx)

    def _go_on(
        self, group: _Group, sequences: Mapping[int, Sequence[int]], drop: Mapping[int, int]
    ) -> bool:
        """Read what is new of the group's sequences, if the cache is still theirs and has room."""
        cache = group.cache
        stay = [n for n, kept in group.n_dropped.items() if n in sequences and kept == drop[n]]
        added = {len(sequences[n]) - group.n_read[n] for n in stay}
        if cache is None or len(added) != 1 or cache.length + max(added) > cache.n_ctx:
            return False
        if len(stay) < cache.batch:
            left = [row for row, number in enumerate(group.n_read) if number in stay]
            cache.select(t.tensor(left, device=self.model.device))
        new = [sequences[n][group.n_read[n] :] for n in stay]
        group.n_read = {n: len(sequences[n]) for n in stay}
        group.n_dropped = {n: drop[n] for n in stay}
        group.logits = self._read(new, cache)
        return True

    def _begin(
        self,
        numbers: Sequence[int],
        sequences: Mapping[int, Sequence[int]],
        drop: Mapping[int, int],
    ) -> _Group:
        """Read these sequences' windows whole, into a new cache if the next step can use one."""
        cache = None
        if not self._slides(sequences[numbers[0]]):
            cache = KVCache(
                self.model.cfg,
                batch=len(numbers),
                n_ctx=self.room,
                device=self.model.device,
                dtype=self.model.dtype,
            )
        windows = [
            window_of(sequences[n], self.n_ctx, self.keep_first, self.block) for n in numbers
        ]
        return _Group(
            cache,
            {n: len(sequences[n]) for n in numbers},
            {n: drop[n] for n in numbers},
            self._read(windows, cache),
        )

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
        with routes(self.model, self.packed, tokens):
            # one position of the vocabulary-wide product is wanted, not all of them
            logits: Tensor = self.model.unembed(self.model.stream(tokens, real, cache)[:, -1:])
        return logits[:, 0]


@contextmanager
def routes(
    model: Transformer, packed: PackedWeights | None, tokens: Int[Tensor, "batch posn"]
) -> Iterator[None]:
    """Within it, products for these tokens take the fastest way that there is here."""
    with ExitStack() as chosen:
        # a prompt is read once: weights packed for its many rows would be made for that alone
        if packed is not None and (tokens.shape[1] == 1 or packed.kind == "int8"):
            chosen.enter_context(packed.used())
        # what is too small to be packed is too small for a single row to gain by that route
        if packed is None or tokens.numel() > 1:
            chosen.enter_context(fastest_float32(model.device, model.dtype))
        yield


def known_row(ids: Ids, d_vocab: int) -> list[int]:
    """The ids of one text to go on from, as a list.

    Raises: PvmlError for none, for more than one row, or for what is no id of the vocabulary.
    """
    row = row_of_ids(ids)
    if not row:
        raise PvmlError("an empty prompt leaves nothing to go on from: keep prepend_bos")
    for token in row:
        if not 0 <= token < d_vocab:
            raise PvmlError(
                f"token id {token} is outside the vocabulary: ids run from 0 to {d_vocab - 1}"
            )
    return row


def block_of(window: Window, n_ctx: int) -> int:
    """How many tokens leave the window at a time: one, or with "blocks" a quarter of n_ctx.

    Raises: PvmlError for another word.
    """
    if window not in ("exact", "blocks"):
        raise PvmlError(f"window must be exact or blocks, got {window!r}")
    return 1 if window == "exact" else max(1, n_ctx // 4)


def dropped(length: int, n_ctx: int, block: int = 1) -> int:
    """How many tokens the window of a text leaves out: whole blocks, as few as bring it to n_ctx.

    With block 1 the model sees n_ctx tokens of every longer text. With larger ones it sees between
    n_ctx - block + 1 and n_ctx, depending on the text's length alone: `length - dropped(length)`.
    """
    return -(-max(length - n_ctx, 0) // block) * block


def window_of(ids: Sequence[int], n_ctx: int, keep_first: bool, block: int = 1) -> list[int]:
    """What the model sees of ids: the last ones; with keep_first, ids[0] (BOS) and the last ones.

    All of them up to n_ctx, then `dropped` fewer.
    """
    out = dropped(len(ids), n_ctx, block)
    if keep_first and out:
        return [ids[0], *ids[out + 1 :]]
    return list(ids[out:])
