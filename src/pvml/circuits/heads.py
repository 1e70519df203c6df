"""Which heads read the token before, and which continue a repetition, each beside its null.

A head gets a name only if its score is beyond what the same head does when the tokens are shuffled
so that the relation is gone and all else stays. What it then does to the logits is in `routes.py`.
Source of the two kinds: Olsson et al. 2022, arXiv:2209.11895, sections 3 and 4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch as t
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen

Kind = Literal["previous-token", "induction"]

SIGNIFICANCE = 0.001
"""Largest p, already corrected for the number of heads tried, that earns a name."""
EXCESS = 0.1
"""Least share of attention above the null that earns a name: a sure trace is not yet a habit.
In 360 heads of untrained models, some with sharp attention, the largest excess was 0.025."""
PERIOD = 32
"""Tokens that a random sequence has before it repeats, where model and text allow so many."""

_AT_ONCE = 16
"""Sequences in a pass: their attention grids of a layer are in memory together."""
_FEWEST = 8
"""Tokens in a sequence, and distinct tokens in a text, below which there is nothing to ask."""


@dataclass(frozen=True, kw_only=True)
class HeadScore:
    """How far one head does one thing, and how far it would by chance."""

    kind: Kind
    layer: int
    """Counted from 0."""
    head: int
    score: float
    """Mean share of its attention on the position in question (0 to 1)."""
    null_mean: float
    """The same with the tokens shuffled (0 to 1)."""
    null_spread: float
    """Standard deviation of that between sequences."""
    p: float
    """Probability of so large a difference by chance, times the number of scores tried (at most 1).
    """
    ahead: bool
    """Whether no other nearby position gets more, so that this one gives the head its name."""

    @property
    def beyond(self) -> bool:
        """Whether the head has earned the name of its kind."""
        surely = self.p <= SIGNIFICANCE and self.ahead
        return surely and self.score - self.null_mean >= EXCESS

    def __str__(self) -> str:
        p = f"p < {SIGNIFICANCE}" if self.p < SIGNIFICANCE else f"p = {self.p:.2g}"
        return (
            f"{self.layer}.{self.head} (score {self.score:.2f}; "
            f"shuffled {self.null_mean:.2f} ± {self.null_spread:.2f}; {p})"
        )


@dataclass(frozen=True)
class Question:
    """A mean share of attention: from each position `readers` to the one beside it in `read`."""

    readers: Int[Tensor, "batch pairs"]
    read: Int[Tensor, "batch pairs"]
    weights: Float[Tensor, "batch pairs"]
    """Of the pairs in the mean; each sequence's add up to 1."""


@t.no_grad()
def find_heads(
    model: Transformer, tokens: Int[Tensor, "batch posn"], seed: int = 0, n_sequences: int = 64
) -> list[HeadScore]:
    """A previous-token and an induction score for every head, each with its null and p.

    tokens: rows of natural text, each with BOS first; `n_sequences` of them are used.

    Previous token: the share of position i on i - 1. Null: the same text with everything behind BOS
    shuffled, and the share on the token that had stood before, wherever it is now (if it is
    visible; rows count equally, as they do in the score). A head that is after certain tokens finds
    them there as well; one that reads the place before does not. The name also needs the place
    before to get more than the positions around it.
    Induction: on BOS and random tokens, repeated once, the share on the token that followed the
    last occurrence. Null: the repetition shuffled, and the share on the same positions: a head that
    reads so far back whatever the tokens are does as well there.
    p: each sequence with its shuffled twin, by random flips of the sign of their difference, which
    takes that difference to be symmetric about 0 if the head does not care; times the number of
    scores (Bonferroni). Too few sequences cannot reach `SIGNIFICANCE`, and then no head is named.

    Raises: PvmlError for rows or a vocabulary in them too short to ask, for no rows, or for what
    are no token ids of this model.
    """
    check_tokens(tokens, model.cfg)
    rng = t.Generator().manual_seed(seed)
    text = _chosen(model, tokens, n_sequences, rng)
    if not model.cfg.n_layers:
        return []
    before = [_by_offset(text, offset) for offset in (1, 0, 2, 3)]
    natural, *others = measure(model, text, before)
    shuffled_text, places = _shuffled(text, rng)
    (shuffled,) = measure(model, shuffled_text, [_same_tokens(places)])
    ahead = natural.mean(0) >= t.stack(others).mean(1).amax(0)

    period = min(PERIOD, (model.cfg.n_ctx - 1) // 2, len(_words(text)))
    first, again, other = _repetitions(text, period, n_sequences, rng)
    question = _after_last_occurrence(first)
    (repeated,) = measure(model, t.cat([first, again], 1), [question])
    (unrepeated,) = measure(model, t.cat([first, other], 1), [question])

    n_tests = 2 * natural[0].numel()
    return [
        *_scores("previous-token", natural, shuffled, ahead, n_tests, rng),
        *_scores("induction", repeated, unrepeated, t.ones_like(ahead), n_tests, rng),
    ]


def best_heads(scores: Sequence[HeadScore]) -> list[HeadScore]:
    """For each kind the heads that have earned its name, strongest first, or else the nearest."""
    best = []
    for kind in get_args(Kind):
        of_kind = [score for score in scores if score.kind == kind]
        found = sorted((s for s in of_kind if s.beyond), key=lambda s: -s.score)
        best += found or sorted(of_kind, key=lambda s: s.null_mean - s.score)[:1]
    return best


def describe_heads(scores: Sequence[HeadScore]) -> str:
    """A sentence for each kind: the heads that have earned its name, or that none formed."""
    if not scores:
        return "This model has no heads."
    sentences = []
    for kind in get_args(Kind):
        best = [score for score in best_heads(scores) if score.kind == kind]
        if best and best[0].beyond:
            heads = ", ".join(map(str, best))
            sentences.append(f"{kind.capitalize()} heads (layer.head): {heads}.")
        elif best:
            sentences.append(f"No {kind} head formed: the nearest to one is {best[0]}.")
    return "\n".join(sentences)


def measure(
    model: Transformer, tokens: Int[Tensor, "batch posn"], questions: Sequence[Question]
) -> list[Float[Tensor, "batch n_layers n_heads"]]:
    """The answer of every head to every question, sequence by sequence."""
    shape = (len(tokens), model.cfg.n_layers, model.cfg.n_heads)
    answers = [t.zeros(shape, dtype=t.float64) for _ in questions]
    for start in range(0, len(tokens), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)

        def answer(name: str, pattern: Tensor, part: slice = part) -> None:
            layer = int(name.split(".")[1])
            for question, answers_here in zip(questions, answers, strict=True):
                answers_here[part, layer] = _mean_share(pattern.cpu().double(), question, part)

        with listen(model, "blocks.*.attn.attn_pattern", answer):
            model.stream(tokens[part].to(model.device))
    return answers


def _mean_share(
    pattern: Float[Tensor, "batch n_heads posn_q posn_k"], question: Question, part: slice
) -> Float[Tensor, "batch n_heads"]:
    batch = t.arange(len(pattern))[:, None]
    # the two lists of positions stand around the head axis, so it comes last
    shares = pattern[batch, :, question.readers[part], question.read[part]]
    return einsum(
        shares, question.weights[part], "batch pairs n_heads, batch pairs -> batch n_heads"
    )


def _chosen(
    model: Transformer, tokens: Int[Tensor, "rows n_ctx"], n_sequences: int, rng: t.Generator
) -> Int[Tensor, "batch posn"]:
    length = min(tokens.shape[1], model.cfg.n_ctx)
    if len(tokens) == 0 or n_sequences < 1:
        raise PvmlError("find_heads needs at least one row of text to look at")
    text = tokens[t.randperm(len(tokens), generator=rng)[:n_sequences], :length].cpu().long()
    for what, size in (("tokens a row", length), ("distinct tokens", len(_words(text)))):
        if size < _FEWEST:
            raise PvmlError(
                f"find_heads needs at least {_FEWEST} {what} (n_ctx {model.cfg.n_ctx}), got {size}"
            )
    return text


def _words(text: Int[Tensor, "batch posn"]) -> Int[Tensor, " words"]:
    """The distinct ids of a text, BOS left out: ids it never uses have no trained embedding."""
    return t.tensor(sorted(set(text.flatten().tolist()) - {int(text[0, 0])}), dtype=t.long)


def _rows_asked(posn: int) -> Int[Tensor, " rows"]:
    """Positions with enough before them that the one before is no small choice."""
    return t.arange(max(4, posn // 4), posn)


def _by_offset(text: Int[Tensor, "batch posn"], offset: int) -> Question:
    readers = _rows_asked(text.shape[1]).expand(len(text), -1)
    even = t.full(readers.shape, 1 / readers.shape[1], dtype=t.float64)
    return Question(readers, readers - offset, even)


def _shuffled(
    text: Int[Tensor, "batch posn"], rng: t.Generator
) -> tuple[Int[Tensor, "batch posn"], Int[Tensor, "batch posn"]]:
    """Each row with all but BOS in another order, and where each of its tokens stands now."""
    keys = t.rand(text.shape, generator=rng)
    keys[:, 0] = -1
    order = keys.argsort(1)
    return text.gather(1, order), order.argsort(1)


def _same_tokens(places: Int[Tensor, "batch posn"]) -> Question:
    readers, read = places[:, 2:], places[:, 1:-1]
    asked = (read < readers) & (readers >= _rows_asked(places.shape[1])[0])
    # row r sees the token it wants in r - 1 of the cases: without this the late rows, whose
    # shares are the smallest, would count most, and every head would look beyond its null
    weights = t.where(asked, 1 / (readers - 1).clamp(min=1).double(), 0.0)
    return Question(readers, read, weights / weights.sum(1, keepdim=True).clamp(min=1e-12))


def _repetitions(
    text: Int[Tensor, "batch posn"], period: int, n_sequences: int, rng: t.Generator
) -> Iterator[Int[Tensor, "batch posn"]]:
    """BOS and distinct random tokens; those tokens again; those tokens in another order."""
    words = _words(text)
    drawn = words[t.rand(n_sequences, len(words), generator=rng).argsort(1)[:, :period]]
    bos = text[:1, :1].expand(n_sequences, 1)
    yield t.cat([bos, drawn], 1)
    yield drawn
    yield drawn.gather(1, t.rand(drawn.shape, generator=rng).argsort(1))


def _after_last_occurrence(first: Int[Tensor, "batch posn"]) -> Question:
    period = first.shape[1] - 1
    readers = t.arange(period + 1, 2 * period).expand(len(first), -1)
    even = t.full(readers.shape, 1 / readers.shape[1], dtype=t.float64)
    return Question(readers, readers - period + 1, even)


def _scores(
    kind: Kind,
    found: Float[Tensor, "batch n_layers n_heads"],
    null: Float[Tensor, "null_batch n_layers n_heads"],
    ahead: Tensor,
    n_tests: int,
    rng: t.Generator,
) -> list[HeadScore]:
    chances = chance_of(
        rearrange(found - null, "batch layer head -> batch (layer head)"), n_tests, rng
    )
    spread = null.std(0, correction=min(1, len(null) - 1))
    n_heads = found.shape[2]
    return [
        HeadScore(
            kind=kind,
            layer=i // n_heads,
            head=i % n_heads,
            score=float(found[:, i // n_heads, i % n_heads].mean()),
            null_mean=float(null[:, i // n_heads, i % n_heads].mean()),
            null_spread=float(spread[i // n_heads, i % n_heads]),
            p=min(1.0, chance * n_tests),
            ahead=bool(ahead[i // n_heads, i % n_heads]),
        )
        for i, chance in enumerate(chances)
    ]


def chance_of(
    differences: Float[Tensor, "batch tests"], n_tests: int, rng: t.Generator
) -> list[float]:
    """For each column, how often its mean would be as large if every sign were a coin's toss.

    As many tosses as it takes for a p of a thousandth of 1 / n_tests to be within reach.
    """
    reached = differences.mean(0)
    reached = reached - 1e-12 * reached.abs()  # a tie must not be lost to rounding
    n_tosses, exceeded = max(10_000, 4_000 * n_tests), t.zeros(differences.shape[1])
    for start in range(0, n_tosses, 10_000):
        size = (min(10_000, n_tosses - start), len(differences))
        signs = 2.0 * t.randint(2, size, generator=rng) - 1
        exceeded += (signs.double() @ differences / len(differences) >= reached).sum(0)
    return ((1 + exceeded) / (1 + n_tosses)).tolist()
