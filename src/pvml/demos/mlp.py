"""What `python -m pvml.modules.mlp` prints: the first MLP, fed what the first attention left."""

from pvml.demos.lines import (
    as_input,
    float64_parameters,
    print_parameters,
    print_parity,
    reference_pass,
    traced,
)
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import mlp


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    module = subject.model.get_submodule("blocks.0.mlp")
    x, same = as_input(reference_pass(subject)["blocks.0.mlp.normalized_resid_mid"], subject)
    print(subject.note)
    print()
    print_parameters(module)
    print()
    out = traced(module, x)
    print()
    print_parity(out, mlp(float64_parameters(module), same)["mlp_out"])
