"""What `python -m pvml.modules.mlp` prints: the first MLP, fed what the first attention left."""

from pvml.demos.lines import print_layer
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import mlp


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    print_layer(
        subject, "blocks.0.mlp", "normalized_resid_mid", lambda own, x: mlp(own, x)["mlp_out"]
    )
