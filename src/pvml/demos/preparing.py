"""What the demo trains on and for how long: any text, however small, cut to a few minutes' work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from statistics import median

import torch as t

from pvml.data.cutting import cut_text
from pvml.data.rows import Rows, pack
from pvml.data.sources import Corpus, open_corpus
from pvml.data.split import split_documents
from pvml.data.stream import token_stream
from pvml.data.tokenizer import Tokenizer
from pvml.demos.args import DemoArgs
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.training.args import TrainingArgs
from pvml.training.step import TrainingStep

FEWEST_CHARACTERS = 1_500
"""Below this a held-out part of a few sentences is left, and nothing can be said about it."""
FEWEST_DOCUMENTS = 20
"""Fewer are cut into pieces, so that some can be held out."""
TOKENIZER_DOCUMENTS = 5_000
"""Documents that the vocabulary is learnt from: more would change few entries and take longer."""
_EPOCHS, _MOST_EPOCHS = 5, 40
_SHORTEST_ROW = 16


@dataclass(frozen=True)
class Material:
    """A corpus made ready."""

    corpus: Corpus
    tokenizer: Tokenizer
    train: list[str]
    held_out: list[str]
    rows: Rows
    """Of the training documents."""
    n_held_out_tokens: int
    notes: list[str]
    """What was done to the text, as sentences."""


def prepare(args: DemoArgs) -> Material:
    """The corpus read, split, its tokenizer trained, and cut into rows.

    Raises: PvmlError if it cannot be read, or is too small; it says how much is needed.
    """
    corpus = open_corpus(args.data, args.limit)
    read = list(corpus)
    documents, notes = _enough_documents(corpus.name, read), list(corpus.notes)
    if len(documents) > len(read):
        notes.append(f"Cut into {len(documents):,} pieces, so that some can be held out.")
    n_held_out = max(1, min(args.n_held_out, len(documents) // 10))
    train, held_out = split_documents(documents, n_held_out, args.seed)
    tokenizer = Tokenizer.train(train[:TOKENIZER_DOCUMENTS], args.d_vocab)
    n_ctx, n_tokens = args.n_ctx, len(token_stream(tokenizer, held_out))
    while n_tokens < n_ctx - 1 and n_ctx // 2 >= _SHORTEST_ROW:
        n_ctx //= 2
    if n_ctx < args.n_ctx:
        notes.append(f"Rows have {n_ctx} tokens instead of {args.n_ctx}: there is little text.")
    rows = pack(tokenizer, train, n_ctx)
    return Material(corpus, tokenizer, train, held_out, rows, n_tokens, notes)


def _enough_documents(name: str, documents: list[str]) -> list[str]:
    n_characters = sum(map(len, documents))
    if n_characters < FEWEST_CHARACTERS:
        raise PvmlError(
            f"{name} has {n_characters:,} characters: the demo needs at least "
            f"{FEWEST_CHARACTERS:,} to train on most and hold out the rest. Give more text"
        )
    if len(documents) >= FEWEST_DOCUMENTS:
        return documents
    size = n_characters // (2 * FEWEST_DOCUMENTS)
    pieces = [piece for document in documents for piece in cut_text(document, size)]
    return [piece for piece in pieces if piece.strip()]


def training_args(args: DemoArgs, rows: Rows, n_steps: int) -> TrainingArgs:
    """The recipe for about so many steps: a few epochs, or small batches where rows are few."""
    batch_size = max(1, min(args.batch_size, len(rows) // 8))
    steps_per_epoch = min(max(1, n_steps // _EPOCHS), ceil(len(rows) / batch_size))
    return TrainingArgs(
        batch_size=batch_size,
        epochs=max(1, min(_MOST_EPOCHS, n_steps // steps_per_epoch)),
        max_steps_per_epoch=steps_per_epoch,
        lr=args.lr,
        position_waves=None if args.positions == "none" else 1.0,
        seed=args.seed,
        split_seed=args.seed,
        device=args.device,
        sample_prompt=None,
    )


@dataclass(frozen=True)
class Pace:
    """How fast this machine trains, at this moment."""

    threads: int
    """CPU threads that are fastest: on a busy machine, many that wait for one another are not."""
    steps: int
    """Training steps that fit into the time, grading included; at least 1."""


def pace(model: Transformer, rows: Rows, args: TrainingArgs, seconds: float, n_graded: int) -> Pace:
    """The threads to train with and how many steps fit into so many seconds, by timing a few.

    n_graded: held-out tokens, which every epoch's end reads twice, at a third of a step's cost.
    The timed steps are taken by a copy: the model and torch's random state stay as they are.
    """
    trial = deepcopy(model)
    learning = TrainingStep(trial, args, n_steps=1)
    tokens = rows.batch([i % len(rows) for i in range(args.batch_size)]).to(model.device)

    def step_time(threads: int) -> float:
        with using_threads(threads):
            started = time.perf_counter()
            learning.take(0, tokens)
            return time.perf_counter() - started

    choices = sorted({1, t.get_num_threads()}) if model.device.type == "cpu" else [1]
    times: dict[int, list[float]] = {threads: [] for threads in choices}
    for _ in range(6):  # in turn, so that a busy moment is nobody's alone
        for threads in choices:
            times[threads].append(step_time(threads))
    usual = {threads: median(taken[1:]) for threads, taken in times.items()}  # the first warms up
    best = min(choices, key=lambda threads: usual[threads])
    grading = args.epochs * 2 / 3 * n_graded / tokens.numel()
    return Pace(best, max(1, int(seconds / usual[best] - grading)))


@contextmanager
def using_threads(n: int) -> Iterator[None]:
    """Within it, torch computes with so many CPU threads."""
    before = t.get_num_threads()
    t.set_num_threads(n)
    try:
        yield
    finally:
        t.set_num_threads(before)
