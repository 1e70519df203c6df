"""The induction circuit: its two heads, what joins them, and what each part of it is worth.

The lower head notes at each position which token stood before it; the upper one looks for the place
whose note is the current token, and copies the token there. Sources: Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits", "induction heads"; Olsson et al. 2022,
arXiv:2209.11895. All ablations here put each head's mean at each position in its place, over other
random sequences of the same kind (over the same rows where natural text is read). What heads are
worth is shown beside what other heads of the model, as many, are worth in the same way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.ablation import all_heads, head_means
from pvml.circuits.heads.names import USUAL, HeadScore, best_heads
from pvml.circuits.heads.random_heads import N_RANDOM
from pvml.circuits.heads.scores import head_scores
from pvml.circuits.held import Head
from pvml.circuits.induction.context import ContextLosses, context_losses
from pvml.circuits.induction.repeats import RepeatLosses
from pvml.circuits.induction.workbench import Workbench, Worth
from pvml.circuits.weights.composition import CompositionScore, composition_scores
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

LEGEND = (
    "±: of the advantage and of the in-context-learning score the standard error, between "
    "sequences or rows; beside a head's score the spread (standard deviation) of its null, between "
    "sequences for shuffled tokens and between heads for random ones; beside a composition's that "
    "between rotations; of other heads the spread between them. p: of the advantage against the "
    "same tokens in another order, of the in-context-learning score against the late tokens with "
    "no more context than the early ones have, of each other score against the null that it "
    "follows."
)
"""What stands behind a number, in words."""


@dataclass(frozen=True, kw_only=True)
class InductionStudy:
    """What there is of an induction circuit in a model.

    Where no head has earned a name, or repetition is of no use to the model, there is nothing to
    take out, and the parts about it are empty.
    """

    repeats: RepeatLosses
    """Of the whole model."""
    context: ContextLosses | None
    """The same on natural text by position; None if none was given."""
    previous: tuple[HeadScore, ...]
    """The previous-token heads, strongest first."""
    induction: tuple[HeadScore, ...]
    """The induction heads, strongest first."""
    nearest: tuple[HeadScore, ...]
    """Of each of these kinds that no head has earned the name of, the nearest to one."""
    compositions: tuple[CompositionScore, ...]
    """K-composition of each induction head with each previous-token head below it, largest first.
    """
    lost: tuple[Worth, ...]
    """What goes with each of these heads alone, and with all of a kind, where they are several."""
    cut: tuple[Worth, ...]
    """What goes where the circuit's induction head no longer reads its previous-token head for its
    keys, and all else does; and where all induction heads no longer read all of the other kind.
    """
    kept: Worth | None
    """What the minimal circuit keeps: one head of each, all others ablated."""
    context_alone: ContextLosses | None
    """`context` with the minimal circuit alone; None without text or circuit."""
    searched: Worth | None
    """The smallest circuit that a search found to keep what was asked of it; None if not asked."""

    @property
    def circuit(self) -> tuple[Head, ...]:
        """The minimal circuit: the previous-token head and the induction head; or nothing."""
        return () if self.kept is None else self.kept.heads

    @property
    def context_kept(self) -> float | None:
        """The share that the minimal circuit keeps of what a longer context is worth to the model.

        None without text or circuit, or where a longer context is worth nothing.
        """
        if self.context is None or self.context_alone is None or not self.context.beyond:
            return None
        return self.context_alone.gain / self.context.gain

    def __str__(self) -> str:
        lines = [f"Random tokens that repeat: {self.repeats}."]
        if self.context:
            lines.append(f"Natural text: {self.context}.")
        for kind, found in (("Previous-token", self.previous), ("Induction", self.induction)):
            if found:
                lines.append(f"{kind} heads (layer.head): {', '.join(map(str, found))}.")
        lines += [
            f"No {score.kind} head formed: the nearest is {score}: {score.verdict}."
            for score in self.nearest
        ]
        lines += [f"{score}." for score in self.compositions]
        if self.lost:
            lines.append("Of the advantage goes")
            lines += [f"  {worth}" for worth in (*self.lost, *self.cut)]
        if self.kept or self.searched:
            lines.append("Of the advantage stays")
            lines += [f"  {worth}" for worth in (self.kept, self.searched) if worth]
        if self.context and self.context_kept is not None:
            lines.append(
                f"Of the {self.context.gain:.2f} nats that a longer natural context is worth, "
                f"{self.context_kept:.0%} stay with the circuit alone."
            )
        return "\n".join(lines)


@t.no_grad()
def study_induction(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    *,
    natural: bool = True,
    search: float | None = None,
    n_sequences: int = 64,
    n_random: int = N_RANDOM,
    seed: int = 0,
) -> InductionStudy:
    """The heads of an induction circuit, what joins them, and what each part of it is worth.

    tokens: rows, each with BOS first: heads are looked for in them, the words that repeat are drawn
    from them, and if they are `natural` text the in-context-learning score is of all of them.
    search: also look for a small set of heads that alone keeps this share of the advantage (above 0
    to 1), which takes a pass for every head at least twice. n_sequences: random ones to test on;
    the means are over as many others. n_random: random heads beside each, as `head_scores` has it.

    The circuit's two heads: the induction head with the highest score, and of the previous-token
    heads below it the one with the highest K-composition with it.

    Raises: PvmlError as `head_scores`, or for a `search` that is no share.
    """
    if search is not None and not 0 < search <= 1:
        raise PvmlError(f"search must be a share above 0 and up to 1, got {search}")
    scores = circuit_scores(model, tokens, n_sequences, n_random, seed)
    best = best_heads(scores)
    previous, induction = ([s for s in best if s.beyond and s.kind == kind] for kind, _ in USUAL)
    bench = Workbench.set_up(model, tokens, n_sequences, seed)
    context = context_losses(model, tokens, seed=seed) if natural else None
    joined = _compositions(model, previous, induction, seed)
    pair = next((s for s in joined if s.reader == _at(induction[0])), None)
    heads = (pair.writer, pair.reader) if pair else ()
    apart = [_at(score) for score in (*previous, *induction)]
    measurable = bench.whole.beyond
    found = bench.search(search) if search is not None and measurable else None
    return InductionStudy(
        repeats=bench.whole,
        context=context,
        previous=tuple(previous),
        induction=tuple(induction),
        nearest=tuple(score for score in best if not score.beyond),
        compositions=tuple(joined),
        lost=tuple(
            bench.without(gone, apart)
            for gone in (_to_take_out(previous, induction) if measurable else ())
        ),
        cut=tuple(
            bench.link_cut("K", writers, readers, apart)
            for writers, readers in (_links(joined, heads) if heads and measurable else ())
        ),
        kept=bench.with_only(heads, apart) if heads and measurable else None,
        context_alone=_context_alone(model, tokens, heads, seed) if context and heads else None,
        searched=None if found is None else bench.with_only(found),
    )


def circuit_scores(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    n_sequences: int,
    n_random: int,
    seed: int,
) -> list[HeadScore]:
    """The scores that a circuit's heads are named for, both nulls beside them.

    Raises: PvmlError as `head_scores`.
    """
    return [
        score
        for kind, text in USUAL
        for score in head_scores(
            model,
            tokens,
            kinds=[kind],
            texts=[text],
            seed=seed,
            n_sequences=n_sequences,
            n_random=n_random,
        )
    ]


def _at(score: HeadScore) -> Head:
    return score.layer, score.head


def _to_take_out(
    previous: Sequence[HeadScore], induction: Sequence[HeadScore]
) -> Iterator[list[Head]]:
    for score in (*induction, *previous):
        yield [_at(score)]
    for alike in (induction, previous):
        if len(alike) > 1:
            yield [_at(score) for score in alike]


def _links(
    joined: Sequence[CompositionScore], pair: Sequence[Head]
) -> Iterator[tuple[list[Head], list[Head]]]:
    """The circuit's own link, and all of its kind that could be, where they are more."""
    writer, reader = pair
    yield [writer], [reader]
    readers = sorted({score.reader for score in joined})
    lowest = min(layer for layer, _ in readers)
    writers = sorted({score.writer for score in joined if score.writer[0] < lowest})
    if len(writers) * len(readers) > 1:
        yield writers, readers


def _compositions(
    model: Transformer,
    previous: Sequence[HeadScore],
    induction: Sequence[HeadScore],
    seed: int,
) -> list[CompositionScore]:
    below, above = {_at(score) for score in previous}, {_at(score) for score in induction}
    if not any(low[0] < high[0] for low in below for high in above):
        return []
    found = [
        score
        for score in composition_scores(model, seed=seed)
        if score.kind == "K" and score.writer in below and score.reader in above
    ]
    return sorted(found, key=lambda score: -score.score)


def _context_alone(
    model: Transformer, tokens: Int[Tensor, "batch posn"], heads: Sequence[Head], seed: int
) -> ContextLosses:
    others = [head for head in all_heads(model) if head not in heads]
    return context_losses(model, tokens, others, head_means(model, tokens), seed=seed)
