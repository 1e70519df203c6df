"""One pass, held: with patterns and LayerNorm scales frozen, the rest of the model is linear.

What an MLP adds is held too, as a source that later heads carry on like an embedding. `paths/`
and `score_paths.py` take the linear rest apart. Source: Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits", "two-layer attention-only transformers".
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import CheckFailed, PvmlError
from pvml.finite import all_finite
from pvml.modules.attention import Attention
from pvml.modules.block import TransformerBlock
from pvml.modules.normalization import LayerNorm
from pvml.modules.transformer import Transformer
from pvml.plain import plain
from pvml.processing.advice import advice
from pvml.processing.folding import folded

Head = tuple[int, int]
"""Layer and head, both counted from 0."""
TOLERANCE = {t.float64: 1e-12, t.float32: 1e-5, t.float16: 2e-2, t.bfloat16: 1e-1}
"""Largest error of a sum allowed, relative to the largest that it is of, by the model's dtype."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldPass:
    """What one sequence's pass is frozen at. All tensors are in float32 at least."""

    model: Transformer
    tokens: Int[Tensor, " posn"]
    patterns: tuple[Float[Tensor, "n_heads posn posn"], ...]
    """One for each layer."""
    streams: tuple[Float[Tensor, "posn d_model"], ...]
    """What each layer reads, before its ln1."""
    stds: tuple[Float[Tensor, " posn"], ...]
    """What each layer's ln1 divides by; 1 in a model without LayerNorm."""
    final_std: Float[Tensor, " posn"]
    """What ln_final divides by; 1 in a model without."""
    mlp_outs: tuple[Float[Tensor, "posn d_model"], ...]
    """What each layer's MLP added; empty in an attention-only model."""
    logits: Float[Tensor, "posn d_vocab"]

    @property
    def frozen(self) -> tuple[str, ...]:
        """What was held at the value it had in this pass, in words."""
        words = ["attention patterns"] if self.patterns else []
        if self.model.cfg.normalization == "LN":
            words.append("LayerNorms' standard deviations")
        if self.mlp_outs:
            words.append("what each MLP adds")
        return tuple(words)

    def attention(self, layer: int) -> Attention:
        return block_of(self.model, layer).attn

    def reading(
        self, layer: int, W: Float[Tensor, "d_model d_head"], b: Float[Tensor, " d_head"]
    ) -> tuple[Float[Tensor, "d_model d_head"], Float[Tensor, " d_head"]]:
        """M and c with `ln1(x) W + b = x / std @ M + c`: ln1's centring, w and b folded in."""
        return folded(block_of(self.model, layer).ln1, wide(W), wide(b))

    def readout(self, position: int) -> Float[Tensor, "d_model d_vocab"]:
        """From the stream at a position to the logits: ln_final's frozen linear part, then W_U."""
        return self.unscaled_readout() / self.final_std[position]

    def unscaled_readout(self) -> Float[Tensor, "d_model d_vocab"]:
        """The same for a stream that `final_std` has divided already."""
        return unscaled_readout(self.model)

    def constants(self) -> Iterator[tuple[str, Float[Tensor, " d_vocab"]]]:
        """What is added to the logits whatever stands in the stream, by name."""
        return constants(self.model)


@t.no_grad()
def hold(model: Transformer, tokens: Int[Tensor, "batch posn"]) -> HeldPass:
    """Run the model on one sequence, and keep what has to be frozen.

    Raises: PvmlError for a batch other than 1, an empty sequence, or tokens it cannot read.
    """
    require_one_sequence(tokens)
    kept = ("attn_pattern", "resid_pre", "residual_std", "mlp_out", "unembed.logits")
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith(kept))
    n_layers, posn = model.cfg.n_layers, tokens.shape[1]
    logits = wide(cache["unembed.logits"][0])

    def std(path: str) -> Tensor:
        if model.cfg.normalization != "LN":
            return logits.new_ones(posn)
        return wide(cache[f"{path}.residual_std"][0, :, 0])

    has_mlps = n_layers and not model.cfg.attn_only
    return HeldPass(
        model=model,
        tokens=tokens[0],
        patterns=tuple(wide(cache[f"blocks.{i}.attn.attn_pattern"][0]) for i in range(n_layers)),
        streams=tuple(wide(cache[f"blocks.{i}.resid_pre"][0]) for i in range(n_layers)),
        stds=tuple(std(f"blocks.{i}.ln1") for i in range(n_layers)),
        final_std=std("ln_final"),
        mlp_outs=tuple(
            wide(cache[f"blocks.{i}.mlp.mlp_out"][0]) for i in range(n_layers if has_mlps else 0)
        ),
        logits=logits,
    )


def unscaled_readout(model: Transformer) -> Float[Tensor, "d_model d_vocab"]:
    """From a stream that ln_final's std has divided already to the logits, but for constants."""
    W_U = wide(model.unembed.W_U)
    return folded(model.ln_final, W_U, W_U.new_zeros(W_U.shape[1]))[0]


def constants(model: Transformer) -> Iterator[tuple[str, Float[Tensor, " d_vocab"]]]:
    """What is added to the logits whatever stands in the stream, by name."""
    if isinstance(model.ln_final, LayerNorm):
        yield "ln_final.b", wide(model.ln_final.b) @ wide(model.unembed.W_U)
    yield "b_U", wide(model.unembed.b_U).clone()


def wide(x: Tensor) -> Tensor:
    """A weight or activation to compute with: half types in float32, for their sums are coarse."""
    return x.detach() if x.dtype == t.float64 else x.detach().float()


def require_finite(model: Transformer) -> None:
    """Nothing, if every weight of a model is a finite number.

    Raises: PvmlError that names one that is not.
    """
    for name, x in model.named_parameters():
        if not all_finite(x):
            at = tuple((~x.isfinite()).nonzero()[0].tolist())
            raise PvmlError(
                f"{name} holds {x[at].item():g} at {at}, and circuits are read off finite weights: "
                f"take a checkpoint from before it went wrong, or another copy of the file"
            )


def require_no_overflow(x: Tensor, what: str) -> None:
    """Nothing, if numbers that were made of finite ones are finite themselves.

    Raises: PvmlError that says that they became too large for their type.
    """
    if not all_finite(x):
        raise PvmlError(
            f"{what} holds numbers that are too large for {x.dtype} (above "
            f"{t.finfo(x.dtype).max:.2g}), though what it was multiplied from is finite. Take a "
            f"wider type, such as model.double(), or smaller weights"
        )


def block_of(model: Transformer, layer: int) -> TransformerBlock:
    """A layer's block, with its type."""
    block = model.blocks[layer]
    assert isinstance(block, TransformerBlock)
    return block


def at(
    entries: Float[Tensor, "*rows d_vocab"], token: int, minus: int | None = None
) -> Float[Tensor, "*rows"]:
    """What stands at a token, or the difference to what stands at another.

    Raises: PvmlError for an id outside the vocabulary.
    """
    for one in (token, minus):
        if one is not None and not 0 <= one < entries.shape[-1]:
            raise PvmlError(
                f"token id {one} is outside the vocabulary: ids run from 0 to "
                f"{entries.shape[-1] - 1}"
            )
    return entries[..., token] if minus is None else entries[..., token] - entries[..., minus]


def relative_error(total: Tensor, own: Tensor) -> float:
    """max|total - own| / max|own|; the plain difference where all is 0."""
    largest = float(own.abs().max()) or 1.0
    return float((total - own).abs().max()) / largest


def require_sum(error: float, dtype: t.dtype, what: str) -> None:
    """Nothing, if terms add up to what they are the terms of, as far as the type allows.

    Raises: CheckFailed that says by how much they do not.
    """
    if not error <= TOLERANCE[dtype]:
        raise CheckFailed(
            f"the terms do not add up to {what}: off by {error:.1e} of the largest, where {dtype} "
            f"allows {TOLERANCE[dtype]:.0e}. {advice(dtype)}"
        )


def require_one_sequence(tokens: Tensor) -> None:
    """Nothing, if these are the tokens of one sequence.

    Raises: PvmlError that shows the shape, or what was given that is no tensor.
    """
    if not isinstance(tokens, Tensor):
        raise PvmlError(
            f"one sequence is taken apart at a time, as tokens of shape (1, posn): "
            f"model.to_tokens(text); got {type(tokens).__name__} {tokens!r:.60}"
        )
    if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] == 0:
        raise PvmlError(
            f"one sequence is taken apart at a time, of shape (1, posn); got {tuple(tokens.shape)}"
        )


def require_position(position: int, n: int) -> int:
    """The position counted from 0, if it was counted from the end.

    Raises: PvmlError if it is not there.
    """
    if not -n <= position < n:
        raise PvmlError(f"position {position} is not in a sequence of {n} tokens")
    return position % n


def require_head(model: Transformer, head: Head) -> Head:
    """The layer and head, if the model has them.

    Raises: PvmlError that says which there are; for what is no pair of whole numbers.
    """
    pair = [plain(number) for number in head] if isinstance(head, tuple | list) else []
    if len(pair) != 2 or not all(type(number) is int for number in pair):
        raise PvmlError(f"a head is given as (layer, head), such as (1, 0), got {head!r:.60}")
    layer, index = pair
    if not 0 <= layer < model.cfg.n_layers or not 0 <= index < model.cfg.n_heads:
        raise PvmlError(
            f"there is no head {layer}.{index}: this model has {model.cfg.n_layers} layers of "
            f"{model.cfg.n_heads} heads, counted from 0"
        )
    return layer, index
