"""What heads are worth where random tokens repeat, beside what other heads are worth there.

A head is taken out by putting its mean at each position in its place, over other random sequences
of the same kind. Shares are of the repeated-token advantage of the whole model (`repeats.py`).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.ablation import Edge, HeadMeans, ablated, all_heads, cut, head_means, named
from pvml.circuits.heads.patterns import PERIOD, words_of
from pvml.circuits.held import Head
from pvml.circuits.induction.repeats import (
    RepeatLosses,
    Repeats,
    advantage,
    draw_repeats,
    gains,
    repeat_losses,
)
from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer

N_OTHERS = 40
"""Sets of other heads that are tried in the place of some, at most."""
_Link = tuple[Edge, tuple[Head, ...], tuple[Head, ...]]
_SIDES = {"Q": "queries", "K": "keys", "V": "values"}


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What some heads, or a link between two, are worth, beside other heads in their place."""

    what: str
    """What was done, as `without 1.2`."""
    heads: tuple[Head, ...]
    value: float
    """A share of the advantage (above 1 or below 0 where the rest does better or worse), or nats.
    """
    unit: str
    """`of the advantage`, or `nats per token`."""
    null_mean: float | None
    """The mean of the same for other heads, as many; None where there are none."""
    null_spread: float | None
    """Their standard deviation; None where there are fewer than 2."""
    null_most: float | None
    """The largest of them."""
    n_null: int
    """How many were tried."""

    @property
    def ahead(self) -> bool:
        """Whether none of the others comes up to it: a comparison, for a test they are too few."""
        return self.null_most is not None and self.value > self.null_most

    @property
    def null(self) -> str:
        """What other heads did, in words."""
        if self.null_mean is None or self.null_most is None:
            return "there are no other heads to compare with"
        spread = "" if self.null_spread is None else f" ± {self._told(self.null_spread)}"
        return (
            f"other heads, {self.n_null} tried: {self._told(self.null_mean)}{spread}, at most "
            f"{self._told(self.null_most)}"
        )

    def __str__(self) -> str:
        return f"{self.what}: {self._told(self.value)} ({self.null})"

    def _told(self, value: float) -> str:
        return f"{value:z.3f} nats" if self.unit == NATS else f"{value:z.0%}"


SHARE, NATS = "of the advantage", "nats per token"


@dataclass(frozen=True, eq=False)
class Workbench:
    """A model with random repetitions to test it on, and the means of its heads over others."""

    model: Transformer
    repeats: Repeats
    means: HeadMeans
    whole: RepeatLosses
    seed: int
    _cuts: dict[_Link, float] = field(default_factory=dict)

    @classmethod
    def set_up(
        cls, model: Transformer, tokens: Int[Tensor, "batch posn"], n_sequences: int, seed: int
    ) -> "Workbench":
        """tokens: rows of text, each with BOS first, whose words are drawn from.

        Raises: PvmlError for too short a model, or a text of too few words, to repeat anything.
        """
        check_tokens(tokens, model.cfg)
        if len(tokens) == 0:
            raise PvmlError("there are no rows of text to draw words from")
        words, bos = words_of(tokens.cpu()), int(tokens[0, 0])
        period = min(PERIOD, (model.cfg.n_ctx - 1) // 2, len(words))
        drawn = draw_repeats(words, bos, period, 2 * n_sequences, seed)
        repeats = Repeats(
            repeated=drawn.repeated[:n_sequences], reordered=drawn.reordered[:n_sequences]
        )
        return cls(
            model=model,
            repeats=repeats,
            means=head_means(model, drawn.repeated[n_sequences:]),
            whole=repeat_losses(model, repeats, seed=seed),
            seed=seed,
        )

    def share(self, gone: Sequence[Head]) -> float:
        """What stays of the repeated-token advantage without these heads."""
        return advantage(self.model, self.repeats, gone, self.means) / self.whole.advantage

    def without(self, heads: Sequence[Head], apart: Sequence[Head] = ()) -> Worth:
        """What of the advantage goes with these heads. apart: those that are no comparison."""
        return self._beside(
            f"without {named(heads)}", heads, apart, lambda some: 1 - self.share(some)
        )

    def with_only(self, heads: Sequence[Head], apart: Sequence[Head] = ()) -> Worth:
        """What of the advantage stays with these heads alone. apart: as `without` has it."""
        return self._beside(
            f"with {named(heads)} alone",
            heads,
            apart,
            lambda some: self.share([head for head in all_heads(self.model) if head not in some]),
        )

    def dearer_without(self, heads: Sequence[Head]) -> Worth:
        """By how many nats a token costs more the second time without these heads."""

        def cost(some: Sequence[Head]) -> float:
            with ablated(self.model, some, self.means):
                _, again = gains(self.model, self.repeats.repeated)
            return float(again.mean()) - self.whole.again

        return self._beside(f"without {named(heads)}", heads, (), cost, NATS)

    def link_cut(
        self,
        edge: Edge,
        writers: Sequence[Head],
        readers: Sequence[Head],
        apart: Sequence[Head] = (),
    ) -> Worth:
        """What of the advantage goes where the readers no longer read the writers on this side.

        Beside the same for as many other heads below. apart: those that are no comparison.
        """
        lowest = min(layer for layer, _ in readers)
        below = [head for head in all_heads(self.model) if head[0] < lowest]
        free = [head for head in below if head not in writers and head not in apart]
        others = sets_of(free, len(writers), self.seed)
        return _worth(
            f"{_SIDES[edge]} of {named(readers)} without {named(writers)}",
            (*writers, *readers),
            1 - self._share_cut(edge, writers, readers),
            [1 - self._share_cut(edge, some, readers) for some in others],
            SHARE,
        )

    def search(self, least: float) -> list[Head]:
        """A small set of heads that keeps at least this share of the advantage, alone.

        Greedy: beginning with the head that matters least alone, each is ablated for good if what
        stays is still enough, until none can be. So no head of the answer can be left out; another
        set may still be smaller.
        """
        kept = all_heads(self.model)
        kept.sort(key=lambda head: 1 - self.share([head]))
        gone: list[Head] = []
        while True:
            before = len(gone)
            for head in list(kept):
                if self.share([*gone, head]) >= least:
                    kept.remove(head)
                    gone.append(head)
            if len(gone) == before:
                return sorted(kept)

    def _share_cut(self, edge: Edge, writers: Sequence[Head], readers: Sequence[Head]) -> float:
        key = edge, tuple(writers), tuple(readers)
        if key not in self._cuts:
            with ExitStack() as links:
                for reader in readers:
                    links.enter_context(cut(self.model, writers, reader, edge, self.means))
                stays = advantage(self.model, self.repeats)
            self._cuts[key] = stays / self.whole.advantage
        return self._cuts[key]

    def _beside(
        self,
        what: str,
        heads: Sequence[Head],
        apart: Sequence[Head],
        measure: Callable[[Sequence[Head]], float],
        unit: str = SHARE,
    ) -> Worth:
        free = [head for head in all_heads(self.model) if head not in heads and head not in apart]
        others = sets_of(free, len(heads), self.seed)
        return _worth(what, heads, measure(heads), [measure(some) for some in others], unit)


def sets_of(heads: Sequence[Head], size: int, seed: int) -> list[tuple[Head, ...]]:
    """Different sets of so many of these heads: all there are, or N_OTHERS at random."""
    if size and comb(len(heads), size) <= N_OTHERS:
        return list(combinations(heads, size))
    rng, drawn = t.Generator().manual_seed(seed), set[tuple[Head, ...]]()
    while size and len(drawn) < N_OTHERS:
        order = t.randperm(len(heads), generator=rng)[:size].tolist()
        drawn.add(tuple(heads[i] for i in sorted(order)))
    return sorted(drawn)


def _worth(
    what: str, heads: Sequence[Head], value: float, null: Sequence[float], unit: str
) -> Worth:
    others = t.tensor(null, dtype=t.float64)
    return Worth(
        what=what,
        heads=tuple(heads),
        value=value,
        unit=unit,
        null_mean=float(others.mean()) if null else None,
        null_spread=float(others.std()) if len(null) > 1 else None,
        null_most=max(null) if null else None,
        n_null=len(null),
    )
