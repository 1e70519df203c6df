"""What a corpus looks like to a model: lengths, what fits a window, rows. Numbers and plain lines.

Reading texts and cutting rows are elsewhere; nothing here is random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from pvml.data.args import Packing
from pvml.data.rows import Rows
from pvml.errors import PvmlError

WINDOWS = (128, 512, 1024)
_TAIL_BATCH = 1000
_PACKINGS = {
    "stream": "stream: each row goes on where the one before ended",
    "document": "document: each row starts with the document that did not fit before",
}
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
    packing: Packing
    """How the rows are cut."""
    rows: int
    """Full rows."""
    cut_off: int
    """Tokens between two rows, in none: of documents longer than a row."""
    repeated: int
    """Tokens in two rows, the beginnings of documents that did not fit into the first."""
    remainder: int
    """Tokens after the last row, in no row."""
    rows_at_a_start: int
    """Rows that start with a document's first token."""
    whole: int
    """Documents with all their tokens in one row."""
    rows_tails_dropped: int
    """About how many rows `tokenize_and_concatenate` would cut; see `rows_dropping_tails`."""

    def lines(self) -> list[str]:
        """The numbers as aligned lines of text, always the same for the same corpus."""
        percentiles = self.percentiles
        in_rows = self.tokens - self.cut_off - self.remainder
        named = {
            "documents": f"{self.documents:,}",
            "text": f"{self.n_bytes:,} bytes, {self.n_bytes / self.tokens:.2f} a token",
            "tokens": f"{self.tokens:,} (an end-of-text after each document included)",
            "document length": (
                f"mean {self.mean:,.0f}, median {percentiles[50]:,.0f}, p90 {percentiles[90]:,.0f},"
                f" p99 {percentiles[99]:,.0f}, longest {self.longest:,} tokens"
            ),
            "fit whole, with BOS": ", ".join(
                f"{_percent(share)} in {window:,}" for window, share in self.fit.items()
            ),
            "rows": f"{self.rows:,} of {self.n_ctx:,}: BOS, then {self.n_ctx - 1:,} of the stream",
            "packing": _PACKINGS[self.packing],
            "in rows": f"{_percent(in_rows / self.tokens)} of the tokens",
            "cut off": f"{self.cut_off:,} tokens behind the end of a row, in no row",
            "left over": f"{self.remainder:,} tokens, in no row",
            "repeated": f"{self.repeated:,} tokens, at one row's end and the next one's start",
            "rows at a start": (
                f"{self.rows_at_a_start:,} ({_percent(self.rows_at_a_start / self.rows)}) start "
                f"with a document"
            ),
            "whole in one row": (
                f"{self.whole:,} documents ({_percent(self.whole / self.documents)})"
            ),
        }
        if self.packing == "stream":
            del named["repeated"]
            named["document ends"] = f"{self.documents / self.rows:.3f} a row"
        compared = self.packing == "stream" and self.rows_tails_dropped != self.rows
        if compared:
            named["rows, tails dropped"] = f"about {self.rows_tails_dropped:,} (see below)"
        lines = [f"{name:<20}: {value}" for name, value in named.items()]
        if compared:
            lines += ["", *_TWO_KINDS]
        return lines


def corpus_statistics(parts: Sequence[Rows]) -> Statistics:
    """The statistics of the documents in these rows (train and held-out, say).

    Raises: PvmlError for rows of bare ids, which do not know how long the texts are.
    """
    streams = [rows.stream for rows in parts]
    n_bytes = [stream.n_bytes for stream in streams if stream.n_bytes is not None]
    if len(n_bytes) < len(streams):
        raise PvmlError("rows of bare ids have no statistics: give rows that `pack` made")
    lengths = np.concatenate([stream.lengths for stream in streams])
    n_ctx = parts[0].n_ctx
    return Statistics(
        documents=len(lengths),
        n_bytes=sum(int(sizes.sum()) for sizes in n_bytes),
        tokens=sum(map(len, streams)),
        mean=float(lengths.mean()),
        percentiles={p: float(np.percentile(lengths, p)) for p in (50, 90, 99)},
        longest=int(lengths.max()),
        fit={n: float((lengths < n).mean()) for n in sorted({*WINDOWS, n_ctx})},
        n_ctx=n_ctx,
        packing=parts[0].packing,
        rows=sum(map(len, parts)),
        cut_off=sum(rows.cut_off for rows in parts),
        repeated=sum(rows.repeated for rows in parts),
        remainder=sum(rows.remainder for rows in parts),
        rows_at_a_start=sum(
            int(np.isin(rows.starts(), rows.stream.starts).sum()) for rows in parts
        ),
        whole=sum(int(_whole(rows).sum()) for rows in parts),
        rows_tails_dropped=rows_dropping_tails(lengths, n_ctx),
    )


def _whole(rows: Rows) -> Bool[np.ndarray[Any, Any], " n_documents"]:
    """Which documents have all their tokens, end-of-text apart, in one row."""
    row_starts, starts = rows.starts(), rows.stream.starts
    row = np.searchsorted(row_starts, starts, "right") - 1
    ends = np.asarray(starts + rows.stream.lengths)
    return (row >= 0) & (ends <= row_starts[row] + rows.n_ctx - 1)


def _percent(share: float) -> str:
    """Rounded down: a share below all never reads as all."""
    return f"{floor(1000 * share + 1e-6) / 10:.1f}%"


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
