"""What a model computes, for a comparison: end to end, and each module on the reference's input.

For the second way the model runs as it is, and the tensors that stand between two modules are
exchanged for the reference's as they pass. So each module reads what the reference's read, and a
mistake in one is not seen in the next. Backwards it is the same: each module gets the reference's
gradient by its result.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.trace.capture import ActivationCache, capture
from pvml.trace.tap import Listener, Place, attached, places

Arrays = Mapping[str, np.ndarray]

BETWEEN_MODULES = {
    "embed": ("out",),
    "pos_embed": ("out",),
    "ln": ("residual", "out"),
    "attn": ("normalized_resid_pre", "attn_out"),
    "mlp": ("normalized_resid_mid", "mlp_out"),
    "block": ("resid_pre", "resid_mid", "resid_post"),
    "unembed": ("normalized_resid_final",),
}
"""What each kind of module reads and gives, of vectors: the tensors that are exchanged."""

BESIDE_THE_WAY = {
    *("sliced", "residual_mean", "residual_std", "normalized"),
    *("attn_scores", "mask", "attn_scores_masked", "attn_pattern"),
}
"""Tensors that the kernels never form: asking for their gradients would test another pass. (And
the positions' sliced table, whose gradient is W_pos's.)"""

_LEAST_WITH_GRADIENT = 3
"""Numbers that a LayerNorm must have to pass a gradient: two become 1 and -1, whatever they are."""

LOGITS = "unembed.logits"
RETURNED = "what the model returns"
"""What a row of `model(tokens)` itself is called: the logits after the last name was called."""
UNWATCHED = "what it returns when nobody looks"
"""The same of a pass without listeners, which may take another way."""


def require_gradient_through_norms(d_model: int) -> None:
    """Raises: PvmlError if a LayerNorm of this width passes no gradient."""
    if d_model < _LEAST_WITH_GRADIENT:
        raise PvmlError(
            f"a LayerNorm over d_model {d_model} gives the same whatever it reads, so gradients "
            f"are rounding alone: take d_model of at least {_LEAST_WITH_GRADIENT}"
        )


def next_token_loss(
    logits: Float[Tensor, "batch posn d_vocab"], tokens: Int[Tensor, "batch posn"]
) -> Float[Tensor, ""]:
    """Mean over all predicted tokens of -log softmax(logits)[next token], in nats."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].long().flatten())


def end_to_end(
    model: Transformer, tokens: Int[Tensor, "batch posn"]
) -> tuple[ActivationCache, dict[str, object]]:
    """Every named tensor of a pass from token ids, on the CPU, and what passes returned.

    That is the logits, unless something changed them after they were named; the second time
    nobody listens.
    """
    with t.no_grad():
        with capture(model, "*", device="cpu") as ours:
            returned: object = model(_own(tokens, model))
        return ours, {RETURNED: returned, UNWATCHED: model(_own(tokens, model))}


def module_by_module(
    model: Transformer, tokens: Int[Tensor, "batch posn"], truth: Arrays
) -> dict[str, Tensor]:
    """Every named tensor, on the CPU, as the model computes it from the reference's own tensors.

    truth: the reference's, by full name. A tensor of another shape than the reference's is kept
    and not exchanged.
    """
    ours: dict[str, Tensor] = {}
    exchanged = _between_modules(model)

    def hear(name: str, x: Tensor) -> Tensor | None:
        ours[name] = x.detach().to("cpu", copy=True)
        return _like(truth[name], x) if _fits(name, x, exchanged, truth) else None

    with attached(places(model), Listener(hear, edits=True)), t.no_grad():
        model(_own(tokens, model))
    return ours


def gradients(
    model: Transformer, tokens: Int[Tensor, "batch posn"], truth: Arrays
) -> dict[str, Tensor]:
    """The next-token loss's gradient by every parameter and by the tensors that truth has one of.

    On the CPU, by full name; parameters come first, whose gradients are those of a pass that nobody
    listens to. What gets no gradient at all is not there. The model's own `grad`s are left alone.

    Raises: PvmlError if autograd cannot go back through the model.
    """
    passing: dict[str, Tensor] = {}

    def hear(name: str, x: Tensor) -> Tensor | None:
        return _followed(name, x, passing)

    with _differentiable(model) as parameters:
        with attached(_on_the_way(model, truth), Listener(hear, edits=True)):
            watched = _loss(model, tokens)
        found = _back([watched], passing)
        return {**_back([_loss(model, tokens)], parameters), **found}


def module_gradients(
    model: Transformer, tokens: Int[Tensor, "batch posn"], truth: Arrays, upstream: Arrays
) -> dict[str, Tensor]:
    """The same gradients, each module given the reference's input and gradient by its result.

    truth: the reference's tensors; upstream: its gradients.
    """
    exchanged = _between_modules(model)
    leaves: dict[str, Tensor] = {}
    passing: dict[str, Tensor] = {}
    results: list[tuple[Tensor, Tensor]] = []

    def hear(name: str, x: Tensor) -> Tensor | None:
        if upstream[name].shape != x.shape:
            return None
        if name == LOGITS:
            results.append((x, _like(upstream[name], x)))
            return None
        if not _fits(name, x, exchanged, truth):
            return _followed(name, x, passing)
        results.append((x, _like(upstream[name], x)))
        leaves[name] = _like(truth[name], x).requires_grad_()
        return leaves[name]

    with _differentiable(model) as parameters:
        with attached(_on_the_way(model, upstream), Listener(hear, edits=True)):
            model(_own(tokens, model))
        return _back(results, {**parameters, **leaves, **passing})


def _loss(model: Transformer, tokens: Int[Tensor, "batch posn"]) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient that it begins with."""
    loss = next_token_loss(model(_own(tokens, model)), tokens.to(model.device))
    return loss, t.ones_like(loss)


def _own(tokens: Tensor, model: Transformer) -> Tensor:
    """A copy where the model is, which it may spoil."""
    return tokens.to(model.device, copy=True)


def _followed(name: str, x: Tensor, passing: dict[str, Tensor]) -> Tensor | None:
    """The tensor to go on with, whose gradient comes from whoever reads this name."""
    if not x.requires_grad:
        return None
    passing[name] = x.view_as(x)
    return passing[name]


def _back(results: list[tuple[Tensor, Tensor]], sought: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of what is sought, where one arrives, from those of the results."""
    joined = [pair for pair in results if pair[0].requires_grad]
    if not joined:
        return {}
    ends, given = zip(*joined, strict=True)
    try:
        found = t.autograd.grad(ends, list(sought.values()), given, allow_unused=True)
    except RuntimeError as error:  # autograd's, such as of a tensor that was changed in place
        raise PvmlError(f"the model's own pass cannot be gone back through: {error}") from error
    pairs = zip(sought, found, strict=True)
    return {name: gradient.cpu() for name, gradient in pairs if gradient is not None}


def with_gradients(model: Transformer, known: Arrays) -> set[str]:
    """Names of known gradients that are compared: of parameters, frozen ones too, and tensors."""
    parameters = {name for name, _ in model.named_parameters()} & known.keys()
    return parameters | {place.name for place in _on_the_way(model, known)}


def _between_modules(model: Transformer) -> set[str]:
    return {p.name for p in places(model) if p.point.name in BETWEEN_MODULES[p.tap.kind]}


def _on_the_way(model: Transformer, known: Arrays) -> list[Place]:
    """Where a known gradient passes without making the model take another way than in training."""
    return [
        place
        for place in places(model)
        if place.name in known and place.point.name not in BESIDE_THE_WAY
    ]


def _fits(name: str, x: Tensor, exchanged: set[str], truth: Arrays) -> bool:
    return name in exchanged and name in truth and truth[name].shape == x.shape


def _like(array: np.ndarray, x: Tensor) -> Tensor:
    """A copy: what the model does to it in place must not reach the reference's."""
    return t.tensor(array, dtype=x.dtype, device=x.device)


@contextmanager
def _differentiable(model: Transformer) -> Iterator[dict[str, Tensor]]:
    """Its parameters by name; within it gradients are recorded, of frozen parameters too."""
    parameters = dict(model.named_parameters())
    frozen = [x for x in parameters.values() if not x.requires_grad]
    try:
        for x in frozen:
            x.requires_grad_(True)
        with t.enable_grad():
            yield dict(parameters)
    finally:
        for x in frozen:
            x.requires_grad_(False)
