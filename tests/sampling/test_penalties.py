"""Penalties and bans: what looks back at the sequence, and what is asked for of single tokens."""

import math

import pytest
import torch as t
from torch import Tensor

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.filters import apply_logit_bias, ban_tokens
from pvml.sampling.penalties import (
    apply_frequency_penalty,
    apply_repetition_penalty,
    ban_repeated_ngrams,
)
from pvml.sampling.strategies import next_token, stages

INF = math.inf
ROWS = t.tensor([[2.0, 1.9, -1.0, 0.0, -INF]] * 3)
HISTORIES = t.tensor([[0, 0, 0, 0], [2, 3, -1, -1], [-1, 4, 2, 4]])
"""Of 4, 2 and 3 tokens; below 0 is padding, on either side."""


def ids(*tokens: int) -> Tensor:
    return t.tensor(tokens, dtype=t.long)


def test_frequency_penalty_by_hand() -> None:
    """0.5 for each occurrence, padding passed over; what is impossible stays so."""
    found = apply_frequency_penalty(HISTORIES, ROWS, 0.5)

    assert found[0].tolist() == pytest.approx([0.0, 1.9, -1.0, 0.0, -INF])
    assert found[1].tolist() == pytest.approx([2.0, 1.9, -1.5, -0.5, -INF])
    assert found[2].tolist() == pytest.approx([2.0, 1.9, -1.5, 0.0, -INF])


def test_frequency_penalty_acts_on_greedy() -> None:
    """Logits 2.0 and 1.9 after 0 0 0 0: at penalty 0.5 greedy takes 1, and the logits are whole."""
    logits = t.tensor([2.0, 1.9])
    args = SamplingArgs(temperature=0.0, frequency_penalty=0.5)

    assert apply_frequency_penalty(ids(0, 0, 0, 0), logits, 0.5).tolist() == [0.0, logits[1].item()]
    assert next_token(ids(0, 0, 0, 0), logits, args).item() == 1
    assert logits.tolist() == t.tensor([2.0, 1.9]).tolist()


def test_the_temperature_divides_the_penalty() -> None:
    """Penalty first, temperature after: at 2, the distribution is that of [0.0, 0.95]."""
    args = SamplingArgs(temperature=2.0, frequency_penalty=0.5)

    *_, last = stages(ids(0, 0, 0, 0), t.tensor([2.0, 1.9], dtype=t.float64), args)

    expected = t.tensor([0.0, 0.95], dtype=t.float64).softmax(-1)
    t.testing.assert_close(last.logits.softmax(-1), expected, rtol=0, atol=1e-15)


def test_repetition_penalty_by_hand() -> None:
    """Divides above 0, multiplies below, once whatever the count; 0 and -inf stay."""
    found = apply_repetition_penalty(HISTORIES, ROWS, 4.0)

    assert found[0].tolist() == pytest.approx([0.5, 1.9, -1.0, 0.0, -INF])
    assert found[1].tolist() == pytest.approx([2.0, 1.9, -4.0, 0.0, -INF])
    assert found[2].tolist() == pytest.approx([2.0, 1.9, -4.0, 0.0, -INF])
    assert apply_repetition_penalty(HISTORIES, ROWS, 0.5)[0, 0] == 4.0


@pytest.mark.parametrize(
    ("history", "n", "banned"),
    [
        ([1, 2, 3, 1, 2], 3, [3]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 3, [3, 4]),
        ([1, 2, 3, 1, 2], 4, []),
        ([0, 0], 2, [0]),
        ([0, 0, 0], 3, [0]),  # overlapping ones count
        ([1, 2], 3, []),
        ([1], 2, []),
        ([], 1, []),
        ([0, 0], 0, []),
        ([3, 1, 3], 1, [1, 3]),
        ([-1, 1, 2, -1, 3, 1, -1, 2, -1], 3, [3]),  # padding does not interrupt
    ],
)
def test_ngrams_by_hand(history: list[int], n: int, banned: list[int]) -> None:
    """Banned is what followed the last n - 1 tokens before; with n = 1, all that occurred."""
    found = ban_repeated_ngrams(ids(*history), t.zeros(5), n)

    assert found.isneginf().nonzero().flatten().tolist() == banned


def test_hugging_face_agrees() -> None:
    """300 sequences of 1 to 12 tokens: its repetition penalty and n-gram ban, number for number."""
    transformers = pytest.importorskip("transformers")
    rng = t.Generator().manual_seed(4)
    for length in range(1, 13):
        history = t.randint(0, 4, (25, length), generator=rng)
        logits = t.randn(25, 7, generator=rng, dtype=t.float64)
        for penalty in (0.7, 1.3):
            theirs = transformers.RepetitionPenaltyLogitsProcessor(penalty)(history, logits.clone())
            assert t.equal(apply_repetition_penalty(history, logits, penalty), theirs)
        for n in (1, 2, 3):
            theirs = transformers.NoRepeatNGramLogitsProcessor(n)(history, logits.clone())
            assert t.equal(ban_repeated_ngrams(history, logits, n), theirs)


def test_bias_and_bans_by_hand() -> None:
    """A bias is added in every row, a ban is -inf in every row, the rest is as it was."""
    assert apply_logit_bias(ROWS, {0: -2.0, 3: 1.5, 4: 9.0})[2].tolist() == pytest.approx(
        [0.0, 1.9, -1.0, 1.5, -INF]
    )
    assert ban_tokens(ROWS, [1, 2])[1].tolist() == [2.0, -INF, -INF, 0.0, -INF]
    assert t.equal(apply_logit_bias(ROWS, {}), ROWS)
    assert t.equal(ban_tokens(ROWS, []), ROWS)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (3, 0)])
def test_batches_and_inputs(shape: tuple[int, ...]) -> None:
    """One row, a batch, several axes, an empty batch, no history: the inputs stay as they were."""
    logits = t.randn(*shape, 11, generator=t.Generator().manual_seed(5))
    for length in (0, 4):
        history = t.full((*shape, length), 3)
        before, then = logits.clone(), history.clone()
        for found in (
            apply_frequency_penalty(history, logits, 0.5),
            apply_repetition_penalty(history, logits, 1.5),
            ban_repeated_ngrams(history, logits, 2),
            apply_logit_bias(logits, {3: 1.0}),
            ban_tokens(logits, [3]),
        ):
            assert found.shape == logits.shape and found.dtype == logits.dtype
            found += 1.0  # the result is the caller's own
        assert t.equal(logits, before) and t.equal(history, then)


@pytest.mark.parametrize("dtype", [t.float16, t.bfloat16, t.float32, t.float64])
def test_the_dtype_stays(dtype: t.dtype) -> None:
    """Each function gives back the precision that it was given."""
    logits = ROWS.to(dtype)
    for found in (
        apply_frequency_penalty(HISTORIES, logits, 0.5),
        apply_repetition_penalty(HISTORIES, logits, 1.5),
        ban_repeated_ngrams(HISTORIES, logits, 2),
        apply_logit_bias(logits, {3: 1.0}),
    ):
        assert found.dtype == dtype


def test_the_order_is_the_decided_one() -> None:
    """Each step acts on what the last one gave; steps that are off are not there."""
    history = ids(0, 1, 0)
    args = SamplingArgs(
        logit_bias=((0, 4.0),),
        banned_tokens=(2,),
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        no_repeat_ngram_size=2,
        temperature=0.5,
        top_k=1,
    )
    logits = t.tensor([1.0, -1.0, 3.0, 0.5], dtype=t.float64)

    steps = dict(stages(history, logits, args))

    assert steps["model"].tolist() == [1.0, -1.0, 3.0, 0.5]
    assert steps["logit bias"].tolist() == [5.0, -1.0, 3.0, 0.5]
    assert steps["bans"].tolist() == [5.0, -1.0, -INF, 0.5]
    assert steps["repetition penalty"].tolist() == [2.5, -2.0, -INF, 0.5]
    assert steps["frequency penalty"].tolist() == [2.0, -2.25, -INF, 0.5]
    assert steps["n-gram ban"].tolist() == [2.0, -INF, -INF, 0.5]
    assert steps["temperature"].tolist() == [0.0, -INF, -INF, -3.0]
    assert steps["top-k"].tolist() == [0.0, -INF, -INF, -INF]
    assert list(steps) == [
        *("model", "logit bias", "bans", "repetition penalty", "frequency penalty"),
        *("n-gram ban", "temperature", "top-k"),
    ]
    assert [name for name, _ in stages(history, logits, SamplingArgs())] == ["model"]
    greedy = SamplingArgs(temperature=0.0, top_p=0.5)
    assert [name for name, _ in stages(history, logits, greedy)] == ["model", "greedy"]


def test_ragged_rows_are_the_rows_alone() -> None:
    """A padded batch of histories gives each row what it gets by itself."""
    logits = t.randn(3, 5, generator=t.Generator().manual_seed(1), dtype=t.float64)
    args = SamplingArgs(
        frequency_penalty=0.3, repetition_penalty=1.2, no_repeat_ngram_size=2, temperature=0.7
    )
    *_, together = stages(HISTORIES, logits, args)

    for row, history in enumerate(HISTORIES):
        *_, alone = stages(history[history >= 0], logits[row], args)
        assert t.equal(alone.logits, together.logits[row])


@pytest.mark.parametrize(
    ("args", "stage"),
    [
        (SamplingArgs(banned_tokens=(0, 1)), "bans"),
        (SamplingArgs(no_repeat_ngram_size=1, temperature=0.0), "n-gram ban"),
    ],
)
def test_a_ban_of_everything_is_named(args: SamplingArgs, stage: str) -> None:
    """Where a ban leaves no token, the error names the row and the ban, greedy or not."""
    history = ids(0, 0, 0, 1).view(2, 2)
    logits = t.zeros(2, 2)
    expected = "row 0" if stage == "bans" else "row 1"

    with pytest.raises(PvmlError, match=f"^{expected} of the logits after the {stage} holds noth"):
        next_token(history, logits, args)


def test_a_penalty_beyond_the_dtype_leaves_the_others() -> None:
    """What is too large for float32 takes a token to -inf, and those that do not occur stay."""
    logits = t.tensor([3.0, 2.0, 1.0])
    assert apply_frequency_penalty(ids(0, 0), logits, 1e39).tolist() == [-INF, 2.0, 1.0]


def test_what_cannot_be_asked_for() -> None:
    """Numbers out of range, ids that do not exist, histories of another batch: each is named."""
    row, nan = ROWS[0], math.nan
    wrong = {
        r"^a frequency penalty must be finite, got nan$": lambda: apply_frequency_penalty(
            ids(0), row, nan
        ),
        r"^a repetition penalty must be above 0 and finite, got 0.0$": lambda: (
            apply_repetition_penalty(ids(0), row, 0.0)
        ),
        r"^n must be a whole number of at least 0 \(0 bans nothing\), got -1$": lambda: (
            ban_repeated_ngrams(ids(0), row, -1)
        ),
        r"^token id 5 is outside the vocabulary: ids are whole numbers from 0 to 4$": lambda: (
            ban_tokens(ROWS, [5])
        ),
        r"^token id -1 is outside": lambda: apply_logit_bias(ROWS, {-1: 1.0}),
        r"^the bias of token 2 must be finite, got -inf: ban_tokens": lambda: apply_logit_bias(
            ROWS, {2: -INF}
        ),
        r"^row 1 of input_ids holds token id 7, outside": lambda: apply_frequency_penalty(
            t.tensor([[0], [7], [9]]), ROWS, 1.0
        ),
    }
    for message, ask in wrong.items():
        with pytest.raises(PvmlError, match=message):
            ask()
