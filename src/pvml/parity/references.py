"""What a model is judged by: the formulae in float64, Hugging Face's GPT-2, or TransformerLens.

Each gives its tensors and gradients in float64, by PvML's full names: the truth. And it says how
far off that truth it is itself when it computes in a narrower type: what may be rounding. All of
it happens on the CPU.
"""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.parity.check import array_of, compare, parameters_of
from pvml.parity.passes import Arrays, next_token_loss
from pvml.reference.names_out import not_in_gpt2
from pvml.reference.numpy_backward import gradients as formula_gradients
from pvml.reference.numpy_backward import mean_cross_entropy
from pvml.reference.numpy_forward import forward

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

Against = Literal["hf", "transformer_lens", "float64"]
"""The references, as the command line calls them."""
Errors = dict[str, float]
"""For each tensor, its largest error as a share of its largest value."""


class Reference:
    """The formulae, in NumPy; the base of references that know some tensors from elsewhere."""

    title = "the float64 NumPy reference"
    """What to call it in a sentence."""
    short = "float64"
    """What to call it in a column."""
    own_weights = False
    """Whether it read its weights itself, so that the model's are to be compared with them."""

    def __init__(self, parameters: Arrays, cfg: Config) -> None:
        """parameters: the weights to compute with, by PvML's names, of any floating type."""
        self.parameters = parameters
        self.cfg = cfg
        self.reached: frozenset[str] = frozenset()
        """Tensors that were computed elsewhere than by the formulae, once `tensors` was called."""

    def tensors(self, tokens: Int[Tensor, "batch posn"]) -> Arrays:
        """Every named tensor of a pass, in the order of the pass, in float64."""
        return forward(self.parameters, self.cfg, tokens.numpy())

    def gradients(self, tokens: Int[Tensor, "batch posn"]) -> Arrays:
        """The next-token loss's gradient by every parameter and by tensors of the pass, in float64.

        Raises: PvmlError where this reference has none.
        """
        return self._gradients(tokens.numpy(), np.float64)

    def rounding(self, tokens: Int[Tensor, "batch posn"], truth: Arrays, dtype: t.dtype) -> Errors:
        """Its error against truth, its `tensors`, when it computes in `dtype`.

        The formulae's is measured in float32, and scaled from there: NumPy has no half type that
        multiplies matrices.
        """
        rounded = forward(self.parameters, self.cfg, tokens.numpy(), None, np.float32)
        return _scaled(errors(rounded, truth), dtype)

    def gradient_rounding(
        self,
        tokens: Int[Tensor, "batch posn"],
        truth: Arrays,
        dtype: t.dtype,
        scales: Mapping[str, float],
    ) -> Errors:
        """Its error against truth, its `gradients`, when it computes in `dtype`.

        scales: as in `compare`.
        """
        rounded = self._gradients(tokens.numpy(), np.float32)
        return _scaled(errors(rounded, truth, scales), dtype)

    def kernel_rounding(
        self, tokens: Int[Tensor, "batch posn"], truth: Arrays, scales: Mapping[str, float]
    ) -> Errors:
        """The formulae's error against truth, its `gradients`, in float32, summed as kernels do."""
        rounded = self._gradients(tokens.numpy(), np.float32, as_kernels=True)
        return errors(rounded, truth, scales)

    def _gradients(
        self, ids: np.ndarray, dtype: type[np.floating], *, as_kernels: bool = False
    ) -> Arrays:
        logits = forward(self.parameters, self.cfg, ids, None, dtype)["unembed.logits"]
        d_logits = mean_cross_entropy(logits, ids)
        return formula_gradients(
            self.parameters, self.cfg, ids, d_logits, None, dtype, as_kernels=as_kernels
        )


class HuggingFace(Reference):
    """GPT2LMHeadModel, and the formulae for what it does not expose: statistics, scores, mask."""

    title = "Hugging Face's GPT2LMHeadModel"
    short = "hf"

    def __init__(self, model: "GPT2LMHeadModel", cfg: Config, *, own_weights: bool) -> None:
        """model: of any type; it is turned into float64, in place. own_weights: see `Reference`."""
        from pvml.reference import huggingface

        self.hf = huggingface
        self.model = model.double().eval()
        self.own_weights = own_weights
        named = huggingface.weights_of(self.model, cfg)
        super().__init__({name: x.numpy() for name, x in named.items()}, cfg)

    @classmethod
    def like(cls, model: Transformer) -> "HuggingFace":
        """Hugging Face's model with this model's weights.

        Raises: PvmlError with every reason why a GPT-2 cannot hold them.
        """
        from pvml.reference.huggingface import gpt2_with

        return cls(gpt2_with(model.state_dict(), model.cfg), model.cfg, own_weights=False)

    def tensors(self, tokens: Int[Tensor, "batch posn"]) -> Arrays:
        own = _arrays(self.hf.activations(self.model, tokens))
        self.reached = frozenset(own)
        return {**super().tensors(tokens), **own}

    def gradients(self, tokens: Int[Tensor, "batch posn"]) -> Arrays:
        return _arrays(self.hf.gradients(self.model, self.cfg, tokens, next_token_loss))

    def rounding(self, tokens: Int[Tensor, "batch posn"], truth: Arrays, dtype: t.dtype) -> Errors:
        rounded = _arrays(self.hf.activations(self._in(dtype), tokens))
        return {**super().rounding(tokens, truth, dtype), **errors(rounded, truth)}

    def gradient_rounding(
        self,
        tokens: Int[Tensor, "batch posn"],
        truth: Arrays,
        dtype: t.dtype,
        scales: Mapping[str, float],
    ) -> Errors:
        rounded = self.hf.gradients(self._in(dtype), self.cfg, tokens, next_token_loss)
        return errors(_arrays(rounded), truth, scales)

    def _in(self, dtype: t.dtype) -> "GPT2LMHeadModel":
        return copy.deepcopy(self.model).to(dtype)


class TransformerLens(Reference):
    """TransformerLens 4's hooks, and the formulae for what they do not reach."""

    title = "TransformerLens"
    short = "lens"

    def __init__(self, model: Transformer) -> None:
        """model: whose weights to take.

        Raises: ImportError without the extra `lens`.
        """
        from pvml.reference import transformer_lens

        self.lens = transformer_lens
        self.model = copy.deepcopy(model).cpu().double()
        super().__init__(parameters_of(self.model), model.cfg)

    def tensors(self, tokens: Int[Tensor, "batch posn"]) -> Arrays:
        """As `Reference.tensors`.

        Raises: PvmlError with the reasons why TransformerLens cannot hold this model.
        """
        own = _arrays(self.lens.lens_activations(self.model, tokens))
        self.reached = frozenset(own)
        return {**super().tensors(tokens), **own}

    def gradients(self, tokens: Int[Tensor, "batch posn"]) -> Arrays:
        raise PvmlError(
            "gradients are compared with Hugging Face's or with the formulae's, not with "
            "TransformerLens's: leave --backward out, or take --against hf or --against float64"
        )


def reference_for(model: Transformer, against: str) -> Reference:
    """The reference of that name (one of `Against`), with the model's own weights.

    Raises: PvmlError with the reasons why it cannot hold them, or for a missing extra.
    """
    if against not in get_args(Against):
        raise PvmlError(f"a reference is one of {', '.join(get_args(Against))}; got {against!r}")
    if against == "float64":
        return Reference(parameters_of(model), model.cfg)
    if against == "hf" and (reasons := not_in_gpt2(model.cfg, model.state_dict())):
        raise PvmlError(
            f"Hugging Face's GPT-2 cannot hold this model: {'; '.join(reasons)}. "
            f"--against float64 compares it with the formulae"
        )
    try:
        return HuggingFace.like(model) if against == "hf" else TransformerLens(model)
    except ImportError as problem:
        raise PvmlError(f"{problem}; or compare with --against float64") from problem


def gradient_scales(truth: Arrays) -> dict[str, float]:
    """For each b_K, the size of what its gradient sums: the sum itself is 0.

    A constant added to all of a query's scores changes none of its shares, so what comes back to
    b_K from the positions cancels, and only rounding is left of it.
    """
    return {
        name: float(np.abs(truth[keys]).sum((0, 1)).max(initial=0.0))
        for name in truth
        if name.endswith(".attn.b_K") and (keys := name.removesuffix("b_K") + "k") in truth
    }


def errors(found: Arrays, truth: Arrays, scales: Mapping[str, float] | None = None) -> Errors:
    """The relative error of each tensor that both have. scales: as in `compare`."""
    both = {name: truth[name] for name in truth if name in found}
    rows = compare({name: found[name] for name in both}, both, 0.0, scales=scales)
    return {row.name: row.relative for row in rows}


def _scaled(found: Errors, dtype: t.dtype) -> Errors:
    wider = t.finfo(dtype).eps / t.finfo(t.float32).eps
    return {name: error * wider for name, error in found.items()}


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: array_of(x) for name, x in tensors.items()}
