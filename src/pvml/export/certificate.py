"""The proof that comes with an export: what the other library computes from it, beside PvML."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

import torch as t
from torch import Tensor

from pvml.export.form import Form, Reading, Source
from pvml.parity.check import LARGE, compare
from pvml.parity.rounding_sizes import sizes_for_float64
from pvml.runs.weights import build_model

PROMPT = "Once upon a time"
TEXTS = (PROMPT, "  Two  spaces,\n\nand a\ttab; don't.", "caf\u00e9 \u65e5\u672c \U0001f642 1,234")
"""What the tokenizers are compared on."""
_MOST_POSITIONS = 1024
_NEW_TOKENS = 20
_SEED = 0
_TIE = 16.0
"""Logits this near, in units of the dtype's rounding of the largest one, may change places."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The logits of one reading of the export, in one dtype, beside PvML's in that dtype."""

    read_as: str
    dtype: str
    max_abs_diff: float
    """Largest difference of a logit (nats)."""
    relative: float
    """The same as a share of the largest logit."""
    allowed: float | None
    """The largest `relative` that is taken for rounding. None: the row is told, not judged."""
    argmax_equal: int
    """At how many positions the likeliest token is the same, or as likely to rounding."""
    positions: int
    same_greedy: bool | None
    """Whether the library's own greedy continuation is PvML's, up to a tie. None: not asked."""

    @property
    def ok(self) -> bool:
        if self.allowed is None:
            return True
        same = self.argmax_equal == self.positions and self.same_greedy is not False
        return isfinite(self.relative) and self.relative <= self.allowed and same


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What was compared, and how it came out."""

    form: str
    """The word for the form, as `pvml export --to` takes it."""
    library: str
    """What read the export, with its version."""
    torch: str
    pvml: str
    stored_as: str
    """The dtype of the stored numbers."""
    tokens: tuple[int, ...]
    """What both read: BOS, then ids drawn at random."""
    greedy_prompt: tuple[int, ...]
    greedy: tuple[int, ...]
    """PvML's greedy continuation of it, in float64."""
    comparisons: tuple[Comparison, ...]
    same_ids: bool | None
    """Whether the library's tokenizer gives the same ids for each of `TEXTS`. None: it has none."""
    padded_first: int = 0
    """At how many positions an id that only fills the vocabulary up is the likeliest."""

    @property
    def passed(self) -> bool:
        """Whether every comparison that is judged came out right."""
        judged = any(row.allowed is not None for row in self.comparisons)
        right = all(row.ok for row in self.comparisons)
        return judged and right and self.same_ids is not False and not self.padded_first

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "passed": self.passed}

    def text(self) -> str:
        """The certificate for people, in a few lines."""
        rows = [_HEAD, *(_cells(row) for row in self.comparisons)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        table = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(
            [
                f"{self.library} has read it back; logits of {len(self.tokens)} tokens beside "
                f"PvML's:",
                *(line.rstrip() for line in table),
                *self._others(),
                "passed" if self.passed else "FAILED",
            ]
        )

    def _others(self) -> Iterable[str]:
        asked = {
            row.dtype: row.same_greedy for row in self.comparisons if row.same_greedy is not None
        }
        if asked:
            told = ", ".join(
                f"{dtype}: {'the same' if s else 'OTHERS'}" for dtype, s in asked.items()
            )
            yield f"the {len(self.greedy)} tokens that its greedy generate writes: {told}"
        if self.same_ids is not None:
            told = "the same ids" if self.same_ids else "OTHER ids"
            yield f"its tokenizer gives {told} for {len(TEXTS)} texts"
        if self.padded_first:
            yield (
                f"an id that only fills the vocabulary up is the likeliest at {self.padded_first} "
                f"of {len(self.tokens)} positions: export without padding"
            )


_HEAD = ("dtype", "read as", "max abs diff", "relative", "allowed", "same argmax")


def _cells(row: Comparison) -> tuple[str, ...]:
    return (
        row.dtype,
        row.read_as,
        f"{row.max_abs_diff:.1e}",
        f"{row.relative:.1e}",
        "not judged" if row.allowed is None else f"{row.allowed:.0e}{'' if row.ok else ' WRONG'}",
        f"{row.argmax_equal} of {row.positions}",
    )


def certify(source: Source, word: str, form: Form, folder: Path) -> Certificate:
    """Read a folder that the form has written, and compare.

    Both compute in the dtype that the numbers are stored in, as a user will, and in float64, where
    nothing is left of rounding: there they must agree to 1e-12 of the largest logit, or to 1e-10
    from ten million parameters on, and write the same greedy text. Where the
    logits do not, as much is allowed as PvML's own are off in float32, scaled to float64: sharp
    attention rounds more.
    """
    tokens, prompt = _tokens(source), _prompt(source)
    n_new = min(_NEW_TOKENS, source.cfg.n_ctx - len(prompt))
    count = sum(x.numel() for x in source.weights.values())
    allowed = 1e-12 if count < LARGE else 1e-10
    rows: list[Comparison] = []
    greedy: list[int] = []
    padded_first = 0
    for dtype in dict.fromkeys((source.dtype, t.float64)):
        # one model after the other: a large one need not fit twice
        ours, greedy, steps = _ours(source, dtype, tokens, prompt, n_new)
        for reading in form.read(folder, dtype):
            theirs = reading.logits(tokens)
            same = None
            if reading.continued is not None and n_new:
                same = _same_text(greedy, reading.continued(prompt, n_new), steps)
            judged = allowed if reading.judged and dtype == t.float64 else None
            row = _compared(ours, theirs, reading, judged, same)
            if judged is not None and not row.relative <= judged:
                row = replace(row, allowed=_rounding(source, tokens, ours, judged))
            rows.append(row)
            padded_first = max(padded_first, int((theirs.argmax(-1) >= ours.shape[-1]).sum()))
    return Certificate(
        form=word,
        library=form.require_library(),
        torch=t.__version__,
        pvml=version("pvml"),
        stored_as=str(source.dtype).removeprefix("torch."),
        tokens=tuple(tokens[0].tolist()),
        greedy_prompt=tuple(prompt),
        greedy=tuple(greedy),
        comparisons=tuple(rows),
        same_ids=_same_ids(source, form, folder),
        padded_first=padded_first,
    )


def _rounding(source: Source, tokens: Tensor, logits: Tensor, allowed: float) -> float:
    """What float64 rounds of these logits, as a share of the largest, and at least `allowed`.

    It is told from what float32 rounds of them.
    """
    narrow = build_model(source.cfg, source.weights, "the model", t.device("cpu"), t.float32)
    with t.no_grad():
        (row,) = compare({"": narrow(tokens)}, {"": logits}, 0.0)
    largest = float(logits.abs().max())
    sizes = sizes_for_float64({"": logits.numpy()}, {"": row.relative}, allowed, {})
    return allowed * max(1.0, sizes.get("", 0.0) / largest) if largest else allowed


def _compared(
    ours: Tensor, theirs: Tensor, reading: Reading, allowed: float | None, same: bool | None
) -> Comparison:
    real = theirs[..., : ours.shape[-1]]
    (row,) = compare({"logits": real}, {"logits": ours}, 0.0)
    return Comparison(
        read_as=reading.how,
        dtype=str(ours.dtype).removeprefix("torch."),
        max_abs_diff=row.max_abs_diff,
        relative=row.relative,
        allowed=allowed,
        argmax_equal=0 if row.problem else int(_as_likely(ours, real.argmax(-1)).sum()),
        positions=ours.shape[1],
        same_greedy=same,
    )


def _ours(
    source: Source, dtype: t.dtype, tokens: Tensor, prompt: list[int], n_new: int
) -> tuple[Tensor, list[int], list[Tensor]]:
    """PvML's logits; its greedy continuation of the prompt, and the logits of each step of it."""
    model = build_model(source.cfg, source.weights, "the model", t.device("cpu"), dtype)
    written: list[int] = []
    steps: list[Tensor] = []
    with t.no_grad():
        logits = model(tokens)
        while len(written) < n_new and written[-1:] != [source.tokenizer.eos_token_id]:
            steps.append(model(t.tensor([[*prompt, *written]]))[0, -1])
            written.append(int(steps[-1].argmax()))
    return logits, written, steps


def _as_likely(logits: Tensor, ids: Tensor) -> Tensor:
    """Where the token of each id has the largest logit, or one that is no smaller to rounding."""
    rounding = _TIE * t.finfo(logits.dtype).eps * logits.abs().amax(-1)
    return logits.gather(-1, ids[..., None])[..., 0] >= logits.amax(-1) - rounding


def _same_text(ours: list[int], theirs: list[int], steps: list[Tensor]) -> bool:
    """Whether two greedy continuations are one, at least up to a tie in PvML's logits."""
    for logits, mine, other in zip(steps, ours, theirs, strict=False):
        if mine != other:
            return other < len(logits) and bool(_as_likely(logits, t.tensor(other)))
    return len(ours) == len(theirs)


def _same_ids(source: Source, form: Form, folder: Path) -> bool | None:
    if form.encode is None:
        return None
    theirs = form.encode(folder)
    return all(theirs(text) == source.tokenizer.encode(text) for text in TEXTS)


def _tokens(source: Source) -> Tensor:
    """BOS, then ids drawn at random, as long as the model can read."""
    length = min(source.cfg.n_ctx, _MOST_POSITIONS)
    draw = t.Generator().manual_seed(_SEED)
    tokens = t.randint(source.cfg.d_vocab, (1, length), generator=draw)
    tokens[0, 0] = source.tokenizer.bos_token_id
    return tokens


def _prompt(source: Source) -> list[int]:
    """BOS and a story's first words, where the model can read more than those."""
    ids = source.tokenizer.encode(PROMPT, prepend_bos=True)
    return ids if len(ids) < source.cfg.n_ctx else ids[:1]
