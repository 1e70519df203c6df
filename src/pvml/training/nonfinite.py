"""Where a pass first went wrong: the first tensor with a NaN or an infinity, by name."""

from jaxtyping import Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.finite import all_finite
from pvml.modules.inference import inference
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen


class NonFiniteError(PvmlError):
    """A loss, a gradient or a weight became NaN or infinite."""

    @classmethod
    def of(cls, what: str, lr: float, first: str | None = None) -> "NonFiniteError":
        """The error that says what, at which learning rate, and which tensor was the first."""
        where = f"; the first tensor that is not finite: {first}" if first else ""
        return cls(f"{what}, at lr {lr:g}{where}")


def first_non_finite(model: Transformer, tokens: Int[Tensor, "batch posn"]) -> str | None:
    """The name of the first weight that is not finite, or else of the first tensor of the pass.

    None: everything up to the logits is finite. Masked scores, which are -inf on purpose, do not
    count.
    """
    weight = first_non_finite_weight(model)
    if weight is not None:
        return weight
    found: list[str] = []

    def look(name: str, x: Tensor) -> None:
        on_purpose = name.endswith("attn_scores_masked")
        if not found and not on_purpose and not all_finite(x):
            found.append(name)

    with inference(model), listen(model, "*", look):
        model(tokens)
    return found[0] if found else None


def first_non_finite_weight(model: Transformer, *, gradients: bool = False) -> str | None:
    """The name of the first parameter that is not finite (or whose gradient is not); None: none."""
    for name, parameter in model.named_parameters():
        x = parameter.grad if gradients else parameter
        if x is not None and not all_finite(x):
            return name
    return None
