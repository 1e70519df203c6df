"""The n-gram model: by hand on a small case, normalised, measured in bits per byte."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError


@pytest.fixture(scope="module")
def ngram(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ngram", root / "experiments" / "ngram.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ngram"] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


def noisy_sequences(n_sequences: int, d_vocab: int, seed: int) -> list[list[int]]:
    """BOS (0), then tokens that mostly follow from the one before, then 0 again."""
    random = np.random.default_rng(seed)
    sequences = []
    for _ in range(n_sequences):
        token, sequence = 0, [0]
        for _ in range(random.integers(0, 19)):
            token = int(token * 3 + 1 + random.poisson(0.7)) % (d_vocab - 1) + 1
            sequence.append(token)
        sequences.append([*sequence, 0])
    return sequences


def test_bigram_by_hand(ngram: ModuleType) -> None:
    """Two sequences, 0 1 2 0 and 0 1 0: discounts 0.5 and 1 give these probabilities."""
    model = ngram.KneserNey([[0, 1, 2, 0], [0, 1, 0]], order=2, d_vocab=3)
    # Bigrams: 01 twice, 12, 20 and 10 once. Distinct tokens before: 0 has two, 1 and 2 have one.
    # Unigrams: total 4, taken 1 + 0.5 + 0.5 = 2, so a half is left to 1/3.
    one_0, one_1, one_2 = (2 - 1) / 4 + 1 / 6, (1 - 0.5) / 4 + 1 / 6, (1 - 0.5) / 4 + 1 / 6
    after_0 = {0: 0.5 * one_0, 1: (2 - 1) / 2 + 0.5 * one_1, 2: 0.5 * one_2}
    after_1 = {0: 0.25 + 0.5 * one_0, 1: 0.5 * one_1, 2: 0.25 + 0.5 * one_2}
    for context, expected in ((0, after_0), (1, after_1)):
        found = model.probabilities([[context, token] for token in expected])
        assert found == pytest.approx(list(expected.values()), abs=1e-12)


def test_discounts_by_hand(ngram: ModuleType) -> None:
    """With 8, 4, 2 and 1 n-grams seen once to four times: Y = 1/2, D = 1/2, 5/4, 2."""
    counts = np.repeat([1, 2, 3, 4], [8, 4, 2, 1])
    assert ngram.discounts(counts) == pytest.approx([0, 0.5, 1.25, 2.0])


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_sum_to_one(ngram: ModuleType, order: int) -> None:
    """Over the vocabulary, whatever the context: seen, half seen, never seen, or only BOS."""
    d_vocab = 13
    model = ngram.KneserNey(noisy_sequences(97, d_vocab, seed=1), order, d_vocab)
    contexts = [[0], [0, 1], [0, 12, 12, 12, 12, 12], [0, 0, 0]]
    contexts += [s[:-1] for s in noisy_sequences(31, d_vocab, seed=2)]
    for context in contexts:
        continued = [[*context, token] for token in range(d_vocab)]
        last = np.cumsum([len(context)] * d_vocab) - 1
        probabilities = model.probabilities(continued)[last]
        assert probabilities.min() > 0
        assert probabilities.sum() == pytest.approx(1, abs=1e-12)


def test_sequences_are_alone(ngram: ModuleType) -> None:
    """A sequence's probabilities do not depend on what is measured before or after it."""
    sequences = noisy_sequences(11, 13, seed=3)
    model = ngram.KneserNey(noisy_sequences(97, 13, seed=1), 5, 13)
    together = model.probabilities(sequences)
    alone = np.concatenate([model.probabilities([sequence]) for sequence in sequences])
    assert np.array_equal(together, alone)


def test_longer_contexts_pay(ngram: ModuleType) -> None:
    """Where tokens follow from the one before, two-token contexts beat none on new text."""
    train, new = noisy_sequences(499, 13, seed=1), noisy_sequences(101, 13, seed=2)
    bits = [-np.log2(ngram.KneserNey(train, n, 13).probabilities(new)).mean() for n in (1, 2)]
    assert bits[1] < 0.8 * bits[0]


def test_matches_counting_in_dicts(ngram: ModuleType) -> None:
    """A plain recursive implementation with dicts and sets gives the same probabilities."""
    train, new = noisy_sequences(53, 7, seed=4), noisy_sequences(17, 7, seed=5)
    order, d_vocab = 3, 7
    counts: list[dict[tuple[int, ...], int]] = [{} for _ in range(order + 1)]
    for n in range(1, order + 1):
        before: dict[tuple[int, ...], set[int]] = {}
        for s in train:
            for end in range(max(n, 2), len(s) + 1):
                gram = tuple(s[end - n : end])
                if n == order or end == n:
                    counts[n][gram] = counts[n].get(gram, 0) + 1
                else:
                    before.setdefault(gram, set()).add(s[end - n - 1])
        for gram, tokens in before.items():
            counts[n][gram] = counts[n].get(gram, 0) + len(tokens)
    taken = [ngram.discounts(np.array([*c.values(), 0])) for c in counts]

    def probability(context: tuple[int, ...], token: int) -> float:
        shorter = probability(context[1:], token) if context else 1 / d_vocab
        n = len(context) + 1
        following = {g[-1]: c for g, c in counts[n].items() if g[:-1] == context}
        if not following:
            return shorter
        total = sum(following.values())
        left = sum(taken[n][min(c, 3)] for c in following.values()) / total
        own = following.get(token, 0)
        return (own - taken[n][min(own, 3)]) / total + left * shorter

    expected = [
        probability(tuple(s[max(0, i - order + 1) : i]), s[i])
        for s in new
        for i in range(1, len(s))
    ]
    found = ngram.KneserNey(train, order, d_vocab).probabilities(new)
    assert found == pytest.approx(expected, rel=1e-10)


def test_bits_per_byte_counts_end_of_text_and_bytes(ngram: ModuleType) -> None:
    """A model that knows nothing pays log2(d_vocab) for each token and for the end."""
    documents = ["héé", "ab"]
    tokenizer = Tokenizer.train(["zz"], 257)
    model = ngram.KneserNey([[256, 7]], order=1, d_vocab=257)
    model.levels.clear()
    expected = (6 + 3) * math.log2(257) / (5 + 2)
    assert ngram.bits_per_byte(model, tokenizer, documents) == pytest.approx(expected)


def test_nothing_to_count_is_refused(ngram: ModuleType) -> None:
    """An order of 0, or sequences with nothing but BOS, are errors that name what came."""
    with pytest.raises(PvmlError, match="got order 0"):
        ngram.KneserNey([[0, 1]], order=0, d_vocab=2)
    with pytest.raises(PvmlError, match="1 tokens in 1 sequences"):
        ngram.KneserNey([[0]], order=2, d_vocab=2)


def test_command_prints_bits_per_byte(
    ngram: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints a figure between 0 and that of uniform guessing."""
    ngram.main(ngram.Args(data="storybook:300", tokenizer="bpe:512", n_held_out=30))
    figure = {line.split(":")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert 0 < float(figure["5-gram"][1]) < float(figure["uniform"][1])


def test_a_small_corpus_holds_out_a_tenth(
    ngram: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `pvml train` does, where --n-held-out is not given."""
    assert ngram.main(ngram.Args(data="storybook:60", tokenizer="bpe:270", order=2)) == 0
    assert "54 documents to count" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes", [{"data": "/none"}, {"order": 0}, {"n_held_out": 0}, {"limit": 0}]
)
def test_bad_use_is_an_error_that_is_told(ngram: ModuleType, changes: dict[str, Any]) -> None:
    """No other kind of error leaves the command."""
    args = {"data": "storybook:60", "tokenizer": "bpe:270", **changes}
    with pytest.raises(PvmlError):
        ngram.main(ngram.Args(**args))
