"""Activation patching: which activation, moved between two prompts' passes, moves the prediction.

Two prompts of one length differ in what the answer depends on. A part of the one's pass is put into
the other's, one cell at a time, and the prediction is measured. Denoising puts clean activations
into the corrupted prompt's pass: what restores the answer is enough for it there. Noising puts
corrupted ones into the clean prompt's: what destroys it was needed. Several patches share a pass: a
row of the batch for each, behind rows with the prompt that the activations come from, so that they
are read where they arise and never kept. Sources: Meng et al. 2022, arXiv:2202.05262, section 2.1
("causal tracing"); on the two directions, Heimersheim and Nanda 2024, arXiv:2404.15255.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import get_args

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.held import require_position
from pvml.errors import PvmlError
from pvml.modules.embedding import check_length, check_tokens
from pvml.modules.transformer import Transformer
from pvml.patching.metric import LogitDifference, Metric, described
from pvml.patching.result import Direction, Patched
from pvml.patching.sites import Place, Site, site_of
from pvml.trace.tap import listen

_LOGITS_AT_ONCE = 1 << 24
"""Logits that are in memory together, unless one patch has more."""
_TOKENS_AT_ONCE = 1 << 12
"""Tokens in a pass, unless one patch has more."""
_ROUNDINGS = 16
"""Units of rounding that the two prompts' metrics must differ by."""
Prompts = Tensor | str | Sequence[str]
"""Ids (n_prompts, posn), or texts that the model's tokenizer makes into ids behind BOS."""
Tell = Callable[[int, int], None]
"""Is told how many patches are done, and of how many."""


@t.no_grad()
def patch_activations(
    model: Transformer,
    clean: Prompts,
    corrupted: Prompts,
    metric: Metric,
    *,
    over: str = "heads",
    by_position: bool = False,
    direction: Direction = "denoising",
    at_once: int | None = None,
    tell: Tell | None = None,
) -> Patched:
    """The metric with each cell of a tensor moved from one prompt's pass into the other's.

    over: `heads` (z, the default), q, k, v, attn_pattern by layer and head, or with by_position by
    position too (of a pattern: of the query); resid_pre, attn_out, mlp_out and others by layer and
    position. metric: from logits (n_prompts, posn, d_vocab) to a number, such as a
    `LogitDifference`. Several pairs of prompts are patched together, each from its own partner.
    Texts are prompts too, where the model has a tokenizer. at_once: patches in a pass (default: as
    many as keep it small); it moves no result but by rounding. tell: is called after each pass.

    Raises: PvmlError for prompts of different length, which have no positions in common, or equal
        prompts; a tensor that no layer has; another word for direction; a metric that gives no
        number, or the same for both prompts; as many at_once as none.
    """
    clean, corrupted = _ids(model, clean), _ids(model, corrupted)
    require_prompts(model, clean, corrupted)
    if direction not in get_args(Direction):
        raise PvmlError(f"direction must be denoising or noising, got {direction!r}")
    if at_once is not None and (not isinstance(at_once, int) or at_once < 1):
        raise PvmlError(f"at_once must be at least 1 patch in a pass, got {at_once!r:.60}")
    n, posn = clean.shape
    site = site_of(model.cfg, over, by_position, posn)
    clean, corrupted = clean.to(model.device), corrupted.to(model.device)
    ends = _measure(model, t.cat([clean, corrupted]), metric, n)
    rounding = _ROUNDINGS * t.finfo(model.dtype).eps * max(map(abs, ends))
    if abs(ends[0] - ends[1]) <= rounding:
        raise PvmlError(
            f"the metric is {ends[0]:g} for both prompts, so there is nothing between them that a "
            f"patch could move: choose prompts that it tells apart"
        )
    source, base = (clean, corrupted) if direction == "denoising" else (corrupted, clean)
    cells = list(product(*map(range, site.shape)))
    size = _that_fit(model, metric, n, posn) if at_once is None else at_once
    found: list[float] = []
    for start in range(0, len(cells), size):
        found += _patched(model, source, base, metric, site, cells[start : start + size])
        if tell is not None:
            tell(len(found), len(cells))
    return Patched(
        over=site.name,
        direction=direction,
        metric=described(metric, partial(_called, model)),
        axes=site.axes,
        shape=site.shape,
        numbers=tuple(found),
        clean=ends[0],
        corrupted=ends[1],
        clean_tokens=_positions(model, clean),
        corrupted_tokens=_positions(model, corrupted),
        n_prompts=n,
        processing=model.processing,
    )


def _patched(
    model: Transformer,
    source: Int[Tensor, "n_prompts posn"],
    base: Int[Tensor, "n_prompts posn"],
    metric: Metric,
    site: Site,
    cells: Sequence[Place],
) -> list[float]:
    """The metric with each of these patches, from one pass."""
    n = len(source)
    rows: dict[int, list[tuple[int, Place]]] = {}
    for row, cell in enumerate(cells, start=1):
        rows.setdefault(cell[0], []).append((row * n, cell))

    def put(name: str, x: Tensor) -> Tensor:
        new = x.clone()
        for first, cell in rows[int(name.split(".")[1])]:
            at = site.within(cell)
            new[first : first + n][:, *at] = x[:n][:, *at]
        return new

    names = [f"blocks.{layer}.{site.path}" for layer in rows]
    with listen(model, names, put, edits=True):
        values = _measure(model, t.cat([source, base.repeat(len(cells), 1)]), metric, n)
    return values[1:]


def _measure(
    model: Transformer, tokens: Int[Tensor, "rows posn"], metric: Metric, n: int
) -> list[float]:
    """The metric for every n rows.

    Raises: PvmlError for a metric that gives no finite number.
    """
    stream = model.stream(tokens)
    if isinstance(metric, LogitDifference):
        # the unembedding of all other positions would be most of the work
        at = stream[:, require_position(metric.position, stream.shape[1])]
        found = [metric.at(logits) for logits in model.unembed(at[:, None])[:, 0].split(n)]
    else:
        found = [_number(metric(logits)) for logits in model.unembed(stream).split(n)]
    for value in found:
        if not math.isfinite(value):
            raise PvmlError(
                f"the metric is {value}, which is no number between two prompts: are the model's "
                f"numbers finite?"
            )
    return found


def _number(value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, int | float):
        return float(value)
    given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise PvmlError(
        f"a metric makes one number of logits (n_prompts, posn, d_vocab), and this one gave {given}"
    )


def _that_fit(model: Transformer, metric: Metric, n: int, posn: int) -> int:
    """How many patches share a pass, so that neither its logits nor its stream is large."""
    read = 1 if isinstance(metric, LogitDifference) else posn
    by_logits = _LOGITS_AT_ONCE // (n * read * model.cfg.d_vocab)
    return max(1, min(by_logits, _TOKENS_AT_ONCE // (n * posn)))


def require_prompts(model: Transformer, clean: Tensor, corrupted: Tensor) -> None:
    """Nothing, if these are pairs of different prompts of one length that the model can read.

    Raises: PvmlError that names both lengths, or what else is wrong.
    """
    for tokens in (clean, corrupted):
        check_tokens(tokens, model.cfg)
        check_length(tokens.shape[1], model.cfg)
    if clean.shape[1] != corrupted.shape[1]:
        raise PvmlError(
            f"the clean prompt has {clean.shape[1]} tokens and the corrupted one "
            f"{corrupted.shape[1]}: only prompts of one length have the same positions, so change "
            f"a word for one of as many tokens"
        )
    if clean.shape != corrupted.shape or not clean.numel():
        raise PvmlError(
            f"each clean prompt needs a corrupted one, of at least one token: got "
            f"{tuple(clean.shape)} and {tuple(corrupted.shape)}"
        )
    if t.equal(clean.cpu(), corrupted.cpu()):
        raise PvmlError("the clean and the corrupted prompt are the same: a patch changes nothing")


def _ids(model: Transformer, prompts: Prompts) -> Tensor:
    return prompts if isinstance(prompts, Tensor) else model.to_tokens(prompts)


def _positions(model: Transformer, tokens: Int[Tensor, "n_prompts posn"]) -> tuple[str, ...]:
    """The tokens of the one prompt there is; of several, the numbers of the positions."""
    if len(tokens) > 1:
        return tuple(map(str, range(tokens.shape[1])))
    return tuple(_text_of(model, token) or str(token) for token in tokens[0].tolist())


def _called(model: Transformer, token: int) -> str:
    text = _text_of(model, token)
    return repr(text) if text else f"token {token}"


def _text_of(model: Transformer, token: int) -> str:
    """Empty where no tokenizer knows: a model can have more rows than there are tokens."""
    try:
        return "" if model.tokenizer is None else model.tokenizer.to_str_tokens([token])[0]
    except PvmlError:
        return ""
