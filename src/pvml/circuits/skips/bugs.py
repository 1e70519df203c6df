"""What a head promotes because it is factored, though the text does not: the paper's "bugs".

One source, two destinations that find it, two outputs that it brings: a head that wants
`keep ... in -> mind` and `keep ... at -> bay` says `keep ... in -> bay` as well, for its OV does
not know which destination asked. The effects of the two that were meant multiply to exactly what
those of the two crossed multiply to. Source: Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits", "skip-trigram bugs".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from pvml.circuits.skips.evidence import CorpusEvidence, find_evidence
from pvml.circuits.skips.trigrams import SkipTrigram
from pvml.errors import PvmlError

Crossing = tuple[SkipTrigram, SkipTrigram, SkipTrigram]
"""What is forced, and the two that force it: one with its destination, one with its output."""


@dataclass(frozen=True, kw_only=True)
class SkipBug:
    """A skip-trigram that a head cannot help but promote, and that the text does not support."""

    evidence: CorpusEvidence
    """Of the crossed trigram, which the text has no more often than by chance, or never."""
    parents: tuple[CorpusEvidence, CorpusEvidence]
    """Of the trigram that brings the destination, and of that which brings the output."""

    @property
    def trigram(self) -> SkipTrigram:
        """What is promoted without support."""
        return self.evidence.trigram

    @property
    def sure(self) -> bool:
        """Whether the text surely has both parents, beyond chance."""
        return all(parent.beyond for parent in self.parents)

    def __str__(self) -> str:
        one, other = (parent.trigram.name for parent in self.parents)
        return f"{self.trigram}, forced by {one} and {other}. Text: {self.evidence}"


def crossings(trigrams: Sequence[SkipTrigram]) -> list[Crossing]:
    """Every trigram that pairs of these force their head to promote.

    A pair shares head and source and differs in destination and output; the crossed trigram has the
    destination of one and the output of the other. It may itself be among these. Each is told once,
    with the strongest pair; the strongest first, of equal ones the lowest ids.

    Raises: PvmlError for a trigram that its head does not promote: that forces nothing.
    """
    if weak := [each for each in trigrams if not each.effect > 0]:
        raise PvmlError(f"only what is promoted forces another: {weak[0]} is not")
    found = [
        crossing
        for group in dict.fromkeys((each.head, each.source) for each in trigrams)
        for crossing in _crossed([x for x in trigrams if (x.head, x.source) == group])
    ]
    return sorted(
        found,
        key=lambda x: (-x[0].effect, x[0].head, x[0].source, x[0].destination, x[0].output),
    )


def _crossed(trigrams: Sequence[SkipTrigram]) -> Iterator[Crossing]:
    """Those of one head and source."""
    strongest = sorted(trigrams, key=lambda each: -each.effect)
    for destination in dict.fromkeys(each.destination for each in trigrams):
        asking = [each for each in strongest if each.destination == destination]
        for output in dict.fromkeys(each.output for each in trigrams):
            one = next((x for x in asking if x.output != output), None)
            other = next(
                (x for x in strongest if x.output == output and x.destination != destination), None
            )
            if one is not None and other is not None:
                yield _cross(one, other), one, other


def _cross(one: SkipTrigram, other: SkipTrigram) -> SkipTrigram:
    """The destination of one with the output of the other."""
    texts = None
    if one.texts is not None and other.texts is not None:
        texts = (*one.texts[:2], other.texts[2])
    return SkipTrigram(
        head=one.head,
        source=one.source,
        destination=one.destination,
        output=other.output,
        attention=one.attention,
        logit=other.logit,
        texts=texts,
        unit=other.unit,
    )


def find_skip_bugs(
    trigrams: Sequence[SkipTrigram],
    tokens: Int[Tensor, "batch posn"],
    *,
    top: int = 10,
    document_end: int | None = None,
) -> list[SkipBug]:
    """The strongest crossed trigrams that the text does not support: lift at most 1, or no count.

    Crossed are pairs of those that the text does support, with a lift above 1: what a head says
    without any reason in the text is no price of anything. trigrams: of one competition, as one
    call of `find_skip_trigrams` finds them. tokens, document_end: as in `find_evidence`; p is
    corrected for all trigrams, and for all crossed ones.

    Raises: PvmlError for a `top` below 1, rows that are too short, or trigrams not promoted.
    """
    if top < 1:
        raise PvmlError(f"top must be at least 1, got {top}")
    meant = {
        each.trigram: each
        for each in find_evidence(trigrams, tokens, document_end=document_end)
        if each.lift is not None and each.lift > 1
    }
    crossed = crossings(list(meant))
    evidence = find_evidence([each for each, _, _ in crossed], tokens, document_end=document_end)
    found = [
        SkipBug(evidence=of_this, parents=(meant[one], meant[other]))
        for of_this, (_, one, other) in zip(evidence, crossed, strict=True)
        if of_this.n_source_output == 0 or (of_this.lift is not None and of_this.lift <= 1)
    ]
    return found[:top]
