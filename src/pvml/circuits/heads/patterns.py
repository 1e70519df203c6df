"""What a head's attention is asked: how much goes where a kind of head looks, and to its twin.

A trial is one such question on one text, with the same question put where the relation that makes
the kind is gone and all else stays. Random repeated sequences: Olsson et al. 2022,
arXiv:2209.11895, section 4; duplicate tokens: Wang et al. 2022, arXiv:2211.00593, section 3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch as t
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.finite import all_finite
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen

Kind = Literal["previous-token", "current-token", "first-token", "duplicate-token", "induction"]
Text = Literal["natural", "repeated"]
"""Rows of natural text, or BOS and random tokens that are repeated once."""

PERIOD = 32
"""Tokens that a random sequence has before it repeats, where model and text allow so many."""

_AT_ONCE = 16
"""Sequences in a pass, if their attention grids of a layer have room in memory together."""
_GRID = 1 << 24
"""Numbers in such grids."""


@dataclass(frozen=True)
class Question:
    """A mean share of attention: from each position `readers` to the one beside it in `read`.

    A reader that stands there several times is asked for the sum.
    """

    readers: Int[Tensor, "batch pairs"]
    read: Int[Tensor, "batch pairs"]
    weights: Float[Tensor, "batch pairs"]
    """Of the pairs in the mean; each sequence's readers' add up to 1, or are 0 if it has none."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A question, and its null."""

    kind: Kind
    text: Text
    tokens: Int[Tensor, "batch posn"]
    question: Question
    beside: tuple[Question, ...]
    """The same readers and the places beside the ones in question, which must not get more."""
    null_tokens: Int[Tensor, "batch posn"]
    null: Question

    @property
    def sequences(self) -> Int[Tensor, " asked"]:
        """Those that both questions have an answer in."""
        asked = (self.question.weights.sum(1) > 0) & (self.null.weights.sum(1) > 0)
        return asked.nonzero()[:, 0]


@dataclass(frozen=True)
class Texts:
    """The sequences that heads are watched on. Drawn once, whichever kinds are asked for."""

    natural: Int[Tensor, "batch posn"]
    natural_shuffled: Int[Tensor, "batch posn"]
    natural_places: Int[Tensor, "batch posn"]
    """Where each token of `natural` stands in `natural_shuffled`."""
    repeated: Int[Tensor, "n posn_repeated"]
    unrepeated: Int[Tensor, "n posn_repeated"]
    """The same with the repetition in another order."""
    repeated_shuffled: Int[Tensor, "n posn_repeated"]
    repeated_places: Int[Tensor, "n posn_repeated"]

    @classmethod
    def draw(
        cls, natural: Int[Tensor, "batch posn"], n_ctx: int, n_sequences: int, rng: t.Generator
    ) -> "Texts":
        """Everything that is made of rows of natural text, each with BOS first."""
        natural_shuffled, natural_places = _shuffled(natural, rng)
        period = min(PERIOD, (n_ctx - 1) // 2, len(words_of(natural)))
        first, again, other = _repetitions(natural, period, n_sequences, rng)
        repeated = t.cat([first, again], 1)
        repeated_shuffled, repeated_places = _shuffled(repeated, rng)
        return cls(
            natural=natural,
            natural_shuffled=natural_shuffled,
            natural_places=natural_places,
            repeated=repeated,
            unrepeated=t.cat([first, other], 1),
            repeated_shuffled=repeated_shuffled,
            repeated_places=repeated_places,
        )

    def trial(self, kind: Kind, text: Text, rng: t.Generator) -> Trial:
        """One kind's question on one text."""
        tokens = self.natural if text == "natural" else self.repeated
        null_tokens = tokens
        if kind == "previous-token":
            question, *beside = (_by_offset(tokens, offset) for offset in (1, 0, 2, 3))
            natural = text == "natural"
            null_tokens = self.natural_shuffled if natural else self.repeated_shuffled
            null = _same_tokens(self.natural_places if natural else self.repeated_places)
        elif kind == "current-token":
            question, *beside = (_by_offset(tokens, offset) for offset in (0, 1, 2, 3))
            null = _elsewhere(question, rng)
        elif kind == "first-token":
            question, *beside = (_at_place(tokens, place) for place in (0, 1, 2, 3))
            null = _elsewhere(question, rng)
        else:
            by = 1 if kind == "induction" else 0
            if text == "natural":
                earlier, earlier_of_another = _earlier_occurrences(tokens, rng)
                question, null = _moved(earlier, by), _moved(earlier_of_another, by)
            else:
                earlier = _last_occurrence(tokens)
                question, null_tokens = _moved(earlier, by), self.unrepeated
                null = question
            beside = [_moved(earlier, by + side) for side in (-1, 1)]
        return Trial(
            kind=kind,
            text=text,
            tokens=tokens,
            question=question,
            beside=tuple(beside),
            null_tokens=null_tokens,
            null=null,
        )


def words_of(text: Int[Tensor, "batch posn"]) -> Int[Tensor, " words"]:
    """The distinct ids of a text, BOS left out: ids it never uses have no trained embedding."""
    return t.tensor(sorted(set(text.flatten().tolist()) - {int(text[0, 0])}), dtype=t.long)


def measure(
    model: Transformer, tokens: Int[Tensor, "batch posn"], questions: Sequence[Question]
) -> list[Float[Tensor, "batch n_layers n_heads"]]:
    """The answer of every head to every question, sequence by sequence.

    Raises: PvmlError if the model's attention is not finite.
    """
    shape = (len(tokens), model.cfg.n_layers, model.cfg.n_heads)
    answers = [t.zeros(shape, dtype=t.float64) for _ in questions]
    room = _GRID // (model.cfg.n_heads * tokens.shape[1] ** 2)
    at_once = max(1, min(_AT_ONCE, room))
    for start in range(0, len(tokens), at_once):
        part = slice(start, start + at_once)

        def answer(name: str, pattern: Tensor, part: slice = part) -> None:
            layer = int(name.split(".")[1])
            for question, answers_here in zip(questions, answers, strict=True):
                answers_here[part, layer] = _mean_share(pattern, question, part)

        with listen(model, "blocks.*.attn.attn_pattern", answer):
            model.stream(tokens[part].to(model.device))
    if not all(map(all_finite, answers)):
        raise PvmlError("this model's attention patterns are not finite: are its weights?")
    return answers


def measure_all(
    model: Transformer, asked: Sequence[tuple[Int[Tensor, "_ _"], Question]]
) -> list[Float[Tensor, "_ n_layers n_heads"]]:
    """`measure` for questions on several texts, with one pass over each text."""
    answers: dict[int, Tensor] = {}
    texts = {id(tokens): tokens for tokens, _ in asked}
    for key, tokens in texts.items():
        here = [i for i, (of, _) in enumerate(asked) if id(of) == key]
        found = measure(model, tokens, [asked[i][1] for i in here])
        answers.update(zip(here, found, strict=True))
    return [answers[i] for i in range(len(asked))]


def _mean_share(
    pattern: Float[Tensor, "batch n_heads posn_q posn_k"], question: Question, part: slice
) -> Float[Tensor, "batch n_heads"]:
    batch = t.arange(len(pattern))[:, None]
    places = (x.to(pattern.device) for x in (batch, question.readers[part], question.read[part]))
    sequence, readers, read = places
    # the two lists of positions stand around the head axis, so it comes last
    shares = pattern[sequence, :, readers, read].cpu().double()
    return einsum(
        shares, question.weights[part], "batch pairs n_heads, batch pairs -> batch n_heads"
    )


def _rows_asked(posn: int) -> Int[Tensor, " rows"]:
    """Positions with enough before them that the one before is no small choice."""
    return t.arange(max(4, posn // 4), posn)


def _evenly(readers: Int[Tensor, "batch pairs"], read: Int[Tensor, "batch pairs"]) -> Question:
    even = t.full(readers.shape, 1 / readers.shape[1], dtype=t.float64)
    return Question(readers, read, even)


def _by_offset(text: Int[Tensor, "batch posn"], offset: int) -> Question:
    readers = _rows_asked(text.shape[1]).expand(len(text), -1)
    return _evenly(readers, readers - offset)


def _at_place(text: Int[Tensor, "batch posn"], place: int) -> Question:
    readers = _rows_asked(text.shape[1]).expand(len(text), -1)
    return _evenly(readers, t.full_like(readers, place))


def _elsewhere(question: Question, rng: t.Generator) -> Question:
    """Each reader with any place that it sees but the one in question, all as likely."""
    readers, read = question.readers, question.read
    drawn = (t.rand(readers.shape, generator=rng) * readers).long().minimum(readers - 1)
    return Question(readers, drawn + (drawn >= read), question.weights)


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
    words = words_of(text)
    drawn = words[t.rand(n_sequences, len(words), generator=rng).argsort(1)[:, :period]]
    bos = text[:1, :1].expand(n_sequences, 1)
    yield t.cat([bos, drawn], 1)
    yield drawn
    yield drawn.gather(1, t.rand(drawn.shape, generator=rng).argsort(1))


def _last_occurrence(repeated: Int[Tensor, "batch posn"]) -> Question:
    """Of the token at each position of the repetition; the last is not asked."""
    period = (repeated.shape[1] - 1) // 2
    readers = t.arange(period + 1, 2 * period).expand(len(repeated), -1)
    return _evenly(readers, readers - period)


def _earlier_occurrences(
    text: Int[Tensor, "batch posn"], rng: t.Generator
) -> tuple[Question, Question]:
    """Each reader with every earlier place of its own token; and with those of another's.

    The other is the token of a later position, drawn among those whose token was there before the
    reader as well: in a text without order either could have stood here. It may be the same token.
    So a head that is after certain tokens, or looks so far back, does as well with the other.
    """
    n = text.shape[1]
    place = t.arange(n)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    of_another: list[tuple[Tensor, Tensor, Tensor]] = []
    for row in text:
        same = (row[:, None] == row) & (row != row[0])
        # two back at least, so that what followed it is not the reader itself
        first = t.where(same.any(1), same.int().argmax(1), n)
        could = (place > place[:, None]) & (first <= place[:, None] - 2)
        others = t.rand(n, n, generator=rng).masked_fill(~could, -1.0).argmax(1)
        readers = ((first <= place - 2) & could.any(1)).nonzero()[:, 0]
        seen = place < readers[:, None]
        for pairs, asking in ((found, readers), (of_another, others[readers])):
            which, read = (same[asking] & seen).nonzero(as_tuple=True)
            pairs.append((readers[which], read, t.full(read.shape, 1 / max(1, len(readers)))))
    return _padded(found), _padded(of_another)


def _padded(rows: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Question:
    """Each sequence's readers, places read and weights as one question, filled up with weight 0."""
    readers, read, weights = (
        t.nn.utils.rnn.pad_sequence(list(part), batch_first=True)
        for part in zip(*rows, strict=True)
    )
    return Question(readers, read, weights.double())


def _moved(question: Question, by: int) -> Question:
    """The same with every place read so much further on, as far as that is before its reader."""
    read = question.read + by
    there = (read >= 0) & (read < question.readers)
    return Question(question.readers, read.where(there, 0), question.weights.where(there, 0.0))
