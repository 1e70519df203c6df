"""Skip-trigrams of a head, `[source] ... [destination] -> [output]`, read off its QK and OV.

What a head adds to an output's logit through one source is a product: the attention that the
destination pays the source, times what OV makes of the source for that output. The strongest
products of a whole vocabulary are found without a table of it: no pair can be among the k strongest
of a source unless the places of its factors, in the orders of their sizes, multiply to at most k.
Source of skip-trigrams: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits",
"interpreting one-layer models as skip-trigrams". What a text says to them is in
`evidence.py`, and what they are worth to the loss in `losses.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as t
from jaxtyping import Int, Shaped
from torch import Tensor

from pvml.circuits.ablation import all_heads
from pvml.circuits.held import Head, require_head
from pvml.circuits.skips.reading import Competition, SkipReading, read_head, what_holds
from pvml.circuits.weights.blocks import MEMORY
from pvml.circuits.weights.factored import FactoredMap
from pvml.circuits.weights.maps import Norms, Reading
from pvml.circuits.weights.streamed import RowTop, scan
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

Told = Callable[[str, int, int], object]
"""Told what is being scanned, as `attention of 0.3`, how many of its rows passed, of how many."""

Kept = Shaped[np.ndarray[Any, Any], " n"]
_KEPT = [
    ("source", "i8"),
    ("by", "i8"),  # the place of the destination among those asked, and of the output
    ("to", "i8"),
    ("attention", "f8"),
    ("logit", "f8"),
]
_BYTES_PER_PAIR = 48
"""Of a pair of factors on its way into the ranking."""


@dataclass(frozen=True, kw_only=True)
class SkipTrigram:
    """A source that a head finds from a destination, and what it then says."""

    head: Head
    """Layer and head, from 0."""
    source: int
    """Token ids, as the two below."""
    destination: int
    output: int
    attention: float
    """Share of the destination's attention that the source gets in the competition (0 to 1)."""
    logit: float
    """What OV adds to the output's logit for a whole share, over its mean for all outputs, in
    `unit`."""
    texts: tuple[str, str, str] | None = None
    """The three tokens as text, where a tokenizer was given."""
    unit: str = "nats"
    """Of the logit and the effect; `nats x std` where a LayerNorm's 1/std is left out."""

    @property
    def effect(self) -> float:
        """What the head adds to the output's logit, over its mean for all outputs."""
        return self.attention * self.logit

    @property
    def name(self) -> str:
        """As `' keep' ... ' in' -> ' mind'`; with ids where there are no texts."""
        ids = (self.source, self.destination, self.output)
        source, destination, output = map(repr, self.texts or ids)
        return f"{source} ... {destination} -> {output}"

    def __str__(self) -> str:
        layer, head = self.head
        return (
            f"{layer}.{head}: {self.name} {self.effect:+.2f} {self.unit} "
            f"(attention {self.attention:.3f} x logit {self.logit:+.2f})"
        )


@dataclass(frozen=True, kw_only=True)
class SkipTrigrams:
    """The strongest skip-trigrams of some heads."""

    found: tuple[SkipTrigram, ...]
    """Head by head in the order of layers, each head's strongest first; of equal ones the lowest
    ids of source, destination and output."""
    competition: str
    """What the source competed against for the attention, in words."""
    holds: tuple[str, ...]
    """What was left out or held fixed, in words: under these the effects are what heads do."""

    def of(self, head: Head) -> tuple[SkipTrigram, ...]:
        """Those of one head, the strongest first."""
        return tuple(trigram for trigram in self.found if trigram.head == head)

    def __str__(self) -> str:
        lines = [str(trigram) for trigram in self.found] or ["No head promotes any skip-trigram."]
        return "\n".join(
            [*lines, f"Competition: {self.competition}.", f"Holds: {'; '.join(self.holds)}."]
        )


@t.no_grad()
def find_skip_trigrams(
    model: Transformer,
    heads: Sequence[Head] | None = None,
    *,
    top: int = 10,
    per_source: int | None = None,
    sources: Sequence[int] | None = None,
    destinations: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    competition: Competition | None = None,
    norms: Norms = "folded",
    memory: int = MEMORY,
    tokenizer: Tokenizer | None = None,
    tell: Told | None = None,
) -> SkipTrigrams:
    """The `top` skip-trigrams that each head promotes most, of all those of the vocabulary.

    heads: all of the model unless given. per_source: at most so many with the same source.
    sources, destinations, outputs: only these token ids; what competes for attention, and what an
    output's logit is centred over, stays the whole vocabulary. competition: unless given, half of
    n_ctx tokens, drawn evenly from the vocabulary. memory: bytes that may be held beside the model
    and a head's factors. tokenizer: for the tokens' texts.

    The effect is exactly what the head adds to the logit (less its mean over the vocabulary) if the
    context is what the competition says and what is in `holds` does hold. Only effects above 0 are
    told, so there may be fewer than `top`.

    Raises: PvmlError for a head or a token id that is not there, a list that is empty, a `top` or
        `per_source` below 1, a competition of another vocabulary, or too little memory.
    """
    for name, number in (("top", top), ("per_source", per_source)):
        if number is not None and number < 1:
            raise PvmlError(f"{name} must be at least 1, got {number}")
    chosen = sorted({require_head(model, head) for head in (heads or [])})
    if heads is None:
        chosen = all_heads(model)
    if not chosen:
        raise PvmlError("there is nothing to mine: the model has no heads, or none was given")
    competition = competition or Competition(n_others=max(1, model.cfg.n_ctx // 2))
    competition.require_fits(model.cfg.d_vocab)
    reading = Reading(model, norms, biases=True)
    asked = [
        _asked(ids, what, model.cfg.d_vocab)
        for ids, what in ((sources, "source"), (destinations, "destination"), (outputs, "output"))
    ]
    found: list[SkipTrigram] = []
    for head in chosen:
        seen = read_head(reading, head)
        found += _of_head(
            seen, asked, competition, top, min(per_source or top, top), memory, tokenizer, tell
        )
    return SkipTrigrams(
        found=tuple(found), competition=str(competition), holds=what_holds(reading, chosen)
    )


def _asked(ids: Sequence[int] | None, what: str, d_vocab: int) -> Int[Tensor, " n"]:
    """The ids in question, in their order and each once: all, or those given."""
    if ids is None:
        return t.arange(d_vocab)
    known = sorted(set(ids))
    if not known or known[0] < 0 or known[-1] >= d_vocab:
        raise PvmlError(
            f"{what} tokens must be ids from 0 to {d_vocab - 1}, at least one, got {known[:5]}"
        )
    return t.tensor(known)


def _of_head(
    reading: SkipReading,
    asked: Sequence[Int[Tensor, " _"]],
    competition: Competition,
    top: int,
    per_source: int,
    memory: int,
    tokenizer: Tokenizer | None,
    tell: Told | None,
) -> list[SkipTrigram]:
    """One head's strongest, the strongest first."""
    sources, destinations, outputs = (ids.to(reading.queries.device) for ids in asked)
    name = "{}.{}".format(*reading.head)

    def telling(what: str, before: int, of: int) -> Callable[[int, int], object] | None:
        if tell is None:
            return None
        return lambda done, _: tell(f"{what} of {name}", before + done, of)

    against = reading.log_competition(
        destinations, competition, memory, telling("competition", 0, len(destinations))
    )
    excess, writes = reading.excess(sources, destinations, against), reading.writes(outputs)
    pairs = _pairs(min(per_source, top))
    depth = int(pairs.max()) + 1
    a_source = 2 * depth * (excess.left.element_size() + 8) + len(pairs) * _BYTES_PER_PAIR
    at_once = max(1, memory // 2 // a_source)
    best = _Ranking(top, per_source)
    for first in range(0, len(sources), at_once):
        some = slice(first, first + at_once)
        attended, written = RowTop(depth), RowTop(depth)
        for what, left, right, statistic in (
            ("attention", excess.left[some], excess.right, attended),
            ("writing", writes.left[sources[some]], writes.right, written),
        ):
            scan(
                FactoredMap(left, right),
                statistic,
                memory=memory // 2,
                tell=telling(what, first, len(sources)),
            )
        best.add(sources[some], attended, written, pairs)
    return [
        SkipTrigram(
            head=reading.head,
            source=ids[0],
            destination=ids[1],
            output=ids[2],
            attention=attention,
            logit=logit,
            texts=None if tokenizer is None else _texts(tokenizer, ids),
            unit=reading.unit,
        )
        for *ids, attention, logit in zip(
            best.best["source"].tolist(),
            destinations[t.from_numpy(best.best["by"])].tolist(),
            outputs[t.from_numpy(best.best["to"])].tolist(),
            best.best["attention"].tolist(),
            best.best["logit"].tolist(),
            strict=True,
        )
    ]


def _texts(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, str, str]:
    source, destination, output = (
        tokenizer.decode([one]) if one < tokenizer.d_vocab else f"<{one}>" for one in ids
    )
    return source, destination, output


def _pairs(k: int) -> Int[Tensor, "n 2"]:
    """Places of two lists, from 0, that the k largest products can come from."""
    return t.tensor([(i, j) for i in range(k) for j in range(k // (i + 1))])


class _Ranking:
    """The strongest products so far."""

    def __init__(self, top: int, per_source: int) -> None:
        self._top, self._per_source = top, per_source
        self.best = np.zeros(0, _KEPT)

    def add(
        self,
        sources: Int[Tensor, " n"],
        attended: RowTop,
        written: RowTop,
        pairs: Int[Tensor, "n_pairs 2"],
    ) -> None:
        """Rank what the lists of these sources make. No source may come twice."""
        inside = (pairs < t.tensor([attended.ids.shape[1], written.ids.shape[1]])).all(1)
        first, second = pairs[inside].to(sources.device).unbind(1)
        shares, logits = attended.values.double().sigmoid(), written.values.double()
        # each source has a best one, so what too many of these beat cannot be among the strongest
        bests = shares[:, 0] * logits[:, 0]
        least = bests.topk(self._top).values[-1] if len(bests) >= self._top else 0.0
        effects = shares[:, first] * logits[:, second]
        row, pair = ((effects >= least) & (effects > 0)).nonzero(as_tuple=True)
        new = np.zeros(len(row), _KEPT)
        for name, values in (
            ("source", sources[row]),
            ("by", attended.ids[row, first[pair]]),
            ("to", written.ids[row, second[pair]]),
            ("attention", shares[row, first[pair]]),
            ("logit", logits[row, second[pair]]),
        ):
            new[name] = values.cpu().numpy()
        by_source = _strongest_first(np.concatenate([self.best, new]))
        by_source = by_source[np.argsort(by_source["source"], kind="stable")]
        starts = np.searchsorted(by_source["source"], by_source["source"])
        few = by_source[np.arange(len(by_source)) - starts < self._per_source]
        self.best = _strongest_first(few)[: self._top]


def _strongest_first(kept: Kept) -> Kept:
    """Of equal effects the lowest ids of source, destination, output."""
    effects = kept["attention"] * kept["logit"]
    return kept[np.lexsort((kept["to"], kept["by"], kept["source"], -effects))]
