"""What a model makes of text that it was not trained on: loss, accuracy, bits per byte.

Everything is averaged over tokens, never over batches: the last batch may be a small one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from pvml.data.rows import Rows
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.inference import inference
from pvml.modules.transformer import Transformer
from pvml.modules.unembedding import log_prob_of
from pvml.training.chunked import CHUNK, Buffers, chunked_grades

_DOCUMENTS = 1000
"""Documents whose windows are sorted by length and graded together."""
_CHARACTERS = 1 << 22
"""As many of their characters at most, beyond the first document's."""


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


@dataclass(frozen=True, kw_only=True)
class DocumentGrades:
    """How a model predicts documents, each alone: every token but BOS, the end-of-texts too.

    All sums are of nats, in float64.
    """

    documents: int
    n_bytes: int
    """Size of their texts (UTF-8 bytes)."""
    hits: int
    """How many tokens were the model's first choice."""
    nats_by_position: Float[Tensor, " later_posn"]
    """Losses of the tokens at positions 1 to n_ctx - 1 of a window."""
    count_by_position: Int[Tensor, " later_posn"]
    """How many tokens stood there."""
    nats_by_token: Float[Tensor, " d_vocab"]
    """Losses of each token id, where it was the one to be predicted."""
    count_by_token: Int[Tensor, " d_vocab"]
    """How many times it was."""

    @property
    def tokens(self) -> int:
        """How many tokens were predicted."""
        return int(self.count_by_position.sum())

    @property
    def nats(self) -> float:
        """The sum of all losses."""
        return float(self.nats_by_position.sum())

    @property
    def loss(self) -> float:
        """Mean loss (nats per token)."""
        return self.nats / self.tokens

    @property
    def accuracy(self) -> float:
        """Share of tokens that were the model's first choice."""
        return self.hits / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs per byte of text; see the function of this name."""
        return self.nats / math.log(2) / self.n_bytes


def grade_documents(
    model: Transformer,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    batch_size: int = 32,
    n_ctx: int | None = None,
) -> DocumentGrades:
    """The grades of documents, each alone, in windows as `bits_per_byte` cuts them.

    documents: read once, and only some are held at a time. n_ctx: length of a window (tokens, BOS
    included); unset, the model's.

    Raises: PvmlError if there is no text, or for an n_ctx below 2 or above the model's.
    """
    if isinstance(documents, str):
        raise PvmlError("documents is one text: give a list of them, such as [text]")
    longest = model.cfg.n_ctx
    n_ctx = longest if n_ctx is None else n_ctx
    if n_ctx > longest:
        raise PvmlError(f"n_ctx {n_ctx:,} is longer than the model can read: at most {longest:,}")
    _require_room(n_ctx)
    d_vocab = model.cfg.d_vocab
    by_position, by_token = (t.zeros(n, dtype=t.float64) for n in (n_ctx - 1, d_vocab))
    at_position, of_token = (t.zeros(n, dtype=t.int64) for n in (n_ctx - 1, d_vocab))
    n_documents = n_bytes = hits = 0
    buffers = Buffers()
    with inference(model):
        for few in _some_at_a_time(documents):
            n_documents += len(few)
            n_bytes += sum(len(document.encode()) for document in few)
            # by length, so that a batch holds little padding
            windows = sorted(document_windows(tokenizer, few, n_ctx), key=len)
            for start in range(0, len(windows), batch_size):
                tokens, real = padded(windows[start : start + batch_size], tokenizer.bos_token_id)
                losses, right = grade(
                    model, tokens.to(model.device), real.to(model.device), buffers
                )
                losses, graded, width = losses.cpu().double(), real[:, 1:], losses.shape[1]
                by_position[:width] += losses.sum(0)
                at_position[:width] += graded.sum(0)
                ids = tokens[:, 1:][graded]
                by_token.index_add_(0, ids, losses[graded])
                of_token += t.bincount(ids, minlength=d_vocab)
                hits += int(right.sum())
    if n_bytes == 0:
        raise PvmlError(f"{n_documents:,} documents without text have no bits per byte")
    return DocumentGrades(
        documents=n_documents,
        n_bytes=n_bytes,
        hits=hits,
        nats_by_position=by_position,
        count_by_position=at_position,
        nats_by_token=by_token,
        count_by_token=of_token,
    )


def _some_at_a_time(documents: Iterable[str]) -> Iterator[list[str]]:
    few: list[str] = []
    room = _CHARACTERS
    for document in documents:
        few.append(document)
        room -= len(document)
        if len(few) == _DOCUMENTS or room <= 0:
            yield few
            few, room = [], _CHARACTERS
    if few:
        yield few


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
    return grade_documents(model, tokenizer, documents, batch_size).bits_per_byte


def document_windows(tokenizer: Tokenizer, documents: Sequence[str], n_ctx: int) -> list[list[int]]:
    """The ids of each document and its end-of-text, n_ctx - 1 at a time, each time behind BOS.

    Raises: PvmlError for an n_ctx below 2.
    """
    _require_room(n_ctx)
    windows = []
    for ids in tokenizer.encode_batch(documents):
        ids = [*ids, tokenizer.eos_token_id]
        for start in range(0, len(ids), n_ctx - 1):
            windows.append([tokenizer.bos_token_id, *ids[start : start + n_ctx - 1]])
    return windows


def _require_room(n_ctx: int) -> None:
    if n_ctx < 2:
        raise PvmlError(f"n_ctx {n_ctx} leaves no room for a token behind BOS: expected 2 or more")


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
