"""What `python -m pvml.training.losses` prints: each prediction of a sentence, graded."""

import math

import torch as t

from pvml.demos.subject import gpt2_or_random
from pvml.training.losses import get_log_probs


def main() -> None:
    """Print the grades of the demonstration sentence."""
    subject = gpt2_or_random()
    with t.no_grad():
        logits = subject.model(subject.tokens)
        log_probs = get_log_probs(logits, subject.tokens)
    words = subject.tokenizer.to_str_tokens(subject.tokens[0])
    words[0] = "<BOS>"

    print(subject.note)
    print(f"logits    {tuple(logits.shape)}")
    print(f"log_probs {tuple(log_probs.shape)}   # one per prediction, not per token")
    print()
    print(f"cross entropy, this model    : {-log_probs.mean():.3f} nats")
    print(f"cross entropy, uniform guess : {math.log(logits.shape[-1]):.3f} nats")
    print(f"mean probability of the true next token: {log_probs.exp().mean():.3f}")
    print()
    print("per prediction")
    for before, after, log_prob in zip(words, words[1:], log_probs[0].tolist(), strict=False):
        graded = f"logprob {log_prob:7.3f}   p {math.exp(log_prob):.4f}"
        print(f"{before:>10} -> {after:<8} {graded}")
