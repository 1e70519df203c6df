"""What `python -m pvml.modules.block` prints: a block, and its layers' tensors between its own."""

from pvml.demos.lines import (
    as_input,
    count,
    float64_parameters,
    print_parity,
    reference_pass,
    traced,
)
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import block


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    module = subject.model.get_submodule("blocks.0")
    x, same = as_input(reference_pass(subject)["blocks.0.resid_pre"], subject)
    print(subject.note)
    print()
    print(f"block parameters: {count(module):,}")
    print()
    out = traced(module, x)
    print()
    truth = block(float64_parameters(module), subject.model.cfg, same)
    print_parity(out, truth["resid_post"])
