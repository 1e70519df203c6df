"""What a corpus looks like to a model: lengths, what fits a window, rows. Numbers and plain lines.

Reading texts and cutting rows are elsewhere; nothing here is random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from jaxtyping import Int

from pvml.data.rows import Rows
from pvml.data.stream import document_lengths
from pvml.errors import PvmlError

WINDOWS = (128, 512, 1024)
_TAIL_BATCH = 1000
_TWO_KINDS = (
    "Two kinds of row count: tokenize_and_concatenate, which is often used for TinyStories, drops",
    f"the tail of every {_TAIL_BATCH:,} documents, then holds out rows. Here none is dropped, and",
    "documents are held out whole, so the counts differ a little.",
)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """A corpus in numbers. Lengths count a document's own tokens, neither BOS nor end-of-text."""

    documents: int
    """Documents, train and held-out ones together."""
    n_bytes: int
    """Size of their texts (UTF-8 bytes)."""
    tokens: int
    """Tokens of the stream, one end-of-text after each document included."""
    mean: float
    """Mean length (tokens)."""
    percentiles: dict[int, float]
    """Length (tokens) that 50, 90 and 99 percent of the documents do not exceed, interpolated."""
    longest: int
    """Greatest length (tokens)."""
    fit: dict[int, float]
    """Share (0 to 1) of documents that, with BOS, fit whole in a window of so many tokens."""
    n_ctx: int
    """Tokens in a row, BOS included."""
    rows: int
    """Full rows."""
    remainder: int
    """Tokens that are in no row."""
    rows_tails_dropped: int
    """About how many rows `tokenize_and_concatenate` would cut; see `rows_dropping_tails`."""

    def lines(self) -> list[str]:
        """The numbers as aligned lines of text, always the same for the same corpus."""
        percentiles = self.percentiles
        named = {
            "documents": f"{self.documents:,}",
            "text": f"{self.n_bytes:,} bytes, {self.n_bytes / self.tokens:.2f} a token",
            "tokens": f"{self.tokens:,} (an end-of-text after each document included)",
            "document length": (
                f"mean {self.mean:,.0f}, median {percentiles[50]:,.0f}, p90 {percentiles[90]:,.0f},"
                f" p99 {percentiles[99]:,.0f}, longest {self.longest:,} tokens"
            ),
            "fit whole, with BOS": ", ".join(
                f"{floor(1000 * share + 1e-6) / 10:.1f}% in {window:,}"
                for window, share in self.fit.items()
            ),
            "rows": f"{self.rows:,} of {self.n_ctx:,}: BOS, then {self.n_ctx - 1:,} of the stream",
            "left over": f"{self.remainder:,} tokens, in no row",
            "document ends": f"{self.documents / self.rows:.3f} a row",
        }
        if self.rows_tails_dropped != self.rows:
            named["rows, tails dropped"] = f"about {self.rows_tails_dropped:,} (see below)"
        lines = [f"{name:<20}: {value}" for name, value in named.items()]
        if self.rows_tails_dropped != self.rows:
            lines += ["", *_TWO_KINDS]
        return lines


def corpus_statistics(documents: Sequence[str], parts: Sequence[Rows]) -> Statistics:
    """The statistics of documents that were packed into these rows (train and held-out, say).

    Raises: PvmlError if the rows do not hold exactly that many documents.
    """
    lengths = np.concatenate([document_lengths(rows.stream, rows.bos_token_id) for rows in parts])
    if len(lengths) != len(documents):
        raise PvmlError(
            f"{len(documents):,} documents were given, and rows that hold {len(lengths):,}"
        )
    n_ctx = parts[0].n_ctx
    return Statistics(
        documents=len(documents),
        n_bytes=sum(len(document.encode()) for document in documents),
        tokens=sum(len(rows.stream) for rows in parts),
        mean=float(lengths.mean()),
        percentiles={p: float(np.percentile(lengths, p)) for p in (50, 90, 99)},
        longest=int(lengths.max()),
        fit={n: float((lengths < n).mean()) for n in sorted({*WINDOWS, n_ctx})},
        n_ctx=n_ctx,
        rows=sum(len(rows) for rows in parts),
        remainder=sum(rows.remainder for rows in parts),
        rows_tails_dropped=rows_dropping_tails(lengths, n_ctx),
    )


def rows_dropping_tails(lengths: Int[np.ndarray[Any, Any], " n_documents"], n_ctx: int) -> int:
    """Rows that `tokenize_and_concatenate` cuts: it drops the tail of each 1,000 documents.

    TransformerLens's function puts an end-of-text between documents, not after the last. It also
    cuts the text at some places before tokenising, which can split a word, so its true number may
    be a little higher.
    """
    total = 0
    for start in range(0, len(lengths), _TAIL_BATCH):
        batch = lengths[start : start + _TAIL_BATCH]
        total += (int(batch.sum()) + len(batch) - 1) // (n_ctx - 1)
    return total
