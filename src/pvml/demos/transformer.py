"""What `python -m pvml.modules.transformer` prints: the whole model against the reference."""

import torch as t

from pvml.demos.lines import print_next_tokens, print_parity, reference_pass
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.modules.transformer import Transformer
from pvml.parity.check import parameters_of, unmatched


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random()
    model = subject.model
    missing, unexpected = unmatched(parameters_of(model), model.cfg)
    print(subject.note)
    print()
    print(f"parameters      : {model.parameter_counts()['total']:,}")
    print(f"missing keys    : {missing}   # the reference reads them, the model has none such")
    print(f"unexpected keys : {len(unexpected)} ({unexpected})")

    with t.no_grad():
        logits = model(subject.tokens)
    truth = reference_pass(subject)["unembed.logits"]
    print()
    print(f"logits {tuple(logits.shape)}")
    print_parity(logits, truth)
    same = (logits.argmax(-1).numpy() == truth.argmax(-1)).all()
    print(f"same argmax everywhere: {bool(same)}")
    print()
    print_next_tokens(logits[0], subject)
    print()
    print_breakdown(model)


def print_breakdown(model: Transformer) -> None:
    """How many parameters each part holds, in all, and in all if both tables were one."""
    counts = model.parameter_counts()
    for name, n in counts.items():
        print(f"  {name:<10}{n:>13,}")
    if not model.cfg.tie_embeddings:
        tied = counts["total"] - counts["unembed"]
        print(f"  {'tied':<10}{tied:>13,}   # with W_E transposed as W_U, and no b_U")
