"""The search for claims: all scores, those that are claimed, and what the heads are worth.

All kinds of claims about a model come from the same rows and numbers. What a head is worth is
measured where random tokens repeat (`induction/workbench.py`), whatever the kind: there all that
a model can gain comes from its heads.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import get_args

from jaxtyping import Int
from torch import Tensor

from pvml.circuits.claims.claim import Claim, ClaimKind, Figure, Null
from pvml.circuits.claims.inputs import (
    ClaimInputs,
    ClaimSettings,
    ModelIdentity,
    Subject,
    inputs_for,
    opened,
)
from pvml.circuits.claims.sentence import sentence
from pvml.circuits.heads.names import HeadScore
from pvml.circuits.held import Head
from pvml.circuits.induction.study import circuit_scores
from pvml.circuits.induction.workbench import Workbench, Worth
from pvml.circuits.weights.composition import CompositionScore, composition_scores
from pvml.circuits.weights.copying import CopyingScore, copying_scores
from pvml.circuits.weights.maps import Reading
from pvml.errors import PvmlError

Score = HeadScore | CopyingScore | CompositionScore

MOST_LINKS = 20
"""Pairs that compose of which it is measured what their link is worth: the surest."""
_MEANS = "ablated heads write their mean at each position over other random sequences"
_WEAK = (
    "what the head is worth was not measured: this model gains too little where random tokens "
    "repeat ({})"
)


class ClaimSearch:
    """Every kind of claim about one model, from the same rows of tokens and the same numbers."""

    def __init__(
        self,
        model: Subject,
        tokens: Int[Tensor, "batch posn"] | None = None,
        *,
        bos: int | None = None,
        settings: ClaimSettings | None = None,
        inputs: ClaimInputs | None = None,
    ):
        """tokens, bos: as `inputs_for` has them. inputs: of these tokens, if they are known.

        Raises: PvmlError for what is no model, or tokens that it cannot read.
        """
        self.subject = opened(model)
        self.settings = settings or ClaimSettings()
        self.given = tokens
        if inputs is None or tokens is None:
            inputs, tokens = inputs_for(self.subject, tokens, bos, self.settings.seed)
        self.inputs, self.rows = inputs, tokens
        self._scores: dict[ClaimKind, list[Score]] = {}

    @cached_property
    def identity(self) -> ModelIdentity:
        """Of the model."""
        return ModelIdentity.of(self.subject)

    def scores(self, kind: ClaimKind) -> list[Score]:
        """Every head's score of a kind, or every pair's, the furthest beyond its null first.

        Raises: PvmlError for rows or a model too short to ask, or too few random heads.
        """
        if kind not in self._scores:
            self._measure(kind)
        return self._scores[kind]

    def claims(self, kind: ClaimKind) -> list[Claim]:
        """What is claimed: a claim for each score that is `beyond`, or none.

        Raises: PvmlError as `scores`.
        """
        return [self.claim(score) for score in self.scores(kind) if score.beyond]

    def claim(self, score: Score) -> Claim:
        """A score with all that a claim carries, whether it is claimed or not."""
        kind, heads = _kind(score), _heads(score)
        edge = score.kind if isinstance(score, CompositionScore) else None
        effects, notes = self._effects(score) if self.settings.effects else ((), ())
        figure = _figure(score)
        return Claim(
            says=sentence(kind, heads, edge, figure, self.inputs.made),
            kind=kind,
            heads=heads,
            edge=edge,
            scores=(figure,),
            effects=effects,
            notes=(*self._simplifications(kind), *notes),
            inputs=self.inputs,
            model=self.identity,
            settings=self.settings,
            subject=self.subject,
            rows=self.given,
        )

    @cached_property
    def bench(self) -> Workbench | str:
        """Where heads are taken out, or the reason why that cannot be done with this model."""
        try:
            return Workbench.set_up(
                self.subject.model, self.rows, self.settings.n_sequences, self.settings.seed
            )
        except PvmlError as reason:
            return f"what the head is worth could not be measured: {reason}"

    def _measure(self, kind: ClaimKind) -> None:
        model, numbers = self.subject.model, self.settings
        found: dict[ClaimKind, list[Score]] = {kind: []}
        if not model.cfg.n_layers:
            pass
        elif kind == "copying":
            found[kind] += copying_scores(model, n_null=numbers.n_copying, seed=numbers.seed)
        elif kind == "composition":
            found[kind] += composition_scores(model, n_null=numbers.n_rotations, seed=numbers.seed)
        else:
            found = {"previous-token": [], "induction": []}
            for score in circuit_scores(
                model, self.rows, numbers.n_sequences, numbers.n_random, numbers.seed
            ):
                if score.kind in ("previous-token", "induction"):
                    found[score.kind].append(score)
        for each, scores in found.items():
            self._scores[each] = sorted(scores, key=_rank)

    def _effects(self, score: Score) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
        bench = self.bench
        if isinstance(bench, str):
            return (), (bench,)
        if isinstance(score, CompositionScore):
            rank = self.scores("composition").index(score)
            if rank >= MOST_LINKS:
                return (), (
                    f"what this link is worth was measured for the {MOST_LINKS} surest only",
                )
        if not isinstance(score, CopyingScore) and not bench.whole.beyond:
            return (), (_WEAK.format(bench.whole),)
        if isinstance(score, CopyingScore):
            what = "loss of a random token that comes again, risen, the head ablated"
            worths = {what: bench.dearer_without([(score.layer, score.head)])}
        elif isinstance(score, CompositionScore):
            what = "share of the repeated-token advantage lost, this link cut"
            worths = {what: bench.link_cut(score.kind, [score.writer], [score.reader])}
        else:
            what = "share of the repeated-token advantage lost, the head ablated"
            worths = {what: bench.without([(score.layer, score.head)], self._circuit)}
            alike = [_heads(other)[0] for other in self.scores(_kind(score)) if other.beyond]
            if score.beyond and len(alike) > 1:
                what = f"the same, all {len(alike)} {score.kind} heads ablated"
                worths[what] = bench.without(sorted(alike), self._circuit)
        return tuple(_effect(what, worth) for what, worth in worths.items()), (_MEANS,)

    @property
    def _circuit(self) -> list[Head]:
        """The heads that have earned a name in an induction circuit."""
        both = [*self.scores("previous-token"), *self.scores("induction")]
        return [(s.layer, s.head) for s in both if isinstance(s, HeadScore) and s.beyond]

    def _simplifications(self, kind: ClaimKind) -> tuple[str, ...]:
        if kind in ("previous-token", "induction"):
            return ()
        said = Reading(self.subject.model, "folded", biases=False).said("all of this circuit's")
        return ("from the weights alone", *said)


def induction(
    model: Subject,
    tokens: Int[Tensor, "batch posn"] | None = None,
    *,
    bos: int | None = None,
    settings: ClaimSettings | None = None,
) -> list[Claim]:
    """A claim for each induction head, the surest first; none where no head earned the name.

    tokens: rows that words are drawn from, each with BOS first. Unset: the built-in stories if the
    model came with a tokenizer (from `pvml.load`), else random tokens behind `bos`.

    Raises: PvmlError for what is no model, or rows or a model too short to ask.
    """
    return ClaimSearch(model, tokens, bos=bos, settings=settings).claims("induction")


def previous_token(
    model: Subject,
    tokens: Int[Tensor, "batch posn"] | None = None,
    *,
    bos: int | None = None,
    settings: ClaimSettings | None = None,
) -> list[Claim]:
    """A claim for each previous-token head, the surest first; tokens as `induction` has them.

    Raises: PvmlError for what is no model, or rows or a model too short to ask.
    """
    return ClaimSearch(model, tokens, bos=bos, settings=settings).claims("previous-token")


def copying(
    model: Subject,
    tokens: Int[Tensor, "batch posn"] | None = None,
    *,
    bos: int | None = None,
    settings: ClaimSettings | None = None,
) -> list[Claim]:
    """A claim for each copying head, the surest first; tokens as `induction` has them.

    Raises: PvmlError for what is no model, or tokens that it cannot read.
    """
    return ClaimSearch(model, tokens, bos=bos, settings=settings).claims("copying")


def composition(
    model: Subject,
    tokens: Int[Tensor, "batch posn"] | None = None,
    *,
    bos: int | None = None,
    settings: ClaimSettings | None = None,
) -> list[Claim]:
    """A claim for each pair of heads that composes, the surest first; tokens as `induction`'s.

    Raises: PvmlError for what is no model, or tokens that it cannot read.
    """
    return ClaimSearch(model, tokens, bos=bos, settings=settings).claims("composition")


def measured_again(claim: Claim, search: ClaimSearch) -> Claim | None:
    """The same head or pair, measured by a search on the same rows and with the same numbers.

    None if the model has no such score.

    Raises: PvmlError for rows too short to ask.
    """
    for score in search.scores(claim.kind):
        edge = score.kind if isinstance(score, CompositionScore) else None
        if (_heads(score), edge) == (claim.heads, claim.edge):
            return search.claim(score)
    return None


def lacks(score: Score) -> str:
    """What a score of which nothing is claimed lacks for a claim, in words."""
    if isinstance(score, HeadScore):
        return score.verdict
    if score.score is None or math.isnan(score.score):
        return "there is nothing to score"
    by = "rotations" if isinstance(score, CompositionScore) else "heads"
    return f"explained by random {by}"


def _kind(score: Score) -> ClaimKind:
    if isinstance(score, CopyingScore):
        return "copying"
    if isinstance(score, CompositionScore):
        return "composition"
    assert score.kind in ("previous-token", "induction")
    return score.kind


def _heads(score: Score) -> tuple[Head, ...]:
    if isinstance(score, CompositionScore):
        return score.writer, score.reader
    return ((score.layer, score.head),)


def _rank(score: Score) -> tuple[bool, float, float]:
    """Claims first; then how surely, and how far, beyond the null."""
    if isinstance(score, HeadScore):
        return not score.beyond, 0.0, -score.excess
    if score.score is None or math.isnan(score.score):
        return True, 1.0, math.inf
    return not score.beyond, score.p, score.null_mean - score.score


def _figure(score: Score) -> Figure:
    value = score.score
    nulls: list[Null] = []
    if isinstance(score, HeadScore):
        what, unit = f"{score.kind} score", "of the attention"
        shuffled = ("the tokens shuffled", score.null_mean, score.null_spread, score.p)
        nulls.append(_null(*shuffled))
        if score.random:
            random = score.random
            nulls.append(_null("random heads in its place", random.mean, random.spread, random.p))
    elif isinstance(score, CopyingScore):
        what, unit = "copying score", ""
        nulls.append(_null("random heads", score.null_mean, score.null_spread, score.p))
    else:
        what, unit = f"{score.kind}-composition", ""
        nulls.append(_null("turned at random", score.null_mean, score.null_spread, score.p))
    return Figure(
        what=what,
        value=None if value is None or math.isnan(value) else value,
        unit=unit,
        nulls=tuple(nulls),
        beyond=score.beyond,
    )


def _null(what: str, mean: float, spread: float, p: float) -> Null:
    known, varies = math.isfinite(mean), math.isfinite(spread)
    return Null(
        what=what,
        mean=mean if known else None,
        spread=spread if varies else None,
        most=None,
        p=p,
    )


def _effect(what: str, worth: Worth) -> Figure:
    return Figure(
        what=what,
        value=worth.value,
        unit=worth.unit,
        nulls=(
            Null(
                what=worth.null if worth.null_mean is None else f"other heads ({worth.n_null})",
                mean=worth.null_mean,
                spread=worth.null_spread,
                most=worth.null_most,
                p=None,
            ),
        ),
        beyond=worth.ahead,
    )


KINDS: Sequence[ClaimKind] = get_args(ClaimKind)
