"""The lines that all demonstrations print: parameters, trace, parity, tables. Not what is shown."""

from collections.abc import Callable, Sequence

import numpy as np
import torch as t
from jaxtyping import Float
from torch import Tensor, nn

from pvml.data.tokenizer import Tokenizer
from pvml.demos.subject import Subject
from pvml.parity.check import parameters_of
from pvml.reference.numpy_forward import forward
from pvml.trace.printer import printing

REFERENCE = "the float64 NumPy reference"


def print_parameters(module: nn.Module, *, trained: bool = False) -> None:
    """A line with the shape of each of the module's parameters, then how many numbers they hold.

    trained: also say which of them training may change.
    """
    named = dict(module.named_parameters())
    width = max(map(len, named)) + 1
    for name, x in named.items():
        note = f"  requires_grad={x.requires_grad}" if trained else ""
        print(f"{name:>{width}}: {tuple(x.shape)}{note}")
    print(f"{'total':>{width}}: {count(module):,} parameters")


def count(module: nn.Module) -> int:
    """How many numbers the module's parameters hold, frozen ones included."""
    return sum(x.numel() for x in module.parameters())


def traced(module: nn.Module, x: Tensor) -> Tensor:
    """The module's result for `x`; each named tensor prints its line on the way."""
    with printing(module), t.no_grad():
        result: Tensor = module(x)
    return result


def print_layer(
    subject: Subject,
    path: str,
    reads: str,
    formula: Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray],
    *,
    trained: bool = False,
) -> Tensor:
    """A layer of the subject's model at work; its result.

    path: the layer's. reads: the tensor that it is given, as the reference computes it. formula:
    the reference's result, of the layer's parameters and that tensor. trained: as in
    `print_parameters`.
    """
    module = subject.model.get_submodule(path)
    x, same = as_input(reference_pass(subject)[f"{path}.{reads}"], subject)
    print(subject.note)
    print()
    print_parameters(module, trained=trained)
    print()
    out = traced(module, x)
    print()
    print_parity(out, formula(float64_parameters(module), same))
    return out


def print_parity(ours: Tensor, truth: np.ndarray) -> None:
    """The line that says how far the result is from the reference's."""
    difference = np.abs(ours.detach().double().cpu().numpy() - truth).max()
    print(f"max abs diff vs {REFERENCE}: {difference:.3e}")


def reference_pass(subject: Subject) -> dict[str, np.ndarray]:
    """Every named tensor of the subject's sentence, computed by the reference."""
    model = subject.model
    return forward(parameters_of(model), model.cfg, subject.tokens.numpy())


def as_input(x: np.ndarray, subject: Subject) -> tuple[Tensor, np.ndarray]:
    """A tensor of the reference's, rounded to what the model computes in, for both sides alike."""
    rounded = t.from_numpy(x).to(subject.model.dtype)
    return rounded, rounded.double().numpy()


def float64_parameters(module: nn.Module) -> dict[str, np.ndarray]:
    """The module's parameters, by their own names, for the reference to compute with."""
    return {name: array.astype(np.float64) for name, array in parameters_of(module).items()}


def print_pattern(pattern: Float[Tensor, "posn_q posn_k"], labels: Sequence[str]) -> None:
    """One head's pattern as a table: a row for each query, a column for each key."""
    column = max(8, *(len(label) + 1 for label in labels))
    side = max(14, *(len(label) + 1 for label in labels))
    print(f"{'query / key':>{side}}" + "".join(f"{label:>{column}}" for label in labels))
    for label, row in zip(labels, pattern.tolist(), strict=True):
        print(f"{label:>{side}}" + "".join(f"{share:{column}.2f}" for share in row))


def next_tokens(logits: Float[Tensor, "posn d_vocab"], tokenizer: Tokenizer) -> list[str]:
    """For each position, the token that the model finds likeliest to come next."""
    return [tokenizer.decode([best]) for best in logits.argmax(-1).tolist()]


def print_next_tokens(logits: Float[Tensor, "posn d_vocab"], subject: Subject) -> None:
    """The likeliest next tokens as a table: a row for each position."""
    print("next-token predictions")
    for label, best in zip(subject.labels, next_tokens(logits, subject.tokenizer), strict=True):
        print(f"{label:>10}  ->  {best!r}")
