"""Does a model without layers come to the bigrams of its text?

Its logits are `W_E W_U`, a row for each token: at best the log-probabilities of what follows it.
Source of the three questions here: Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits".
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as t

from ngram import KneserNey, sequences

if TYPE_CHECKING:
    from reproduce import Trained

FLAGS = "--n-layers 0 --n-heads 4 --positions none --optimizer adamw --lr 0.01"


def measure(trained: "Trained") -> dict[str, Any]:
    """The model's losses and those of counting, on both texts (nats per token); the distances.

    On the training text no bigram model is better than the shares themselves; on held-out text the
    counts are smoothed (interpolated modified Kneser-Ney, order 2).
    """
    tokenizer = trained.tokenizer
    every_token = t.arange(tokenizer.d_vocab)[:, None]
    with t.no_grad():
        log_shares = trained.model(every_token)[:, 0].double().log_softmax(-1).numpy()
    train, held_out = (sequences(tokenizer, side) for side in (trained.train, trained.held_out))
    smoothed = KneserNey(train, 2, tokenizer.d_vocab).probabilities(held_out)
    pairs = counted(train, tokenizer.d_vocab)
    found = {
        "uniform": math.log(tokenizer.d_vocab),
        "train_unigram": entropy(pairs.sum(0)),
        "train_bigram": entropy(pairs) - entropy(pairs.sum(1)),
        "train_model": mean_loss(log_shares, pairs),
        "held_out_bigram": float(-np.log(smoothed).mean()),
        "held_out_model": mean_loss(log_shares, counted(held_out, tokenizer.d_vocab)),
    }
    distances = {
        f"{side}_distance": found[f"{side}_model"] - found[f"{side}_bigram"]
        for side in ("train", "held_out")
    }
    return {**found, **distances}


def told(found: Mapping[str, Any]) -> list[str]:
    """What was found, as lines for people."""
    return [
        f"{side} text: the model {found[f'{key}_model']:.3f} nats per token, counted pairs "
        f"{found[f'{key}_bigram']:.3f}, a distance of {found[f'{key}_distance']:+.3f}"
        for side, key in (("training", "train"), ("held-out", "held_out"))
    ] + [f"(unigrams {found['train_unigram']:.3f}, an even guess {found['uniform']:.3f})"]


def in_short(found: Mapping[str, Any]) -> str:
    """How far the model is from the pairs that were counted, on both texts."""
    return (
        f"nats per token above counted pairs: training text {found['train_distance']:+.3f}, "
        f"held-out text {found['held_out_distance']:+.3f}"
    )


def counted(documents: list[list[int]], d_vocab: int) -> "np.ndarray[Any, Any]":
    """How often each token (column) follows each (row)."""
    pairs = np.zeros((d_vocab, d_vocab))
    for ids in documents:
        np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    return pairs


def entropy(counts: "np.ndarray[Any, Any]") -> float:
    """Of the shares that these counts are (nats)."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def mean_loss(log_shares: "np.ndarray[Any, Any]", pairs: "np.ndarray[Any, Any]") -> float:
    """What predicting by a row's shares costs, over pairs as often as they occur (nats a pair)."""
    return float(-(log_shares * pairs).sum() / pairs.sum())


if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
