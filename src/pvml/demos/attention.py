"""What `python -m pvml.modules.attention` prints: the first attention layer on a sentence."""

from pvml.demos.lines import print_layer, print_pattern
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import attention
from pvml.trace.capture import capture


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    name = "blocks.0.attn.attn_pattern"
    with capture(subject.model, name) as cache:
        print_layer(
            subject,
            "blocks.0.attn",
            "normalized_resid_pre",
            lambda own, x: attention(own, x)["attn_out"],
        )
    print()
    print("attention pattern of head 0")
    print_pattern(cache[name][0, 0], subject.labels)
