"""What a model makes of text that it was not trained on: loss, accuracy, bits per byte.

Everything is averaged over tokens, never over batches: the last batch may be a small one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from pvml.data.rows import Rows
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.inference import inference
from pvml.modules.transformer import Transformer
from pvml.training.chunked import CHUNK, Buffers, chunked_grades
from pvml.training.losses import log_prob_of


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How a model predicts rows that it was not trained on: every token but each row's BOS."""

    loss: float
    """Mean loss (nats per token)."""
    accuracy: float
    """Share of next tokens that were the model's first choice."""
    loss_by_position: list[float]
    """Mean loss of the tokens at positions 1 to n_ctx - 1 (nats); BOS, at 0, is never predicted."""
    tokens: int
    """How many were predicted."""


def grade_held_out(model: Transformer, rows: Rows, batch_size: int = 32) -> HeldOut:
    """The grades of all rows. Their losses are summed in float64, whatever the batch."""
    nats, hits, buffers = t.zeros(rows.n_ctx - 1, dtype=t.float64), 0, Buffers()
    with inference(model):
        for start in range(0, len(rows), batch_size):
            tokens = rows.batch(range(start, min(start + batch_size, len(rows))))
            losses, right = grade(model, tokens.to(model.device), buffers=buffers)
            nats += losses.cpu().double().sum(0)
            hits += int(right.sum())
    n_tokens = len(rows) * (rows.n_ctx - 1)
    return HeldOut(
        loss=float(nats.sum()) / n_tokens,
        accuracy=hits / n_tokens,
        loss_by_position=(nats / len(rows)).tolist(),
        tokens=n_tokens,
    )


def bits_per_byte(
    model: Transformer, tokenizer: Tokenizer, documents: Sequence[str], batch_size: int = 32
) -> float:
    """Bits that the model needs per UTF-8 byte of text, comparable between tokenizers.

    Each document stands alone: BOS, its text, end-of-text. One that does not fit n_ctx is cut into
    windows that share no token and no context: each starts with BOS again and goes on where the
    one before ended. Every token but the BOS is predicted once, the end-of-text too; the losses
    are summed, over ln 2, over the bytes of the text. Rows of `batch_size` windows change nothing.

    Raises: PvmlError if there is no text, or for an n_ctx below 2.
    """
    if isinstance(documents, str):
        raise PvmlError("documents is one text: give a list of them, such as [text]")
    n_bytes = sum(len(document.encode()) for document in documents)
    if n_bytes == 0:
        raise PvmlError(f"{len(documents):,} documents without text have no bits per byte")
    # by length, so that a batch holds little padding
    windows = sorted(document_windows(tokenizer, documents, model.cfg.n_ctx), key=len)
    nats, buffers = 0.0, Buffers()
    with inference(model):
        for start in range(0, len(windows), batch_size):
            tokens, real = padded(windows[start : start + batch_size], tokenizer.bos_token_id)
            losses, _ = grade(model, tokens.to(model.device), real.to(model.device), buffers)
            nats += float(losses.cpu().double().sum())
    return nats / math.log(2) / n_bytes


def document_windows(tokenizer: Tokenizer, documents: Sequence[str], n_ctx: int) -> list[list[int]]:
    """The ids of each document and its end-of-text, n_ctx - 1 at a time, each time behind BOS.

    Raises: PvmlError for an n_ctx below 2.
    """
    if n_ctx < 2:
        raise PvmlError(f"n_ctx {n_ctx} leaves no room for a token behind BOS: expected 2 or more")
    windows = []
    for ids in tokenizer.encode_batch(documents):
        ids = [*ids, tokenizer.eos_token_id]
        for start in range(0, len(ids), n_ctx - 1):
            windows.append([tokenizer.bos_token_id, *ids[start : start + n_ctx - 1]])
    return windows


def padded(
    windows: Sequence[Sequence[int]], pad_id: int
) -> tuple[Int[Tensor, "batch posn"], Bool[Tensor, "batch posn"]]:
    """Windows of several lengths as one tensor, filled up on the right; True at real tokens."""
    longest = max(len(window) for window in windows)
    tokens = t.tensor([[*window, *[pad_id] * (longest - len(window))] for window in windows])
    lengths = t.tensor([len(window) for window in windows])
    return tokens, t.arange(longest) < lengths[:, None]


def grade(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    real: Bool[Tensor, "batch posn"] | None = None,
    buffers: Buffers | None = None,
) -> tuple[Float[Tensor, "batch posn-1"], Bool[Tensor, "batch posn-1"]]:
    """The loss (nats) of each token but a row's first, and whether it was the first choice.

    real: False at padding, which is not graded: its loss is 0 and it is never right. buffers:
    memory to work in, kept from an earlier call. Listeners hear the logits some rows at a time.
    """
    unembed = model.unembed
    stream = model.stream(tokens, None if real is None or bool(real.all()) else real)
    stream = unembed.tap.at("normalized_resid_final", stream)
    graded = t.ones_like(tokens[:, 1:], dtype=t.bool) if real is None else real[:, 1:]
    read, answers = stream[:, :-1][graded], tokens[:, 1:][graded].long()
    if unembed.tap.wants("logits"):
        few = (t.split(x, CHUNK) for x in (read, answers))
        graded_few = [
            _grade_logits(unembed.logits(x[None])[0], y) for x, y in zip(*few, strict=True)
        ]
        losses, right = (t.cat(parts) for parts in zip(*graded_few, strict=True))
    else:
        losses, right = chunked_grades(read, unembed.W_U, unembed.b_U, answers, buffers)
    return _in_place(losses, graded), _in_place(right, graded)


def _grade_logits(
    logits: Float[Tensor, "n d_vocab"], answers: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    return -log_prob_of(logits, answers), logits.argmax(-1) == answers


def _in_place(
    values: Shaped[Tensor, " graded"], graded: Bool[Tensor, "batch posn"]
) -> Shaped[Tensor, "batch posn"]:
    """The values where `graded` is True, in order; 0 or False elsewhere."""
    placed = values.new_zeros(graded.shape)
    placed[graded] = values
    return placed
