"""What a reader's module is tried on, and what the reference says of it: sizes, numbers, truth."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch as t
from numpy import ndarray as Array

from pvml.config import Config
from pvml.parity.steps import but_padding
from pvml.reference import numpy_backward, numpy_forward
from pvml.reference.numpy_forward import Tensors, parameter_shapes

SIZES = {"d_model": 15, "n_heads": 3, "n_layers": 1, "n_ctx": 11, "d_vocab": 29}
"""Small, and all different, so that an axis taken for another shows."""

PATHS = {
    "embed": "embed",
    "pos_embed": "pos_embed",
    "ln": "ln_final",
    "attn": "blocks.0.attn",
    "mlp": "blocks.0.mlp",
    "block": "blocks.0",
    "unembed": "unembed",
    "transformer": "",
}
"""Where a module of each kind (a value of `pvml.parity.own_code.KINDS`) stands in a model."""

READS_TOKENS = ("embed", "pos_embed", "transformer")
ALSO_TAKES = {
    "attn": ("real", "positions"),
    "block": ("real", "positions"),
    "pos_embed": ("places",),
}
"""What forward is also given, if it takes it, for each kind that may."""
READS_OTHERS = ("attn", "block", "transformer")
"""Kinds in which a position reads others."""

LARGE = {
    "attn": "large scores",
    "mlp": "large activations",
    "block": "large scores and activations",
    "transformer": "large scores and activations",
}
"""What becomes large in a trial with `large`, for each kind that has an exponential in it."""

_LARGER = {"b_K": 1000.0, "W_in": 30.0}
"""How many times as large these parameters are then.

A key's bias adds the same to a whole row of scores: they reach hundreds, up and down, and the
softmax of a right class does not see it. The MLP's `pre` is of the order of 30.
"""


_SHARES = (
    "digits that are lost on the way back: the shares of a row must come to 1 within rounding, as "
    "torch.softmax's do and exp(scores - logsumexp) does not"
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting to run a module in."""

    says: str
    batch: int = 2
    posn: int = 7
    dtype: t.dtype = t.float64
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the config that differ from the others' trials."""
    padded: bool = False
    shortformer: bool = False
    large: bool = False
    """Scores of hundreds and activations of tens, as trained models have them."""
    hint: str = ""
    """What is usually wrong if this is the first trial to fail."""
    hint_back: str = ""
    """The same where only gradients fail."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The numbers of a trial, and the truth about them, in float64."""

    cfg: Config
    large: bool
    """See Trial."""
    parameters: Tensors
    """By the module's own names."""
    x: Array
    """What the module reads."""
    real: Array | None
    """False at padding."""
    judged: Array | None
    """False at positions whose own rows are a convention: an attention's or a block's padding."""
    added: Array | None
    """What queries and keys see on top of x."""
    d_out: Array
    """The gradient that comes in at the result."""
    named: Tensors
    """Every named tensor of the forward pass, the result last."""
    gradients: Tensors
    """By each parameter and each input."""
    rounded: Tensors
    """As `named`, in float32."""
    rounded_gradients: Tensors

    def counted(self, named: Mapping[str, Array]) -> Tensors:
        """Tensors of a pass, but 0 in rows that are not judged."""
        return dict(named) if self.judged is None else but_padding(named, self.judged)


def config_of(sizes: dict[str, int], kind: str = "block") -> Config:
    """The config that trials start from: `SIZES`, but for the given ones; a model has two layers.

    So that what stands between layers shows.
    """
    fields: dict[str, Any] = {
        **SIZES,
        **({"n_layers": 2} if kind == "transformer" else {}),
        **sizes,
    }
    return Config(**fields)


def trials_for(kind: str, cfg: Config, takes: frozenset[str]) -> list[Trial]:
    """The settings to try a module in. takes: the names of forward's parameters.

    Padding is tried if forward takes `real` (a position embedding: `places`), and positions for
    queries and keys only if it takes `positions`.
    """
    n, whole = min(7, cfg.n_ctx), cfg.n_ctx
    lost = "an axis of size 1 has been lost: is there a squeeze() without a dimension?"
    trials = [
        Trial(says=f"2 sequences of {n} positions", posn=n),
        Trial(says=f"1 sequence of {n} positions", batch=1, posn=n, hint=lost),
        Trial(says="3 sequences of 1 position", batch=3, posn=1, hint=lost),
        Trial(
            says=f"2 sequences of {whole} positions (n_ctx)",
            posn=whole,
            hint="a table or mask is too small, or a window hides the first ones: all n_ctx "
            "positions must fit and be read",
        ),
        Trial(
            says=f"2 sequences of {n} positions",
            posn=n,
            dtype=t.float32,
            hint="a formula that is right in float64 and rounds badly in float32",
        ),
    ]
    if kind in LARGE:
        trials.append(
            Trial(
                says=f"2 sequences of {n} positions, {LARGE[kind]}",
                posn=n,
                dtype=t.float32,
                large=True,
                hint="something that overflows, a clamp, or a number in place of -inf: numbers are "
                "as large here as in trained models",
                hint_back=_SHARES if kind in READS_OTHERS else "",
            )
        )
    other: dict[str, dict[str, Any]] = {
        "ln": {"layer_norm_eps": 0.1},
        "attn": {"d_head": cfg.d_head + 2},
        "mlp": {"d_mlp": cfg.d_mlp + 2},
    }
    other["block"] = other["ln"] | other["attn"] | other["mlp"]
    other["transformer"] = other["block"] | {"n_layers": cfg.n_layers + 1}
    if kind in other:
        told = ", ".join(f"{name} {value}" for name, value in other[kind].items())
        trials.append(
            Trial(
                says=f"2 sequences of {n} positions, {told}",
                posn=n,
                changes=other[kind],
                hint=f"a size is written into the code, or computed, where "
                f"{' and '.join(f'cfg.{name}' for name in other[kind])} should be read",
            )
        )
    if ("places" if kind == "pos_embed" else "real") in takes and n > 3:
        padded = Trial(says=f"2 sequences of {n} positions, with padding", posn=n, padded=True)
        trials.append(padded)
        if kind in LARGE:
            says, hint = f"{padded.says} and {LARGE[kind]}", "a number in place of -inf"
            large = replace(padded, says=says, dtype=t.float32, large=True, hint=hint)
            trials.append(large)
    if kind in READS_OTHERS and "positions" in takes:
        changes = {"positions": "shortformer"}
        trials.append(
            Trial(
                says=f"2 sequences of {n} positions, shortformer",
                posn=n,
                changes=changes,
                shortformer=True,
            )
        )
    return trials


def shapes_for(kind: str, cfg: Config) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a module of this kind, by its own name."""
    before = f"{PATHS[kind]}." if PATHS[kind] else ""
    return {
        name.removeprefix(before): shape
        for name, shape in parameter_shapes(replace(cfg, n_layers=max(1, cfg.n_layers))).items()
        if name.startswith(before)
    }


def case_of(kind: str, cfg: Config, trial: Trial, seed: int) -> Case:
    """Seeded numbers for a trial, exact in float32, and what the reference makes of them."""
    cfg, shape = replace(cfg, **trial.changes), (trial.batch, trial.posn)
    return _case(kind, cfg, shape, trial.padded, trial.shortformer, trial.large, seed)


@lru_cache(maxsize=8)  # trials in another type are on the same numbers
def _case(
    kind: str,
    cfg: Config,
    wide: tuple[int, int],
    padded: bool,
    shortformer: bool,
    large: bool,
    seed: int,
) -> Case:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32).astype(np.float64)

    parameters = {
        name: _parameter(name, shape, draw, large) for name, shape in shapes_for(kind, cfg).items()
    }
    x = draw(*wide, cfg.d_model)
    if kind in ("ln", "block"):  # off-centre and wide, so that LayerNorm has something to do
        x = (x * 2 + 0.5).astype(np.float32).astype(np.float64)
    if kind in READS_TOKENS:
        x = rng.integers(cfg.d_vocab, size=wide)
    real = np.ones(wide, bool) if padded else None
    if real is not None:
        real[0, :2], real[-1, 3] = False, False
    judged = real if kind in READS_OTHERS else None
    added = draw(*wide, cfg.d_model) if shortformer else None

    def passes(dtype: type[np.floating]) -> tuple[Tensors, Tensors, Array]:
        p = {name: array.astype(dtype) for name, array in parameters.items()}
        cast = x if kind in READS_TOKENS else x.astype(dtype)
        named = _forward(kind, p, cfg, cast, real, None if added is None else added.astype(dtype))
        out = list(named.values())[-1]
        d_out = np.random.default_rng(seed + 1).standard_normal(out.shape).astype(np.float32)
        if judged is not None:
            d_out[~judged] = 0
        gradients = _backward(kind, p, cfg, named, d_out.astype(dtype), real)
        return named, gradients, d_out

    # on small matrices BLAS also computes with what lies beside them, and may flag that as invalid
    with np.errstate(invalid="ignore"):
        named, gradients, d_out = passes(np.float64)
        rounded, rounded_gradients, _ = passes(np.float32)
    return Case(
        cfg=cfg,
        large=large,
        parameters=parameters,
        x=x,
        real=real,
        judged=judged,
        added=added,
        d_out=d_out.astype(np.float64),
        named=named,
        gradients=gradients,
        rounded=rounded,
        rounded_gradients=rounded_gradients,
    )


def _parameter(name: str, shape: tuple[int, ...], draw: Callable[..., Array], large: bool) -> Array:
    """Off its default, and so large that a layer's output is of the order of its input."""
    short = name.rpartition(".")[2]
    if short in ("W_E", "W_pos"):
        return draw(*shape)
    if short in ("W_Q", "W_K", "W_V"):
        spread = shape[1] ** -0.5
    elif short.startswith("W_"):
        spread = prod(shape[:-1]) ** -0.5
    else:
        spread = 0.3
    if large:
        spread *= _LARGER.get(short, 1.0)
    drawn: Array = (draw(*shape) * spread + (short == "w")).astype(np.float32)
    return drawn.astype(np.float64)


def _forward(
    kind: str, p: Tensors, cfg: Config, x: Array, real: Array | None, added: Array | None
) -> Tensors:
    """Every named tensor of a module's pass, its result last."""
    if kind == "transformer":
        return numpy_forward.forward(p, cfg, x, dtype=p["embed.W_E"].dtype.type)
    seen = np.ones(x.shape[1], bool) if real is None else real
    hidden = numpy_forward.cannot_attend(seen)
    if kind == "embed":
        return numpy_forward.embed(p, x)
    if kind == "pos_embed":
        return numpy_forward.pos_embed(p, x, real)
    if kind == "ln":
        return numpy_forward.layer_norm(p, x, cfg.layer_norm_eps)
    if kind == "attn":
        return numpy_forward.attention(p, x, hidden=hidden, added=added)
    if kind == "mlp":
        return numpy_forward.mlp(p, x)
    if kind == "block":
        return numpy_forward.block(p, cfg, x, hidden=hidden, added=added)
    return numpy_forward.unembed(p, x)


def _backward(
    kind: str, p: Tensors, cfg: Config, seen: Tensors, d_out: Array, real: Array | None
) -> Tensors:
    """The gradient by every parameter and input."""
    if kind == "transformer":
        return numpy_backward.backward(p, cfg, seen["embed.in"], d_out, dtype=d_out.dtype.type)
    if kind == "pos_embed":
        return numpy_backward.pos_embed(p, seen, d_out, real)
    backwards = {
        "embed": numpy_backward.embed,
        "ln": numpy_backward.layer_norm,
        "attn": numpy_backward.attention,
        "mlp": numpy_backward.mlp,
        "block": numpy_backward.block,
        "unembed": numpy_backward.unembed,
    }
    return backwards[kind](p, seen, d_out)
