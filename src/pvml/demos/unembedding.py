"""What `python -m pvml.modules.unembedding` prints: the finished stream turned into predictions."""

from pvml.demos.lines import print_layer, print_next_tokens
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.reference.numpy_forward import unembed


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=1)
    module = subject.model.unembed
    # asked of the module by name: a tied W_U is no parameter of its own
    tables = {name: getattr(module, name).detach().double().numpy() for name in ("W_U", "b_U")}
    logits = print_layer(
        subject,
        "unembed",
        "normalized_resid_final",
        lambda _, x: unembed(tables, x)["logits"],
        trained=True,
    )
    print()
    print_next_tokens(logits[0], subject)
