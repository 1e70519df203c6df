"""Every strategy against plain NumPy: the same support, the same probabilities, and fair draws."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch as t
from torch import Tensor

from pvml.sampling.args import SamplingArgs
from pvml.sampling.strategies import next_token, sample_min_p, stages

INF = math.inf
D_VOCAB, N_ROWS, LENGTH = 11, 10_000, 9
STRATEGIES: dict[str, dict[str, Any]] = {
    "basic": {},
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 4},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.25},
    "frequency penalty": {"frequency_penalty": 0.5},
    "repetition penalty": {"repetition_penalty": 1.5},
    "n-gram ban": {"no_repeat_ngram_size": 2},
    "bias and bans": {"logit_bias": ((1, 1.5), (4, -0.5)), "banned_tokens": (2, 7)},
    "all with top-p": {
        "logit_bias": ((0, 0.5),),
        "banned_tokens": (9,),
        "repetition_penalty": 1.25,
        "frequency_penalty": 0.25,
        "no_repeat_ngram_size": 3,
        "temperature": 1.5,
        "top_p": 0.7,
    },
    "greedy with bias": {"temperature": 0.0, "logit_bias": ((1, 1.5), (4, -0.5))},
    "greedy with bans": {"temperature": 0.0, "banned_tokens": (2, 7)},
    "greedy with repetition penalty": {"temperature": 0.0, "repetition_penalty": 2.0},
    "greedy with frequency penalty": {"temperature": 0.0, "frequency_penalty": 0.5, "min_p": 0.1},
    "greedy with n-gram ban": {"temperature": 0.0, "no_repeat_ngram_size": 2},
    "greedy with all": {
        "temperature": 0.0,
        "logit_bias": ((0, 0.5),),
        "banned_tokens": (9,),
        "repetition_penalty": 2.0,
        "frequency_penalty": 0.25,
        "no_repeat_ngram_size": 3,
        "top_k": 2,
    },
}


def rows_and_histories() -> tuple[Tensor, Tensor]:
    """10,000 rows of halves, so that many are equal, a fifth of them -inf; ragged histories.

    10 is always possible, or the only possible token (every 50th row), and is in no history.
    """
    rng = t.Generator().manual_seed(1)
    rows = t.randint(-6, 7, (N_ROWS, D_VOCAB), generator=rng).double() / 2
    rows[t.rand(N_ROWS, D_VOCAB, generator=rng) < 0.2] = -INF
    rows[::50] = -INF
    rows[:, 10] = t.randint(-6, 7, (N_ROWS,), generator=rng).double() / 2
    histories = t.randint(0, 10, (N_ROWS, LENGTH), generator=rng)
    histories[t.arange(LENGTH) >= t.randint(1, LENGTH + 1, (N_ROWS, 1), generator=rng)] = -1
    return rows, histories


def by_numpy(row: np.ndarray, history: list[int], args: SamplingArgs) -> np.ndarray:
    """The distribution that the next token is drawn from, step by step for one row."""
    row = row.copy()
    for token, added in args.logit_bias:
        row[token] += added
    row[list(args.banned_tokens)] = -np.inf
    for token in set(history):
        row[token] *= args.repetition_penalty ** (1 if row[token] < 0 else -1)
    for token, count in Counter(history).items():
        row[token] -= args.frequency_penalty * count
    n = args.no_repeat_ngram_size
    for start in range(len(history) - n + 1) if n else ():
        if history[start : start + n - 1] == history[len(history) - n + 1 :]:
            row[history[start + n - 1]] = -np.inf
    if args.temperature == 0:
        return (np.arange(D_VOCAB) == np.flatnonzero(row == row.max())[0]).astype(float)
    weights = np.exp((row - row.max()) / args.temperature)
    probs = weights / weights.sum()
    order = sorted(range(D_VOCAB), key=lambda i: (-probs[i], i))
    kept, total = [], 0.0
    for token in order:
        if probs[token] == 0 or (args.top_k and len(kept) == args.top_k):
            break
        if 0 < args.top_p < 1 and total >= args.top_p - 1e-6:
            break
        if probs[token] < args.min_p * probs[order[0]] * (1 - 1e-6):
            break
        kept.append(token)
        total += probs[token]
    left = np.zeros(D_VOCAB)
    left[kept] = probs[kept] / probs[kept].sum()
    return left


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_distribution_is_numpys(name: str) -> None:
    """10,000 rows with ties, impossible tokens, single ones: same support, p to 1e-12 (float64).

    `next_token` gives each row a token of that support: with greedy, the very token of NumPy.
    """
    args = SamplingArgs(**STRATEGIES[name])
    rows, histories = rows_and_histories()
    before = rows.clone()

    *_, last = stages(histories, rows, args)
    chosen = next_token(histories, rows, args, t.Generator().manual_seed(2)).numpy()

    found = last.logits.softmax(-1).numpy()
    expected = np.stack(
        [
            by_numpy(row, [i for i in history if i >= 0], args)
            for row, history in zip(rows.numpy(), histories.tolist(), strict=True)
        ]
    )
    assert np.array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert (expected[np.arange(N_ROWS), chosen] > 0).all()
    assert t.equal(rows, before)


@pytest.mark.parametrize("name", STRATEGIES)
def test_draws_are_fair(name: str) -> None:
    """100,000 tokens pass a chi-squared test against what NumPy says, and are nothing else."""
    args, n = SamplingArgs(**STRATEGIES[name]), 100_000
    logits = t.tensor([1.0, 0.5, 2.0, -1.0, 0.5, -INF, 1.5, 0.0, 2.0, 1.0, 0.5]).double()
    history = [3, 1, 4, 1, 0, 6, 8, 3, 1]
    expected = t.from_numpy(by_numpy(logits.numpy(), history, args)) * n

    rows, histories = logits.expand(n, -1), t.tensor(history).expand(n, -1)
    drawn = next_token(histories, rows, args, t.Generator().manual_seed(5))

    found = drawn.bincount(minlength=D_VOCAB).double()
    possible = expected > 0
    assert found[~possible].sum() == 0
    chi_squared = ((found - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = t.tensor((int(possible.sum()) - 1) / 2, dtype=t.float64)
    # how often chance alone is as far off; with one possible token, it never is
    assert freedom == 0 or t.special.gammaincc(freedom, chi_squared / 2) > 1e-3


@pytest.mark.parametrize(("d_vocab", "n", "times"), [(47, 10_000, 100), (50_257, 50, 1)])
def test_a_million_draws_from_forty(d_vocab: int, n: int, times: int) -> None:
    """With top-k 40, a million draws give none but the forty (case 32); nor do 50 of 50,257."""
    logits = t.randn(d_vocab, generator=t.Generator().manual_seed(3))
    best = logits.topk(40).indices
    histories, generator = t.empty(n, 0, dtype=t.long), t.Generator().manual_seed(0)

    for _ in range(times):
        drawn = next_token(histories, logits.expand(n, -1), SamplingArgs(top_k=40), generator)
        assert t.isin(drawn, best).all()


@pytest.mark.parametrize(
    ("probabilities", "min_p", "expected"),
    [
        ([0.5, 0.25, 0.15, 0.1], 0.5, [0, 1]),  # exactly half as likely
        ([0.5, 0.25, 0.15, 0.1], 0.5 + 1e-7, [0, 1]),
        ([0.5, 0.25, 0.15, 0.1], 0.5 + 1e-5, [0]),
        ([0.3, 0.3, 0.3, 0.1], 1.0, [0, 1, 2]),  # all equals stay
        ([0.4, 0.0, 0.6], 1e-9, [0, 2]),
        ([0.4, 0.0, 0.6], 0.0, [0, 2]),
    ],
)
def test_min_p_by_hand(probabilities: list[float], min_p: float, expected: list[int]) -> None:
    """What is at least min_p times as likely as the likeliest stays, within a millionth."""
    logits = t.tensor(probabilities, dtype=t.float64).log()

    drawn = sample_min_p(logits.expand(5_000, -1), min_p, t.Generator().manual_seed(0))

    assert sorted(set(drawn.tolist())) == expected


def test_a_row_with_its_own_generator_is_the_row_alone() -> None:
    """With a generator each, a row's token is the one that it gets by itself, batch or not."""
    rows, histories = rows_and_histories()
    rows, histories = rows[:40], histories[:40]
    args = SamplingArgs(temperature=1.3, top_p=0.9)

    together = next_token(
        histories, rows, args, [t.Generator().manual_seed(seed) for seed in range(40)]
    )

    alone = [
        next_token(histories[i], rows[i], args, t.Generator().manual_seed(i)).item()
        for i in range(40)
    ]
    assert together.tolist() == alone


def test_neighbouring_seeds_draw_independently() -> None:
    """The first draws of the seeds 0 to 4,999 pass a chi-squared test: seed + 1 is a new seed."""
    n, logits = 5_000, t.tensor([3.0, 2.0, 1.0, 0.0, -1.0]).double()
    generators = [t.Generator().manual_seed(seed) for seed in range(n)]

    drawn = next_token(
        t.empty(n, 0, dtype=t.long), logits.expand(n, -1), SamplingArgs(), generators
    )

    expected = logits.softmax(-1) * n
    found = drawn.bincount(minlength=5).double()
    chi_squared = ((found - expected) ** 2 / expected).sum()
    assert t.special.gammaincc(t.tensor(2.0).double(), chi_squared / 2) > 1e-3
    pairs = (drawn[:-1] * 5 + drawn[1:]).bincount(minlength=25).double()
    joint = (logits.softmax(-1)[:, None] * logits.softmax(-1)).flatten() * (n - 1)
    chi_squared = ((pairs - joint) ** 2 / joint).sum()
    assert t.special.gammaincc(t.tensor(12.0).double(), chi_squared / 2) > 1e-3
