"""What `python -m pvml.modules.embedding` prints: a sentence's ids, and both tables at work."""

from pvml.demos.lines import float64_parameters, print_parameters, print_parity, traced
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference import numpy_forward as reference


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=0)
    ids = subject.tokens
    print(subject.note)
    print()
    print(f"text   {subject.tokenizer.decode(ids[0, 1:])!r}")
    print(f"ids    {' '.join(map(str, ids[0].tolist()))}")
    print(f"tokens {subject.tokenizer.to_str_tokens(ids[0])}")
    print(f"shape  {tuple(ids.shape)}   # (batch, posn)")
    for module, formula in (
        (subject.model.embed, reference.embed),
        (subject.model.pos_embed, reference.pos_embed),
    ):
        print()
        print_parameters(module)
        print()
        out = traced(module, ids)
        truth = formula(float64_parameters(module), ids.numpy())
        print()
        print_parity(out, truth["out"])
