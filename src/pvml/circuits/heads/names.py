"""What heads are called: a score beside its nulls, what explains it, and how it is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from rich.table import Table

from pvml.circuits.chance import SIGNIFICANCE, told_p
from pvml.circuits.heads.patterns import Kind, Text

Verdict = Literal[
    "named",
    "explained by shuffled tokens",
    "a place beside it gets more",
    "too little above its null",
    "explained by random heads",
]

EXCESS = 0.1
"""Least share of attention above the null that earns a name: a sure trace is not yet a habit."""
NAMING = (
    f"A head is named for where it looks if its score is beyond each of its nulls (p of at most "
    f"{SIGNIFICANCE}, times the number of scores tried), at least {EXCESS} above the larger of "
    f"their means, and no place beside the one in question gets more"
)
"""The rule, in words."""
USUAL: tuple[tuple[Kind, Text], ...] = (("previous-token", "natural"), ("induction", "repeated"))
"""Where the two kinds of the paper are looked for first: there, the text needs no telling."""


@dataclass(frozen=True, kw_only=True)
class RandomHeads:
    """How far random heads do one thing in the place of one head."""

    mean: float
    """Of their scores (0 to 1)."""
    spread: float
    """Their standard deviation."""
    p: float
    """Probability of such a score by chance, times the number of scores tried (at most 1)."""


@dataclass(frozen=True, kw_only=True)
class HeadScore:
    """How far one head does one thing, and how far it would by chance."""

    kind: Kind
    text: Text
    """What it was watched on: rows of natural text, or random tokens that are repeated."""
    layer: int
    """Counted from 0."""
    head: int
    score: float
    """Mean share of its attention on the positions in question (0 to 1)."""
    null_mean: float
    """The same with the tokens shuffled (0 to 1)."""
    null_spread: float
    """Standard deviation of that between sequences."""
    p: float
    """Probability of so large a difference by chance, times the number of scores tried (at most 1).
    """
    ahead: bool
    """Whether no other nearby position gets more, so that this one gives the head its name."""
    random: RandomHeads | None = None
    """Random heads in its place; None if they were not asked."""
    processing: tuple[str, ...] = field(default=(), compare=False)
    """How the model's weights were rewritten, as its own `processing` says."""

    @property
    def excess(self) -> float:
        """How much more than the larger of its nulls."""
        return self.score - max(self.null_mean, self.random.mean if self.random else 0.0)

    @property
    def verdict(self) -> Verdict:
        """Whether the head has earned the name of its kind, or the first thing that it lacks."""
        if not self.p <= SIGNIFICANCE:
            return "explained by shuffled tokens"
        if not self.ahead:
            return "a place beside it gets more"
        if not self.score - self.null_mean >= EXCESS:
            return "too little above its null"
        if self.random and not self.random.p <= SIGNIFICANCE:
            return "explained by random heads"
        return "named" if self.excess >= EXCESS else "too little above its null"

    @property
    def beyond(self) -> bool:
        """Whether the head has earned the name of its kind, which asks for more than its nulls."""
        return self.verdict == "named"

    def __str__(self) -> str:
        told = (
            f"{self.layer}.{self.head} (score {self.score:.2f}; "
            f"shuffled {self.null_mean:.2f} ± {self.null_spread:.2f}; {told_p(self.p)}"
        )
        if self.random:
            told += (
                f"; random heads {self.random.mean:.2f} ± {self.random.spread:.2f}; "
                f"{told_p(self.random.p)}"
            )
        return told + ")"


def best_heads(scores: Sequence[HeadScore]) -> list[HeadScore]:
    """For each kind and text the heads that earned its name, strongest first, or else the nearest.

    The nearest is the one with the largest excess over its nulls.
    """
    best = []
    for of_kind in _by_kind(scores):
        found = sorted((s for s in of_kind if s.beyond), key=lambda s: -s.score)
        best += found or sorted(of_kind, key=lambda s: -s.excess)[:1]
    return best


def describe_heads(scores: Sequence[HeadScore]) -> str:
    """A sentence for each kind and text: the heads that have earned its name, or that none formed.

    And one for the heads that would have, had random heads not been asked.
    """
    if not scores:
        return "This model has no heads."
    sentences = []
    for of_kind in _by_kind(scores):
        best = best_heads(of_kind)
        kind = best[0].kind
        where = "" if _alone(best[0], scores) else f" {_where(best[0].text)}"
        if best[0].beyond:
            heads = ", ".join(map(str, best))
            sentences.append(f"{kind.capitalize()} heads{where} (layer.head): {heads}.")
        else:
            sentences.append(
                f"No {kind} head formed{where}: the nearest to one is {best[0]}: {best[0].verdict}."
            )
        if explained := [s for s in of_kind if s.verdict == "explained by random heads"]:
            heads = ", ".join(map(str, sorted(explained, key=lambda s: -s.score)))
            sentences.append(f"Random heads could do as much as {heads}.")
    return "\n".join(sentences)


def head_table(scores: Sequence[HeadScore], most: int = 3) -> Table:
    """The best few of each kind and text beside their nulls, with what explains those not named."""
    table = Table("kind", "text", "head", "score", "shuffled", "p", "random heads", "p", "verdict")
    for column in table.columns[3:8]:
        column.justify = "right"
    for of_kind in _by_kind(scores):
        for s in sorted(of_kind, key=lambda s: (not s.beyond, -s.excess))[:most]:
            null = (
                (f"{s.random.mean:.2f} ± {s.random.spread:.2f}", told_p(s.random.p)[2:])
                if s.random
                else ("", "")
            )
            table.add_row(
                s.kind,
                s.text,
                f"{s.layer}.{s.head}",
                f"{s.score:.2f}",
                f"{s.null_mean:.2f} ± {s.null_spread:.2f}",
                told_p(s.p)[2:],
                *null,
                s.verdict,
            )
        table.add_section()
    return table


def _by_kind(scores: Sequence[HeadScore]) -> list[list[HeadScore]]:
    """The scores of each kind and text that there are any of, in the order of the kinds."""
    groups = [
        [s for s in scores if (s.kind, s.text) == (kind, text)]
        for kind in get_args(Kind)
        for text in get_args(Text)
    ]
    return [group for group in groups if group]


def _alone(score: HeadScore, scores: Sequence[HeadScore]) -> bool:
    """Whether a kind's text needs no telling: it is the usual one, and there is no other."""
    texts = {s.text for s in scores if s.kind == score.kind}
    return len(texts) == 1 and (score.kind, score.text) in USUAL


def _where(text: Text) -> str:
    return "on natural text" if text == "natural" else "on repeated tokens"
