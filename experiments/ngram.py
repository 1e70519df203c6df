"""How far does counting get? An n-gram model's bits per byte on held-out documents.

The bar that a trained transformer has to clear: interpolated modified Kneser-Ney over the same
tokens, the same training documents and the same held-out ones. It is written out here because
nltk.lm, the library for this in Python, looks up one word at a time in nested dicts (an epoch has
millions), and KenLM's Python package only reads models that a separate C++ program has made.

    python experiments/ngram.py --data storybook --tokenizer bpe:1024 --order 5

Source: Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling",
section 3; n-grams at the beginning of a document count as in Heafield et al. 2013, section 3.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tyro
from jaxtyping import Float, Int

from ending import ended
from pvml.data.sources import open_corpus
from pvml.data.split import split_documents
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

UNSEEN = -1


@dataclass(frozen=True)
class Level:
    """What is known of the n-grams of one length. An n-gram's id is its place in `keys`."""

    keys: Int[np.ndarray, " n_grams"]
    """(id of the first n - 1 tokens) * d_vocab + last token, ascending."""
    share: Float[np.ndarray, " n_grams"]
    """Discounted share of the last token among all that followed the first n - 1."""
    backoff: Float[np.ndarray, " n_contexts"]
    """By id of the first n - 1 tokens: the weight left to the shorter context."""

    def find(self, keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The id of each key's n-gram, UNSEEN where training had none."""
        if not len(self.keys):
            return np.full(len(keys), UNSEEN)
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, UNSEEN)


class KneserNey:
    """An n-gram model: counts of sequences of token ids, smoothed so that nothing is impossible.

    A sequence's first token (BOS) is context only: it is never predicted.

    Raises: PvmlError for an order below 1, or no token to predict.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], order: int, d_vocab: int):
        tokens, place = _joined(sequences)
        if order < 1 or not np.any(place):
            raise PvmlError(
                f"order must be at least 1 and some sequence must hold 2 tokens, got order {order} "
                f"and {len(tokens)} tokens in {len(sequences)} sequences"
            )
        self.order, self.d_vocab = order, d_vocab
        self.levels: list[Level] = []
        ids = tokens  # of the n-gram that ends at each position, n growing below
        keys, counts = np.arange(d_vocab), np.bincount(tokens[place > 0], minlength=d_vocab)
        n_contexts = 1
        for n in range(1, order + 1):
            ends = np.flatnonzero(place >= n)  # of the (n + 1)-grams
            longer, first, inverse, longer_counts = np.unique(
                ids[ends - 1] * d_vocab + tokens[ends],
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            if n < order:
                # Below the highest order an n-gram counts once for each token seen before it. One
                # that opens a document has none before it, and counts as often as it occurs.
                counts = np.bincount(ids[ends[first]], minlength=len(keys))
                if n > 1:
                    counts += np.bincount(ids[place == n - 1], minlength=len(keys))
            self.levels.append(_level(keys, counts, n_contexts, d_vocab))
            n_contexts, keys, counts = len(keys), longer, longer_counts
            ids = np.full(len(tokens), UNSEEN)
            ids[ends] = inverse

    def probabilities(self, sequences: Sequence[Sequence[int]]) -> Float[np.ndarray, " predicted"]:
        """The probability in (0, 1) of every token but each sequence's first, given those before.

        Probabilities of one context sum to 1 over the vocabulary.
        """
        tokens, place = _joined(sequences)
        probability = np.full(len(tokens), 1 / self.d_vocab)
        ids = np.zeros(len(tokens), dtype=np.int64)  # the empty context, then ever longer ones
        for n, level in enumerate(self.levels, start=1):
            context = np.where(place >= n - 1, np.roll(ids, 1) if n > 1 else ids, UNSEEN)
            known = context != UNSEEN
            ids = np.full(len(tokens), UNSEEN)
            ids[known] = level.find(context[known] * self.d_vocab + tokens[known])
            share = np.where(ids == UNSEEN, 0.0, level.share[ids])
            probability[known] *= level.backoff[context[known]]
            probability[known] += share[known]
        return probability[place > 0]


def _joined(sequences: Sequence[Sequence[int]]) -> tuple[Int[np.ndarray, " n"], ...]:
    """All tokens in a row, and each one's place in its own sequence."""
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    tokens = np.fromiter((i for sequence in sequences for i in sequence), dtype=np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return tokens, np.arange(len(tokens)) - starts


def _level(
    keys: Int[np.ndarray, " n_grams"],
    counts: Int[np.ndarray, " n_grams"],
    n_contexts: int,
    d_vocab: int,
) -> Level:
    context = keys // d_vocab
    discount = discounts(counts)[counts.clip(max=3)]
    total = np.bincount(context, weights=counts, minlength=n_contexts)
    taken = np.bincount(context, weights=discount, minlength=n_contexts)
    share = (counts - discount) / total[context]
    # A context that nothing followed (it ended a document) leaves everything to the shorter one.
    return Level(keys, share, np.divide(taken, total, out=np.ones(n_contexts), where=total > 0))


def discounts(counts: Int[np.ndarray, " n_grams"]) -> Float[np.ndarray, " 4"]:
    """What is taken from a count of 0, 1, 2, and 3 or more.

    Counts too few or too odd for the estimate get 0, 0.5, 1, 1.5, as in KenLM.
    """
    n = np.bincount(counts.clip(max=5), minlength=6)
    if n[1:5].all():
        y = n[1] / (n[1] + 2 * n[2])
        estimate = np.array([0.0] + [i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)])
        if np.all(estimate >= 0):
            return estimate
    return np.array([0.0, 0.5, 1.0, 1.5])


def bits_per_byte(model: KneserNey, tokenizer: Tokenizer, documents: Sequence[str]) -> float:
    """Bits that `model` needs for each UTF-8 byte, every document alone, end-of-text included."""
    probabilities = model.probabilities(sequences(tokenizer, documents))
    n_bytes = sum(len(document.encode()) for document in documents)
    return float(-np.log2(probabilities).sum() / n_bytes)


def sequences(tokenizer: Tokenizer, documents: Sequence[str]) -> list[list[int]]:
    """Each document's ids between BOS and end-of-text."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return [[bos, *ids, eos] for ids in tokenizer.encode_batch(documents)]


@dataclass(frozen=True, kw_only=True)
class Args:
    """An n-gram model's bits per byte on held-out documents."""

    data: str = "storybook"
    """The corpus: storybook, storybook:N, tinystories, or a file or folder."""
    limit: int | None = None
    """Read no more than this many documents."""
    tokenizer: str = "bpe:1024"
    """The vocabulary: gpt2, or bpe:N trained on the training documents."""
    order: int = 5
    """Tokens in the longest n-gram: 5 predicts from the last 4."""
    n_held_out: int | None = None
    """Documents to measure on, never counted. Unset: 1,000, or a tenth of a small corpus."""
    seed: int = 0
    """Chooses the held-out documents."""


def main(args: Args) -> int:
    """Count, measure, print."""
    corpus = open_corpus(args.data, args.limit)
    train, held_out = split_documents(list(corpus), args.n_held_out, args.seed)
    tokenizer = Tokenizer.from_spec(args.tokenizer, train)
    began = time.perf_counter()
    counted = sequences(tokenizer, train)
    model = KneserNey(counted, args.order, tokenizer.d_vocab)
    n_tokens = sum(map(len, counted)) - len(counted)
    print(
        f"{corpus.name}: {len(train):,} documents to count ({n_tokens:,} tokens of "
        f"{tokenizer.name}), {len(held_out):,} held out"
    )
    print(f"{args.order}-gram: {bits_per_byte(model, tokenizer, held_out):.4f} bits per byte")
    print(f"uniform: {_uniform(tokenizer, held_out):.4f} bits per byte")
    print(f"{time.perf_counter() - began:.1f} s, {len(model.levels[-1].keys):,} {args.order}-grams")
    return 0


def _uniform(tokenizer: Tokenizer, documents: Sequence[str]) -> float:
    n_predicted = sum(len(ids) - 1 for ids in sequences(tokenizer, documents))
    n_bytes = sum(len(document.encode()) for document in documents)
    return n_predicted * math.log2(tokenizer.d_vocab) / n_bytes


if __name__ == "__main__":
    sys.exit(ended("ngram", lambda: main(tyro.cli(Args))))
