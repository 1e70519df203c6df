"""Functions from a model to a rewritten one, each with proof that it predicts what it did before.

A circuit is easier to read where no LayerNorm's w stands between a weight and the stream, where
nothing is written that nobody can read, and where no bias is split over two places. What is done is
what TransformerLens does by default when it loads a model (its `process_weights_`); the model given
is never changed, and the new one says in `processing` what was done to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import CheckFailed, PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer
from pvml.processing.advice import advice
from pvml.processing.changes import CHANGES, Keeps
from pvml.runs.weights import build_model

TOLERANCE = {t.float64: 1e-12, t.float32: 1e-5}
"""Largest difference allowed, as a share of the largest logit, by the model's dtype."""
_ROWS, _POSN, _SEED = 2, 32, 0
"""The tokens that a rewriting is checked on where none are given."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One rewriting that was done."""

    name: str
    changed: tuple[str, ...]
    """The tensors that were rewritten, by name."""
    did: str
    """What was done, as a sentence."""
    keeps: Keeps
    error: float
    """Largest difference of what it keeps, as a share of the largest logit."""

    def __str__(self) -> str:
        n = len(self.changed)
        return (
            f"{self.name}: {self.did} ({n} tensor{'s' * (n != 1)} changed; {self.keeps} equal to "
            f"{self.error:.0e} of the largest logit)"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Processed:
    """A rewritten model and what was done; unpacks as `model, steps`."""

    model: Transformer
    """A new model; it shares no tensor with the one given."""
    steps: tuple[Step, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """What would have been wrong for this model, and why."""
    untied: bool = False
    """Whether the model given had one table for W_E and W_U; this one has two."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.steps))

    def __str__(self) -> str:
        lines = [str(step) for step in self.steps]
        lines += [f"left out: {name}: {why}" for name, why in self.left_out]
        if self.untied:
            lines.append("W_E and W_U were one table and are two: tie_embeddings is False")
        return "\n".join(lines)


def fold_layer_norm(
    model: Transformer, tokens: Int[Tensor, "batch posn"] | None = None
) -> Processed:
    """A model whose LayerNorms keep w = 1 and b = 0; what reads them has theirs in its weights.

    `ln(x) W + b = (x - mean) / std @ (w W) + (ln.b W + b)`, and as the left factor has mean 0, the
    columns of w W may be centred as well. In W_Q, W_K, W_V, W_in, W_U and their biases; b_U, frozen
    at zero before, takes ln_final.b. tokens: what to check the logits on (default: drawn).

    Raises: PvmlError for a model with shortformer positions, which come in behind ln1, without
        LayerNorm, or in half precision; CheckFailed if the logits are not what they were.
    """
    return _rewritten(model, ["fold_layer_norm"], tokens)


def centre_writing_weights(
    model: Transformer, tokens: Int[Tensor, "batch posn"] | None = None
) -> Processed:
    """A model that writes only vectors of mean 0 to the stream: the mean is never read.

    In W_E, W_pos (where it is added to the stream), W_O, b_O, W_out and b_out. tokens: what to
    check the logits on (default: drawn).

    Raises: PvmlError for a model without LayerNorm, whose readers see the mean, or in half
        precision; CheckFailed if the logits are not what they were.
    """
    return _rewritten(model, ["centre_writing_weights"], tokens)


def centre_unembedding(
    model: Transformer, tokens: Int[Tensor, "batch posn"] | None = None
) -> Processed:
    """A model whose logits have mean 0 at each position; differences and probabilities stay.

    In W_U and b_U. tokens: what to check the log-probabilities on (default: drawn).

    Raises: PvmlError for a model in half precision; CheckFailed if the probabilities changed.
    """
    return _rewritten(model, ["centre_unembedding"], tokens)


def fold_value_biases(
    model: Transformer, tokens: Int[Tensor, "batch posn"] | None = None
) -> Processed:
    """A model whose b_V is 0: a pattern's shares add up to 1, so its part is a constant, b_V W_O.

    In b_V and b_O. tokens: what to check the logits on (default: drawn).

    Raises: PvmlError for a model in half precision; CheckFailed if the logits are not what they
        were.
    """
    return _rewritten(model, ["fold_value_biases"], tokens)


def process(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"] | None = None,
    *,
    steps: Sequence[str] | None = None,
) -> Processed:
    """All four, in the right order: a new model with the same probabilities, and what was done.

    What would be wrong for this model is left out, and the record says why; name the `steps` and it
    is an error instead. tokens: what to check each step on (default: drawn).

    Raises: PvmlError for unknown steps, steps that are wrong for this model, or a model in half
        precision; CheckFailed naming the step after which the model predicts something else.
    """
    if steps is not None:
        if isinstance(steps, str) or not steps or not set(steps) <= set(CHANGES):
            raise PvmlError(f"steps must be some of {', '.join(CHANGES)}; got {steps!r}")
        return _rewritten(model, [name for name in CHANGES if name in steps], tokens)
    _require_model(model)
    wrong = [(name, change.wrong_for(model.cfg)) for name, change in CHANGES.items()]
    left_out = tuple((name, why) for name, why in wrong if why)
    done = _rewritten(model, [name for name, why in wrong if not why], tokens)
    return replace(done, left_out=left_out)


@t.no_grad()
def _rewritten(
    model: Transformer, names: Sequence[str], tokens: Int[Tensor, "batch posn"] | None
) -> Processed:
    _require_model(model)
    for name in names:
        why = CHANGES[name].wrong_for(model.cfg)
        if why:
            raise PvmlError(f"{name} would be wrong here: {why}")
    tokens = _tokens_to_check(model) if tokens is None else tokens
    check_tokens(tokens, model.cfg)
    if not tokens.numel():
        raise PvmlError(f"a check needs tokens to look at, got shape {tuple(tokens.shape)}")
    tokens = tokens.to(model.device)
    before = model(tokens)
    untie = model.cfg.tie_embeddings and any(CHANGES[name].unties for name in names)
    new, steps = _copy(model, untie), []
    for name in names:
        change = CHANGES[name]
        changed = tuple(change.run(new))
        error = _difference(before, new(tokens), change.keeps)
        _require_equal(error, model.dtype, name, change.keeps)
        # what one step lets go, those after it cannot give back
        before = new(tokens) if change.keeps != "logits" else before
        steps.append(
            Step(name=name, changed=changed, did=change.did, keeps=change.keeps, error=error)
        )
        new.processing += (name,) if name not in new.processing else ()
    return Processed(model=new, steps=tuple(steps), untied=untie)


def _require_model(model: object) -> None:
    if not isinstance(model, Transformer):
        raise PvmlError(f"processing takes a Transformer, got {type(model).__name__}")
    if model.dtype not in TOLERANCE:
        raise PvmlError(
            f"processing rounds every weight that it changes, which in {model.dtype} nobody could "
            f"tell from a mistake: load the model with dtype='float32'"
        )


def _tokens_to_check(model: Transformer) -> Int[Tensor, "batch posn"]:
    cfg, draw = model.cfg, t.Generator().manual_seed(_SEED)
    shape = (_ROWS, min(_POSN, cfg.n_ctx))
    return t.randint(cfg.d_vocab, shape, generator=draw, device="cpu").to(model.device)


def _copy(model: Transformer, untie: bool) -> Transformer:
    """The model once more, sharing nothing; untie: with a table of its own for W_U."""
    weights = model.state_dict()
    cfg = model.cfg
    if untie:
        cfg = replace(cfg, tie_embeddings=False)
        weights = {**weights, "unembed.W_U": model.embed.W_E.T}
    new = build_model(cfg, weights, "the model", model.device, model.dtype).train(model.training)
    learns = {name: p.requires_grad for name, p in model.named_parameters()}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(learns.get(name, name == "unembed.W_U"))
    new.processing, new.tokenizer = model.processing, model.tokenizer
    return new


def _difference(
    before: Float[Tensor, "batch posn d_vocab"],
    after: Float[Tensor, "batch posn d_vocab"],
    keeps: Keeps,
) -> float:
    """The largest difference of what was to be kept, as a share of the largest logit."""
    left, right = before.cpu().double(), after.cpu().double()
    largest = float(left.abs().max()) or 1.0
    if keeps != "logits":
        left, right = left.log_softmax(-1), right.log_softmax(-1)
    return float((left - right).abs().max()) / largest


def _require_equal(error: float, dtype: t.dtype, name: str, keeps: Keeps) -> None:
    if not error <= TOLERANCE[dtype]:
        raise CheckFailed(
            f"after {name} the {keeps} differ by {error:.1e} of the largest logit, where {dtype} "
            f"allows {TOLERANCE[dtype]:.0e}. {advice(dtype)}"
        )
