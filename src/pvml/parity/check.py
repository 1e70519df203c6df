"""A model against the float64 reference: every named tensor, its largest difference, a verdict.

The formulae are in `pvml.reference.numpy_forward`; nothing of the model's own code is used to judge
it. A model that passes has had its parameters moved off their defaults first, or was trained: zero
biases and identity LayerNorms hide mistakes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, isfinite, log2
from typing import TypeVar

import numpy as np
import torch as t
from jaxtyping import Bool, Int
from torch import Tensor, nn

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.embedding import check_length, check_tokens
from pvml.modules.transformer import Transformer
from pvml.parity.passes import LOGITS, RETURNED, UNWATCHED
from pvml.reference.numpy_forward import forward, parameter_shapes
from pvml.trace.capture import capture

Module = TypeVar("Module", bound=nn.Module)

DOUBLE = float(np.finfo(np.float64).eps)
LARGE = 10_000_000
"""From this many parameters on, sums are long enough for float64 to be allowed 1e-10."""
ROUNDINGS = 16.0
"""How many times further from the truth than NumPy's rounding a model may be. Of 120 random models
that are right the worst tensor was 6 times as far, a mean over few positions."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One named tensor compared."""

    name: str
    shape: tuple[int, ...]
    max_abs_diff: float
    """Largest difference from the reference, in the tensor's own unit."""
    relative: float
    """The same as a share of the reference's largest finite value, or of `compare`'s scale."""
    ulps: float
    """The same in units in the last place of that value, as the model's type has them."""
    allowed: float
    """The largest `relative` that is taken for rounding."""
    problem: str = ""
    """Why the numbers cannot be compared. Empty: they can."""

    @property
    def ok(self) -> bool:
        # an infinite difference is never rounding, even where the reference itself is not finite
        return not self.problem and self.relative <= self.allowed and isfinite(self.relative)

    @property
    def strain(self) -> float:
        """`relative` in units of `allowed`: above 1 is wrong, infinite where nothing compares."""
        if self.problem:
            return float("inf")
        return self.relative / self.allowed if self.relative else 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Every named tensor of a pass against the reference, in the order of the pass."""

    rows: tuple[Row, ...]
    dtype: str
    """What the model computes in."""
    missing: tuple[str, ...] = ()
    """Parameters that the reference reads and the model lacks, or has in another shape."""
    unexpected: tuple[str, ...] = ()
    """Parameters that the model has and the reference never reads."""
    not_finite: tuple[str, ...] = ()
    """Parameters that hold NaN or infinity."""
    returned: tuple[Row, ...] = ()
    """What the model returned, watched and not, against the reference's logits."""

    @property
    def ok(self) -> bool:
        """Whether every tensor agrees, what was returned too, and every parameter was compared."""
        everything_read = not self.missing and not self.unexpected and not self.not_finite
        return bool(self.rows) and everything_read and self.first_bad is None

    @property
    def first_bad(self) -> Row | None:
        """The earliest tensor of the pass that is wrong: the mistake is just before it."""
        return next((row for row in self._judged if not row.ok), None)

    @property
    def _judged(self) -> tuple[Row, ...]:
        return (*self.rows, *self.returned)

    @property
    def worst(self) -> Row | None:
        """The tensor that comes closest to what is allowed, or is furthest beyond it."""
        return max(self.rows, key=lambda row: row.strain, default=None)

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def summary(self) -> str:
        """The verdict in one line."""
        if self.missing or self.unexpected:
            return f"parameters missing: {[*self.missing]}, unexpected: {[*self.unexpected]}"
        if self.not_finite:
            return holds_not_finite(self.not_finite)
        good = sum(row.ok for row in self.rows)
        text = f"{good} of {len(self.rows)} named tensors agree with the float64 reference"
        worst = self.first_bad or self.worst
        if worst is None:
            return text
        which = "closest to the limit" if self.ok else "first wrong"
        return (
            f"{text} ({self.dtype}); {which}: {worst.name}, relative {worst.relative:.1e} "
            f"of {worst.allowed:.1e} allowed{f' ({worst.problem})' if worst.problem else ''}"
        )

    def table(self, *, only_bad: bool = False) -> str:
        """A line for every tensor, or for the wrong ones."""
        shown = [row for row in self.rows if not (only_bad and row.ok)]
        shown += [row for row in self.returned if not row.ok]
        name = max([len("tensor"), *(len(row.name) for row in shown)])
        shape = max([len("shape"), *(len(str(row.shape)) for row in shown)])
        head = f"{'tensor':<{name}}  {'shape':<{shape}}  max abs diff  relative   allowed"
        return "\n".join(
            [
                head,
                *(
                    f"{row.name:<{name}}  {row.shape!s:<{shape}}  {row.max_abs_diff:12.3e}  "
                    f"{row.relative:8.1e}  {row.allowed:8.1e}  "
                    f"{'ok' if row.ok else row.problem or 'WRONG'}"
                    for row in shown
                ),
            ]
        )


def check(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    attention_mask: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
) -> Report:
    """Every named tensor of the model's pass over `tokens` against the float64 reference.

    So are the logits that the pass returns, since a hook may have changed them after they were
    named, and those of a pass that nobody looks at.
    Allowed, relative to the tensor's largest value: in float64 1e-12, or 1e-10 from ten million
    parameters on. In a narrower type there is no one number: an attention score of 100 loses a
    hundred times more of its pattern than a score of 1. So the reference also runs in float32, and
    the model may be 16 times as far from the truth as that (never less than 16 units of
    rounding), scaled to its own type: room for another order of summation, not for another formula.

    Raises: PvmlError for tokens that the model cannot read, or none: they would prove nothing.
    """
    check_tokens(tokens, model.cfg)
    check_length(tokens.shape[1], model.cfg)
    if not tokens.numel():
        raise PvmlError(f"a check needs tokens to look at, got shape {tuple(tokens.shape)}")
    parameters = parameters_of(model)
    missing, unexpected = unmatched(parameters, model.cfg)
    dtype = str(model.dtype).removeprefix("torch.")
    if missing:
        return Report(rows=(), dtype=dtype, missing=tuple(missing), unexpected=tuple(unexpected))

    ids = tokens.cpu().numpy()
    mask = None if attention_mask is None else attention_mask.cpu().numpy()
    truth = forward(parameters, model.cfg, ids, mask)
    allowed: float | dict[str, float] = float64_allowed(parameters)
    if model.dtype != t.float64:
        rounded = forward(parameters, model.cfg, ids, mask, np.float32)
        allowed = rounding_allowed(truth, rounded, model.dtype)
    with capture(model, "*", device="cpu") as ours, t.no_grad():
        returned = {RETURNED: model(tokens.to(model.device), attention_mask)}
    with t.no_grad():
        returned[UNWATCHED] = model(tokens.to(model.device), attention_mask)
    unit = t.finfo(model.dtype).eps
    return Report(
        rows=compare(ours, truth, allowed, unit=unit),
        dtype=dtype,
        unexpected=tuple(unexpected),
        not_finite=not_finite(parameters),
        returned=compare_returned(returned, truth, allowed, unit=unit),
    )


def float64_allowed(parameters: Mapping[str, np.ndarray]) -> float:
    """The relative difference to take for float64's rounding, for a model of these parameters."""
    return 1e-12 if sum(array.size for array in parameters.values()) < LARGE else 1e-10


def not_finite(parameters: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """The names of those that hold NaN or infinity."""
    return tuple(name for name, x in parameters.items() if not np.isfinite(x).all())


def holds_not_finite(names: tuple[str, ...]) -> str:
    """The sentence about parameters of these names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its weights hold NaN or infinity: {', '.join(names[:3])}{more}"


def unmatched(parameters: Mapping[str, np.ndarray], cfg: Config) -> tuple[list[str], list[str]]:
    """Parameters that the reference lacks here, by name or shape, and those it would never read."""
    wanted = parameter_shapes(cfg)
    missing = [n for n, s in wanted.items() if n not in parameters or parameters[n].shape != s]
    return missing, [name for name in parameters if name not in wanted]


def rounding_allowed(
    truth: Mapping[str, np.ndarray], rounded: Mapping[str, np.ndarray], dtype: t.dtype
) -> dict[str, float]:
    """For every tensor, the relative difference to take for `dtype`'s rounding.

    rounded: the same tensors, computed in float32.
    """
    unit = t.finfo(dtype).eps
    scale = unit / t.finfo(t.float32).eps
    return {
        row.name: ROUNDINGS * max(row.relative * scale, unit)
        for row in compare(rounded, truth, 0.0)
    }


def compare(
    ours: Mapping[str, Tensor] | Mapping[str, np.ndarray],
    truth: Mapping[str, Tensor] | Mapping[str, np.ndarray],
    allowed: float | Mapping[str, float],
    *,
    unit: float = DOUBLE,
    scales: Mapping[str, float] | None = None,
) -> tuple[Row, ...]:
    """A row for each name on either side, in the order of `truth`.

    allowed: the largest relative difference, one for all or one for each name. Whole numbers and
    masks must be equal; so must infinities. unit: the relative distance of neighbouring numbers in
    the type that is judged (its eps); float64's unless given. scales: for names whose own values
    say nothing about their rounding, because what they sum cancels, a size to judge by instead.
    """
    scales = scales or {}
    rows = []
    for name, right in truth.items():
        limit = allowed if isinstance(allowed, int | float) else allowed[name]
        if name not in ours:
            shape = tuple(right.shape)
            rows.append(_incomparable(name, shape, "not in the model"))
        else:
            pair = array_of(ours[name]), array_of(right)
            rows.append(_row(name, *pair, limit, unit, scales.get(name, 0.0)))
    extra = [name for name in ours if name not in truth]
    rows += [_incomparable(name, tuple(ours[name].shape), "not in the reference") for name in extra]
    return tuple(rows)


def compare_returned(
    returned: Mapping[str, object],
    truth: Mapping[str, np.ndarray],
    allowed: float | Mapping[str, float],
    *,
    unit: float = DOUBLE,
    scales: Mapping[str, float] | None = None,
) -> tuple[Row, ...]:
    """A row for what each pass returned, beside the truth's logits; the rest as for `compare`."""
    limit = allowed if isinstance(allowed, int | float) else allowed[LOGITS]
    size = (scales or {}).get(LOGITS, 0.0)
    rows: list[Row] = []
    for name, x in returned.items():
        if isinstance(x, Tensor):
            pair = {name: x}, {name: truth[LOGITS]}
            rows += compare(*pair, limit, unit=unit, scales={name: size})
        else:
            rows.append(_incomparable(name, (), f"{type(x).__name__} is no tensor"))
    return tuple(rows)


def _row(
    name: str, ours: np.ndarray, truth: np.ndarray, allowed: float, unit: float, scale: float
) -> Row:
    if ours.shape != truth.shape:
        return _incomparable(name, ours.shape, f"the reference has shape {truth.shape}")
    exact = truth.dtype.kind in "biu"
    left, right = (x.astype(np.float64, copy=False) for x in (ours, truth))
    with np.errstate(invalid="ignore"):
        difference = np.where(left == right, 0.0, np.abs(left - right))
    worst = float(np.max(np.nan_to_num(difference, nan=np.inf, posinf=np.inf), initial=0.0))
    # a scale that is no number says nothing
    scale = scale if isfinite(scale) else 0.0
    largest = max(scale, float(np.max(np.abs(right[np.isfinite(right)]), initial=0.0)))
    last_place = unit * 2.0 ** floor(log2(largest)) if largest else 0.0
    return Row(
        name=name,
        shape=ours.shape,
        max_abs_diff=worst,
        relative=worst / largest if largest else (np.inf if worst else 0.0),
        ulps=worst / last_place if last_place else (np.inf if worst else 0.0),
        allowed=0.0 if exact else allowed,
    )


def _incomparable(name: str, shape: tuple[int, ...], problem: str) -> Row:
    inf = float("inf")
    return Row(
        name=name,
        shape=shape,
        max_abs_diff=inf,
        relative=inf,
        ulps=inf,
        allowed=0.0,
        problem=problem,
    )


def array_of(x: Tensor | np.ndarray) -> np.ndarray:
    """As NumPy, exactly: it has no bfloat16, and computes float16 without a matmul."""
    if isinstance(x, np.ndarray):
        return x
    x = x.detach().cpu()
    x = x if x.layout == t.strided else x.to_dense()  # as an embedding's gradient may be
    return (x.float() if x.dtype in (t.float16, t.bfloat16) else x).numpy()


def parameters_of(model: nn.Module) -> dict[str, np.ndarray]:
    """What the model has learned, by its own names: on the CPU in float32 and float64, no copy."""
    return {name: array_of(x) for name, x in model.state_dict().items()}


def move_off_defaults(model: Module, seed: int) -> Module:
    """The same model, every one of its parameters moved by a seeded normal draw.

    Biases, LayerNorms and the frozen b_U too. Weights move so far that a layer's output is of the
    order of its input: queries then prefer some keys, and gelu's bend is reached.

    Raises: PvmlError for a module without a `cfg`.
    """
    cfg = getattr(model, "cfg", None)
    if cfg is None:
        raise PvmlError(f"move_off_defaults needs a PvML module, got {type(model).__name__}")
    summed = {
        **dict.fromkeys(("W_Q", "W_K", "W_V", "W_in", "W_U"), cfg.d_model),
        "W_O": cfg.n_heads * cfg.d_head,
        "W_out": cfg.d_mlp,
    }
    draw = t.Generator().manual_seed(seed)
    with t.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            spread = summed.get(name.rpartition(".")[2], 100) ** -0.5
            x.add_(t.empty(x.shape).normal_(std=spread, generator=draw).to(x))
    return model
