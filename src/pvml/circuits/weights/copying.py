"""Copying heads: whose OV circuit makes a token that is read more likely, beside random heads.

The copying score is the sum of an OV circuit's eigenvalues over the sum of their absolute values:
1 if all are positive, -1 if all are negative. Source: Elhage et al. 2021, "A Mathematical Framework
for Transformer Circuits", "copying / detecting copying". What random heads of the same shapes reach
is wide where d_head is small: a score alone says nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch as t
from jaxtyping import Complex, Float
from torch import Tensor

from pvml.circuits.chance import SIGNIFICANCE, chance_above, told_p
from pvml.circuits.held import block_of, require_finite, require_no_overflow, wide
from pvml.circuits.weights.maps import Norms, Reading
from pvml.errors import PvmlError
from pvml.modules.matmul_route import fastest_float32
from pvml.modules.transformer import Transformer
from pvml.processing.folding import folded

N_NULL = 1000
"""Random heads that are drawn for each layer."""
_FEWEST = 100
_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True)
class CopyingScore:
    """How far one head copies, and how far random heads in its place would."""

    layer: int
    """Counted from 0."""
    head: int
    score: float | None
    """Sum of the eigenvalues over the sum of their absolute values (-1 to 1).

    None, which is undefined, for a head that has none but 0: it writes what it never reads.
    """
    null_mean: float
    """The mean of random heads' scores; NaN if none has one."""
    null_spread: float
    """Their standard deviation; NaN for fewer than two."""
    p: float
    """Probability of such a score by chance, times the number of heads tried (at most 1)."""
    null_undefined: int = 0
    """Random heads that have no score, which are left out of the null."""
    processing: tuple[str, ...] = field(default=(), compare=False)
    """How the model's weights were rewritten, as its own `processing` says."""

    @property
    def beyond(self) -> bool:
        """Whether the head has earned the name of a copying head."""
        return self.score is not None and self.score > self.null_mean and self.p <= SIGNIFICANCE

    def __str__(self) -> str:
        if self.score is None:
            return f"{self.layer}.{self.head} (score undefined: every eigenvalue is 0)"
        left_out = f", {self.null_undefined} undefined left out" if self.null_undefined else ""
        return (
            f"{self.layer}.{self.head} (score {self.score:.2f}; random heads "
            f"{self.null_mean:z.2f} ± {self.null_spread:.2f}{left_out}; {told_p(self.p)})"
        )


def copying_score(eigenvalues: Complex[Tensor, "*heads rank"]) -> Float[Tensor, "*heads"]:
    """Sum over sum of absolute values (-1 to 1); NaN where every eigenvalue is 0 (nilpotent)."""
    size = eigenvalues.abs().sum(-1)
    return t.where(size > 0, eigenvalues.real.sum(-1) / size, t.nan)


@t.no_grad()
def ov_eigenvalues(
    model: Transformer, norms: Norms = "folded"
) -> Complex[Tensor, "n_layers n_heads d_head"]:
    """The eigenvalues of every head's OV circuit over the vocabulary, in no order.

    All that are not 0 in any case. From d_head x d_head products: what comes between them, W_U W_E,
    is multiplied out once. Where rounding explains all of them, they are 0: two factors that should
    cancel leave numbers as large as the root of the dtype's precision.

    Raises: PvmlError for an unknown `norms`, or weights that are not finite or whose products are
        not.
    """
    require_finite(model)
    reading = Reading(model, norms, biases=False)
    cfg = model.cfg
    if not cfg.n_layers:
        return t.zeros(0, cfg.n_heads, cfg.d_head, dtype=t.complex128)
    layers = []
    for layer, between in enumerate(_between(reading)):
        attn = block_of(reading.model, layer).attn
        layers.append(_eigenvalues(wide(attn.W_O), between, wide(attn.W_V)))
    return t.stack(layers)


@t.no_grad()
def copying_scores(
    model: Transformer, *, norms: Norms = "folded", n_null: int = N_NULL, seed: int = 0
) -> list[CopyingScore]:
    """Every head's copying score, beside those of random heads.

    Null: n_null heads for each layer with normally distributed W_V and W_O in the place of the
    real ones, between the same LayerNorm, embedding and unembedding. Their norms are of no account:
    a score does not change if a head is multiplied by a number.
    p: the share of random heads that reach the score, or where fewer than 10 do what `chance_above`
    makes of their mean and spread; times the number of heads (Bonferroni). Random heads whose
    eigenvalues are all 0 have no score and are left out; where fewer than 100 remain, p is 1.

    Raises: PvmlError for an unknown `norms`, fewer than 100 random heads, or weights that are not
        finite or whose products are not.
    """
    if n_null < _FEWEST:
        raise PvmlError(f"n_null must be at least {_FEWEST} random heads, got {n_null}")
    reading, cfg = Reading(model, norms, biases=False), model.cfg
    scores = copying_score(ov_eigenvalues(model, norms))
    rng = t.Generator().manual_seed(seed)
    found = []
    for layer, between in enumerate(_between(reading)):
        null = t.cat(
            [
                copying_score(_eigenvalues(W_O, between, W_V))
                for W_O, W_V in _random_heads(n_null, cfg.d_model, cfg.d_head, between, rng)
            ]
        )
        null = null[~null.isnan()]
        mean = float(null.mean()) if len(null) else math.nan
        spread = float(null.std()) if len(null) > 1 else math.nan
        for head in range(cfg.n_heads):
            score = float(scores[layer, head])
            p = chance_above(score, null) if len(null) >= _FEWEST else 1.0
            found.append(
                CopyingScore(
                    layer=layer,
                    head=head,
                    score=None if math.isnan(score) else score,
                    null_mean=mean,
                    null_spread=spread,
                    p=min(1.0, p * cfg.n_layers * cfg.n_heads),
                    null_undefined=n_null - len(null),
                    processing=model.processing,
                )
            )
    return found


def _between(reading: Reading) -> Iterator[Float[Tensor, "d_model d_model"]]:
    """For each layer: from what a head writes to what it reads, by way of the vocabulary."""
    model = reading.model
    if not model.cfg.n_layers:
        return
    W_E = wide(model.embed.W_E)
    readout, _ = reading.part(model.ln_final, model.unembed.W_U, model.unembed.b_U)
    with fastest_float32(W_E.device, W_E.dtype):
        through = readout @ W_E
    identity = t.eye(model.cfg.d_model, dtype=W_E.dtype, device=W_E.device)
    for layer in range(model.cfg.n_layers):
        if reading.norms == "ignored":
            yield through
        else:
            read, _ = folded(
                block_of(reading.model, layer).ln1, identity, identity.new_zeros(len(identity))
            )
            yield through @ read


def _eigenvalues(
    W_O: Float[Tensor, "heads d_head d_model"],
    between: Float[Tensor, "d_model d_model"],
    W_V: Float[Tensor, "heads d_model d_head"],
) -> Complex[Tensor, "heads d_head"]:
    with fastest_float32(W_O.device, W_O.dtype):
        written = (W_O.flatten(0, 1) @ between).view(W_O.shape)
    product = written @ W_V
    require_no_overflow(product, "a head's OV circuit")
    values: Tensor = t.linalg.eigvals(product.double())
    size: Tensor = t.linalg.matrix_norm(written.double()) * t.linalg.matrix_norm(W_V.double())
    # rounding is as large as the precision; a nilpotent matrix makes its root of it, a number not
    root = 0.5 if product.shape[-1] > 1 else 1.0
    explained = 4 * t.finfo(W_O.dtype).eps ** root * size
    return values.where((values.abs().sum(-1) > explained)[:, None], 0.0)


def _random_heads(
    n: int, d_model: int, d_head: int, like: Tensor, rng: t.Generator
) -> Iterator[tuple[Float[Tensor, "heads d_head d_model"], Float[Tensor, "heads d_model d_head"]]]:
    for start in range(0, n, _AT_ONCE):
        few = min(_AT_ONCE, n - start)
        W_O, W_V = (
            t.randn(few, *shape, generator=rng).to(like)
            for shape in ((d_head, d_model), (d_model, d_head))
        )
        yield W_O, W_V
