"""Heads taken out of a model, for as long as a pass takes, and what the losses are without them.

An ablated head writes its mean over a reference text, or nothing. The mean is the default, as in
Wang et al. 2022, arXiv:2211.00593, section 2.1: later layers are used to what a head adds on
average, and to take that away as well breaks more than the head's own work. It is taken for each
position apart unless asked otherwise: at position 0 every head reads BOS and nothing else, and a
head's average grows or fades with the number of tokens that it can see. Nothing of the model is
changed: what a head writes is replaced on its way, through the model's taps.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.held import Head, block_of, require_head
from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen

Fill = Literal["mean", "zero"]
"""What an ablated head writes: its mean over a reference text, or nothing."""
Over = Literal["position", "all"]
"""What a mean is over: all rows at one position, or all rows and positions."""
Edge = Literal["Q", "K", "V"]
"""What a head uses a stream for: its queries, its keys, or what it carries on."""

_AT_ONCE = 16
"""Rows in a pass."""
_LOGITS_AT_ONCE = 1 << 24
"""Logits that are in memory together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadMeans:
    """What every head hands on (z, before W_O) on average over some rows."""

    z: tuple[Float[Tensor, "posn n_heads d_head"], ...]
    """One for each layer, in float64; posn is 1 where the mean is over all positions."""
    over: Over

    def at(self, layer: int, posn: int) -> Float[Tensor, "posn_or_1 n_heads d_head"]:
        """A layer's means for the first `posn` positions.

        Raises: PvmlError where the reference rows were shorter, or had fewer layers.
        """
        if not 0 <= layer < len(self.z):
            raise PvmlError(
                f"these means are of a model of {len(self.z)} layers, which has no layer {layer}"
            )
        means = self.z[layer]
        if self.over == "position" and posn > len(means):
            raise PvmlError(
                f"the reference rows have {len(means)} tokens, so there is no mean for position "
                f"{len(means)}: give rows of {posn} tokens, or take the mean over all positions"
            )
        return means[:posn]


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The loss of a model with and without some of its heads."""

    heads: tuple[Head, ...]
    """Those taken out: layer and head, from 0."""
    fill: Fill
    over: Over
    loss: float
    """Nats per token of the whole model."""
    ablated_loss: float
    """Nats per token without them."""

    @property
    def increase(self) -> float:
        """What the heads are worth (nats per token)."""
        return self.ablated_loss - self.loss

    def __str__(self) -> str:
        each = "each position's mean" if self.over == "position" else "their mean"
        instead = each if self.fill == "mean" else "nothing"
        return (
            f"without {named(self.heads)} ({instead} instead): {self.ablated_loss:.3f} nats per "
            f"token, {self.increase:+.3f} against {self.loss:.3f}"
        )


def named(heads: Collection[Head]) -> str:
    """Heads as one writes them: `0.3, 1.2`."""
    return ", ".join(f"{layer}.{head}" for layer, head in heads) or "no head"


def all_heads(model: Transformer) -> list[Head]:
    """Every head of a model, layer by layer."""
    cfg = model.cfg
    return [(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]


@t.no_grad()
def head_means(
    model: Transformer, tokens: Int[Tensor, "batch posn"], over: Over = "position"
) -> HeadMeans:
    """The mean of every head's z over some rows: at each position, or over all of them.

    Raises: PvmlError for no rows, tokens that the model cannot read, or another word for `over`.
    """
    _require_word("over", over, Over)
    check_tokens(tokens, model.cfg)
    if tokens.numel() == 0:
        raise PvmlError(f"a mean needs at least one row and token, got {tuple(tokens.shape)}")
    cfg, posn = model.cfg, tokens.shape[1]
    sums = [
        t.zeros(posn, cfg.n_heads, cfg.d_head, dtype=t.float64, device="cpu")
        for _ in range(cfg.n_layers)
    ]

    def add(name: str, z: Tensor) -> None:
        sums[int(name.split(".")[1])] += z.cpu().double().sum(0)

    for rows in t.split(tokens, _AT_ONCE) if sums else ():
        with listen(model, "blocks.*.attn.z", add):
            model.stream(rows.to(model.device))
    means = [total / len(tokens) for total in sums]
    if over == "all":
        means = [mean.mean(0, keepdim=True) for mean in means]
    return HeadMeans(z=tuple(means), over=over)


@contextmanager
def ablated(
    model: Transformer, heads: Collection[Head], means: HeadMeans | None = None
) -> Iterator[None]:
    """Within it, these heads write their mean, or nothing where no means are given.

    b_O, which belongs to no head, stays. No heads: nothing is edited.

    Raises: PvmlError for a head that is not there; at the pass, for means of fewer positions.
    """
    by_layer = _by_layer(model, heads)

    def silence(name: str, z: Tensor) -> Tensor:
        layer = int(name.split(".")[1])
        which, new = by_layer[layer], z.clone()
        if means is None:
            new[:, :, which] = 0
        else:
            new[:, :, which] = means.at(layer, z.shape[1])[:, which].to(z)
        return new

    if not by_layer:
        yield
        return
    with listen(model, [f"blocks.{layer}.attn.z" for layer in by_layer], silence, edits=True):
        yield


@contextmanager
def cut(
    model: Transformer,
    writers: Collection[Head],
    reader: Head,
    edge: Edge,
    means: HeadMeans | None = None,
) -> Iterator[None]:
    """Within it, the reader's queries, keys or values are made as if the writers were ablated.

    Only what goes straight from one to the other is cut: whatever else reads a writer still does,
    and what those heads and MLPs hand on to the reader is left. ln1 is computed anew.

    Raises: PvmlError for a head that is not there, no writer or one that is not below the reader,
        or an edge other than Q, K, V.
    """
    _require_word("edge", edge, Edge)
    high, reading = require_head(model, reader)
    by_layer = _by_layer(model, writers)
    if not by_layer or max(by_layer) >= high:
        raise PvmlError(
            f"head {high}.{reading} reads heads of lower layers, got {named(writers)} to cut off"
        )
    above = block_of(model, high).attn
    weights = {
        "Q": (above.W_Q, above.b_Q),
        "K": (above.W_K, above.b_K),
        "V": (above.W_V, above.b_V),
    }
    W, b = (x[reading] for x in weights[edge])
    written: list[Tensor] = []
    streams: list[Tensor] = []

    def note(name: str, z: Tensor) -> None:
        layer = int(name.split(".")[1])
        which = by_layer[layer]
        theirs, W_O = z[:, :, which], block_of(model, layer).attn.W_O[which]
        if means is not None:
            theirs = theirs - means.at(layer, z.shape[1])[:, which].to(z)
        written.append(t.einsum("bphd,hdm->bpm", theirs, W_O))

    def subtract(name: str, stream: Tensor) -> None:
        streams.append(stream - sum(written))
        written.clear()

    def remake(name: str, x: Tensor) -> Tensor:
        read = block_of(model, high).ln1(streams.pop())
        if model.cfg.positions == "shortformer" and edge != "V":
            read = read + model.pos_embed.W_pos[: x.shape[1]]
        new = x.clone()
        new[:, :, reading] = read @ W + b
        return new

    with (
        listen(model, [f"blocks.{layer}.attn.z" for layer in by_layer], note),
        listen(model, f"blocks.{high}.resid_pre", subtract),
        listen(model, f"blocks.{high}.attn.{edge.lower()}", remake, edits=True),
    ):
        yield


@t.no_grad()
def token_losses(
    model: Transformer, tokens: Int[Tensor, "batch posn"]
) -> Float[Tensor, "batch posn-1"]:
    """The loss (nats) of every token but the first of each row, in float64, on the CPU.

    A few rows' stream and a few positions' logits are in memory together.

    Raises: PvmlError for tokens that the model cannot read, or rows of fewer than 2.
    """
    check_tokens(tokens, model.cfg)
    if tokens.shape[1] < 2:
        raise PvmlError(
            f"rows of at least 2 tokens have predictions to grade, got {tuple(tokens.shape)}"
        )
    at_once = max(1, _LOGITS_AT_ONCE // model.cfg.d_vocab)
    found = []
    for rows in t.split(tokens.to(model.device), _AT_ONCE):
        stream = model.stream(rows)[:, :-1].flatten(0, 1)
        targets = rows[:, 1:].flatten().long()
        for read, answers in zip(t.split(stream, at_once), t.split(targets, at_once), strict=True):
            logits = model.unembed(read[None])[0]
            wide = t.promote_types(logits.dtype, t.float32)
            log_probs = logits.log_softmax(-1, dtype=wide)
            found.append(-log_probs.gather(-1, answers[:, None])[:, 0].cpu().double())
    each = t.cat(found) if found else t.zeros(0, dtype=t.float64)
    return each.view(len(tokens), tokens.shape[1] - 1)


@t.no_grad()
def ablate_heads(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    heads: Sequence[Head],
    *,
    fill: Fill = "mean",
    over: Over = "position",
    reference: Int[Tensor, "batch_reference posn_reference"] | None = None,
) -> Ablation:
    """The mean loss over all predictions in these rows, with the heads and without them.

    reference: rows that the means are over; the tokens themselves if none are given, and then a
    head still tells of a row what its share in the mean is, 1 in the number of rows.

    Raises: PvmlError for no rows, a head that is not there, another word for `fill` or `over`, or
        reference rows that are shorter than these where each position has its mean.
    """
    _require_word("fill", fill, Fill)
    if len(tokens) == 0:
        raise PvmlError("there are no rows to grade")
    loss = float(token_losses(model, tokens).mean())
    rows = tokens if reference is None else reference
    means = head_means(model, rows, over) if fill == "mean" else None
    with ablated(model, heads, means):
        without = float(token_losses(model, tokens).mean())
    return Ablation(heads=tuple(heads), fill=fill, over=over, loss=loss, ablated_loss=without)


def _by_layer(model: Transformer, heads: Collection[Head]) -> dict[int, list[int]]:
    """The heads of each layer.

    Raises: PvmlError for one that is not there.
    """
    by_layer: dict[int, list[int]] = {}
    for layer, head in sorted(set(heads)):
        require_head(model, (layer, head))
        by_layer.setdefault(layer, []).append(head)
    return by_layer


def _require_word(name: str, word: object, words: object) -> None:
    if word not in get_args(words):
        raise PvmlError(f"{name} must be one of {', '.join(get_args(words))}, got {word!r}")
