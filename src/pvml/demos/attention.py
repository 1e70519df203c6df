"""What `python -m pvml.modules.attention` prints: the first attention layer on a sentence."""

from pvml.demos.lines import (
    as_input,
    float64_parameters,
    print_parameters,
    print_parity,
    print_pattern,
    reference_pass,
    traced,
)
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import attention
from pvml.trace.capture import capture


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    module = subject.model.get_submodule("blocks.0.attn")
    x, same = as_input(reference_pass(subject)["blocks.0.attn.normalized_resid_pre"], subject)
    print(subject.note)
    print()
    print_parameters(module)
    print()
    with capture(module, "attn.attn_pattern") as cache:
        out = traced(module, x)
    print()
    print_parity(out, attention(float64_parameters(module), same)["attn_out"])
    print()
    print("attention pattern of head 0")
    print_pattern(cache["attn.attn_pattern"][0, 0], subject.labels)
