"""`pvml evaluate MODEL --data CORPUS`: how well a model predicts a text."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from pvml.cli.flags import parse
from pvml.errors import PvmlError, RunDirError
from pvml.runs.naming import known_run

if TYPE_CHECKING:
    from pvml.data.sources import Fingerprint
    from pvml.data.tokenizer import Tokenizer
    from pvml.training.evaluation import DocumentGrades

_HARDEST = 10
_OFTEN = 10
"""A token that is predicted less often than that has no mean worth telling."""


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags:
    """Grade a model on a text: loss, accuracy and bits per byte.

    Each document stands alone: BOS, its text, end-of-text, in windows that share no context. Bits
    per byte compare between models of any tokenizer; losses per token do not.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory, a checkpoint in it, or the NAME of one in runs; a bundled model (attn-1l,
    attn-2l, stories); a Hugging Face GPT-2's folder; or gpt2, ..."""
    data: str
    """The text: a file or folder, storybook:N, tinystories:validation (from the hub), ..."""
    limit: int | None = None
    """Grade at most so many documents; all unless given."""
    n_ctx: int | None = None
    """Length of a window (tokens, BOS included). Unset: the longest that the model can read."""
    batch_size: int = 32
    """Windows that are read at once; it changes the speed only."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""
    json: bool = False
    """Print one JSON object, with the loss at every position."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml evaluate` say; the exit code."""
    flags = parse(EvaluateFlags, "evaluate", arguments)
    if flags.batch_size < 1:
        raise PvmlError(f"--batch-size must be at least 1 window, got {flags.batch_size}")

    from pvml.data.sources import Fingerprint, open_corpus
    from pvml.loading import load
    from pvml.runs.json_object import to_json
    from pvml.training.evaluation import grade_documents

    corpus = open_corpus(flags.data, flags.limit)
    loaded = load(flags.model, device=flags.device)
    model, tokenizer = loaded
    started, fingerprint = time.perf_counter(), Fingerprint()
    read = track(
        _passing(corpus, fingerprint),
        "documents graded",
        console=Console(stderr=True),
        transient=True,
        disable=not Console(stderr=True).is_terminal,
    )
    grades = grade_documents(model, tokenizer, read, flags.batch_size, flags.n_ctx)
    seconds = time.perf_counter() - started
    told = {
        "model": flags.model,
        "source": loaded.source,
        "parameters": sum(x.numel() for x in model.parameters()),
        "tokenizer": tokenizer.name,
        "data": flags.data,
        "fingerprint": fingerprint.hexdigest(),
        "documents": grades.documents,
        "bytes": grades.n_bytes,
        "tokens": grades.tokens,
        "n_ctx": len(grades.nats_by_position) + 1,
        "loss": grades.loss,
        "accuracy": grades.accuracy,
        "bits_per_byte": grades.bits_per_byte,
        "seconds": seconds,
        "device": str(model.device),
        "loss_by_position": (grades.nats_by_position / grades.count_by_position).tolist(),
        "hardest_tokens": _hardest(grades, tokenizer),
        "notes": [*corpus.notes, *_trained_on(flags, fingerprint.hexdigest())],
    }
    if flags.json:
        print(to_json(told))
    else:
        _show(told, grades)
    return 0


def _passing(documents: Iterable[str], fingerprint: "Fingerprint") -> Iterator[str]:
    for document in documents:
        fingerprint.add(document.encode())
        yield document


def _hardest(grades: "DocumentGrades", tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    """The tokens of the highest mean loss, of those that were predicted often; worst first."""
    count = grades.count_by_token
    mean = grades.nats_by_token / count
    often = (count >= min(_OFTEN, int(count.max()))).nonzero().flatten().tolist()
    return [
        {
            "token": tokenizer.decode([i]) if i < tokenizer.d_vocab else "",
            "id": i,
            "times": int(count[i]),
            "loss": float(mean[i]),
            "share_of_loss": float(grades.nats_by_token[i]) / grades.nats,
        }
        for i in sorted(often, key=lambda i: -float(mean[i]))[:_HARDEST]
    ]


def _trained_on(flags: EvaluateFlags, fingerprint: str) -> list[str]:
    """A sentence if MODEL is a run that was trained on this very text, or on text of its source."""
    from pvml.runs.layout import read_config, run_of_checkpoint

    path = known_run(flags.model)
    checkpoint = run_of_checkpoint(path)
    try:
        data = read_config(path if checkpoint is None else checkpoint[0]).get("data", {})
    except (RunDirError, OSError):  # no run: nothing is known of its training text
        return []
    split = data.get("held_out") is None and data.get("held_out_documents")
    but = f", but for the {split:,} documents that it held out" if split else ""
    if data.get("fingerprint") == fingerprint:
        return [f"The run was trained on this text{but}: its grades here flatter it."]
    source = data.get("source")
    if isinstance(source, str) and _share_documents(source, flags.data):
        return [
            f"The run was trained on documents of {source}{but}, and these are from there, too: "
            f"its grades on what it has read flatter it."
        ]
    return []


def _share_documents(one: str, other: str) -> bool:
    """Whether two corpora are of the same source: a file and its folder, stories and their first.

    What lies in the files is not looked at.
    """
    paths = [Path(word) for word in (one, other)]
    if one and other and all(path.exists() for path in paths):
        a, b = (path.resolve() for path in paths)
        return a.is_relative_to(b) or b.is_relative_to(a)
    words = [
        word.partition(":")[0] if word.startswith("storybook:") else word for word in (one, other)
    ]
    return words[0] == words[1] and not any(path.exists() for path in paths)


def _show(told: dict[str, Any], grades: "DocumentGrades") -> None:
    seconds, tokens = told["seconds"], told["tokens"]
    lines = {
        "model": f"{told['source']}: {told['parameters']:,} parameters, {told['tokenizer']}",
        "text": f"{told['data']}: {told['documents']:,} documents, {told['bytes']:,} bytes",
        "bits/byte": f"{told['bits_per_byte']:.4f}",
        "loss": f"{told['loss']:.4f} nats/token",
        "accuracy": f"{told['accuracy']:.4f}",
        "tokens": f"{tokens:,}, in windows of up to {told['n_ctx']:,}, BOS included",
        "seconds": f"{seconds:,.1f} ({tokens / seconds:,.0f} tokens/s on {told['device']})",
    }
    for name, line in lines.items():
        print(f"{name:<9}  {line}")
    for note in told["notes"]:
        print(f"{'':<9}  {note}")
    console = Console(highlight=False)
    by_position = _table("position", "tokens", "loss")
    for position in _few_positions(grades.count_by_position.tolist()):
        count, loss = grades.count_by_position, told["loss_by_position"]
        by_position.add_row(
            f"{position:,}", f"{int(count[position - 1]):,}", f"{loss[position - 1]:.3f}"
        )
    hardest = _table("hardest token", "times", "loss", "share of loss")
    for token in told["hardest_tokens"]:
        hardest.add_row(
            Text(repr(token["token"])),
            f"{token['times']:,}",
            f"{token['loss']:.3f}",
            f"{token['share_of_loss']:.1%}",
        )
    for table in (by_position, hardest):
        print()
        console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number or column == "position" else "left")
    return table


def _few_positions(counts: Sequence[int]) -> list[int]:
    """Positions 1, 2, 4, 8, ... and the last, of those that a token stood at."""
    last = max(position for position, count in enumerate(counts, 1) if count)
    powers = (1 << power for power in range(last.bit_length()))
    return sorted({*powers, last})
