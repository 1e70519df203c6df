"""What `python -m pvml.modules.normalization` prints: the first LayerNorm on a real stream."""

from pvml.demos.lines import (
    as_input,
    float64_parameters,
    print_parameters,
    print_parity,
    reference_pass,
    traced,
)
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import layer_norm


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    module = subject.model.get_submodule("blocks.0.ln1")
    x, same = as_input(reference_pass(subject)["blocks.0.ln1.residual"], subject)
    print(subject.note)
    print()
    print_parameters(module)
    print()
    out = traced(module, x)
    truth = layer_norm(float64_parameters(module), same, subject.model.cfg.layer_norm_eps)
    print()
    print_parity(out, truth["out"])
