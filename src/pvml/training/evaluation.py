"""What a model makes of text that it was not trained on: loss, accuracy, bits per byte.

Everything is averaged over tokens, never over batches: the last batch may be a small one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Bool, Int
from torch import Tensor

from pvml.data.rows import Rows
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.inference import inference
from pvml.modules.transformer import Transformer
from pvml.training.losses import log_prob_of

_UNEMBEDDED_AT_ONCE = 1024
"""Positions: the logits of a whole batch would be its largest tensor by far."""


@dataclass(frozen=True)
class Grade:
    """A model's predictions of some tokens, added up."""

    nats: float = 0.0
    """Their losses, summed."""
    hits: int = 0
    """How many were the model's first choice."""
    tokens: int = 0
    """How many there were."""

    def __add__(self, other: "Grade") -> "Grade":
        return Grade(self.nats + other.nats, self.hits + other.hits, self.tokens + other.tokens)


def held_out_loss_and_accuracy(
    model: Transformer, rows: Rows, batch_size: int = 32
) -> tuple[float, float]:
    """Mean loss (nats per token), and the share of next tokens whose arg-max is right."""
    total = Grade()
    with inference(model):
        for start in range(0, len(rows), batch_size):
            tokens = rows.batch(range(start, min(start + batch_size, len(rows))))
            total += grade(model, tokens.to(model.device))
    return total.nats / total.tokens, total.hits / total.tokens


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
    n_bytes = sum(len(document.encode()) for document in documents)
    if n_bytes == 0:
        raise PvmlError(f"{len(documents):,} documents without text have no bits per byte")
    # by length, so that a batch holds little padding
    windows = sorted(document_windows(tokenizer, documents, model.cfg.n_ctx), key=len)
    total = Grade()
    with inference(model):
        for start in range(0, len(windows), batch_size):
            tokens, real = padded(windows[start : start + batch_size], tokenizer.bos_token_id)
            total += grade(model, tokens.to(model.device), real.to(model.device))
    return total.nats / math.log(2) / n_bytes


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
) -> Grade:
    """How the model predicts every real token but the first of each row."""
    stream = model.stream(tokens, None if real is None or bool(real.all()) else real)
    graded = t.ones_like(tokens[:, 1:], dtype=t.bool) if real is None else real[:, 1:]
    stream, targets = stream[:, :-1][graded], tokens[:, 1:][graded]
    total = Grade()
    for here, answers in zip(
        t.split(stream, _UNEMBEDDED_AT_ONCE), t.split(targets, _UNEMBEDDED_AT_ONCE), strict=True
    ):
        logits = model.unembed(here[None])[0]
        total += Grade(
            nats=-float(log_prob_of(logits, answers).sum()),
            hits=int((logits.argmax(-1) == answers).sum()),
            tokens=len(answers),
        )
    return total
