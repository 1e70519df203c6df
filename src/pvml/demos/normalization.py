"""What `python -m pvml.modules.normalization` prints: the first LayerNorm on a real stream."""

from pvml.demos.lines import print_layer
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import layer_norm


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    eps = subject.model.cfg.layer_norm_eps
    print_layer(subject, "blocks.0.ln1", "residual", lambda own, x: layer_norm(own, x, eps)["out"])
