"""A corpus split and tokenised: once and for all into a folder, or into memory.

The folder is `ROOT/.tokens/KEY`, with a key of everything that decides what is in it. As long as
nothing of that changes, it is used without reading the corpus.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path

from filelock import FileLock, Timeout

from pvml.atomic import new_folder
from pvml.data.encoding import Block
from pvml.data.shards import VERSION, Shards, open_shards, write_shards
from pvml.data.sources import Corpus, Fingerprint, fingerprint_of, open_corpus
from pvml.data.split import Survey, survey, survey_beside
from pvml.data.stream import TokenStream, token_stream
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError, RunDirError

FOLDER = ".tokens"
VOCABULARY_BYTES = 128 << 20
"""Text that a vocabulary is learnt from: counting words takes memory for each that is new."""
HELD_OUT_BYTES = 32 << 20
"""Text that a held-out corpus is read up to: it stays in memory, and is graded many times."""
_WORTH_PROCESSES = 64 << 20
"""Bytes of text: below, this process is done before others have started."""
_SECONDS_BETWEEN_REPORTS = 10.0

Say = Callable[[str], None]
"""Is told, in sentences, what takes long or was found damaged."""
Check = Callable[[Tokenizer, list[str]], object]
"""Looks at the tokenizer and the held-out texts before the long work, and raises to stop it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides how a corpus is split and tokenised."""

    data: str
    """The corpus, as `open_corpus` takes it."""
    limit: int | None = None
    """Documents to stop reading after."""
    tokenizer: str = "gpt2"
    """gpt2, or bpe:N to train N entries on the training documents."""
    n_held_out: int | None = None
    """Documents to hold out, as `split_documents` takes it."""
    split_seed: int = 0
    """Chooses them."""
    held_out: str | None = None
    """A corpus that is held out instead: then all of `data` is trained on."""

    def __post_init__(self) -> None:
        if self.held_out is not None and self.n_held_out is not None:
            raise PvmlError(
                f"held out is either {self.held_out}, whole, or {self.n_held_out:,} documents of "
                f"{self.data}: give one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """A corpus, ready to be cut into rows."""

    name: str
    """The corpus's, for run names and headings."""
    fingerprint: str
    """64 hex digits of all documents and their order."""
    documents: int
    """All of them, held-out ones included."""
    n_bytes: int
    """Size of all texts (UTF-8 bytes)."""
    notes: list[str]
    """What was skipped, cut or left out, as sentences."""
    tokenizer: Tokenizer
    stream: TokenStream
    """The training documents."""
    held_out: list[str]
    """The texts of the others, or those of the corpus that was held out instead."""
    held_out_name: str | None = None
    """That corpus's name; None where the documents were split."""
    held_out_fingerprint: str | None = None
    """64 hex digits of its texts and their order."""
    key: str | None = None
    """The folder's name; None in memory."""


def tokenise(
    recipe: Recipe,
    root: Path,
    tokenizer: Tokenizer | None = None,
    *,
    say: Say = print,
    check: Check | None = None,
    workers: int | None = None,
) -> Tokenised:
    """What the recipe makes, from its folder under `root`, which is made first where it is not.

    Two processes may ask for the same: one makes it, the other waits. A damaged folder is made
    anew. tokenizer: used instead of the recipe's, by a run that has its own. workers: processes
    that tokenise; unset: one for each core, for a large corpus. Their number changes no id. With
    more than 1, the program's main module must be importable, as `multiprocessing` asks.

    Raises: PvmlError for a corpus that cannot be read, split or tokenised, or that changes while
    it is read; RunDirError if the disk refuses.
    """
    source = _open_source(recipe)
    for key in _keys(recipe, source, tokenizer):
        found = _open(root, key, tokenizer)
        if found:
            return found
    made = _split(source, recipe, tokenizer, check)
    folder = root / FOLDER / key
    with _alone(folder, say) as locked:
        if locked:
            for left in folder.parent.glob(f".{key}.part-*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
        found = _open(root, key, tokenizer, say)  # by another process, meanwhile
        if not found:
            shutil.rmtree(folder, ignore_errors=True)
            workers = workers or (_cores() if made.survey.n_bytes >= _WORTH_PROCESSES else 1)
            try:
                _write(folder, made, workers, say)
            except RunDirError:
                found = _open(root, key, tokenizer)  # without a lock another may have been faster
                if not found:
                    raise
    return found or _tokenised(open_shards(folder, key), key)


def find_tokenised(
    recipe: Recipe, root: Path, tokenizer: Tokenizer | None = None
) -> Tokenised | None:
    """What `tokenise` gives if it need not be made; None otherwise. Nothing is written.

    Raises: PvmlError for a word or path that is no corpus.
    """
    source = _open_source(recipe)
    found = (_open(root, key, tokenizer) for key in _keys(recipe, source, tokenizer))
    return next(filter(None, found), None)


def tokenise_in_memory(recipe: Recipe, tokenizer: Tokenizer | None = None) -> Tokenised:
    """What the recipe makes, with all ids in memory; nothing is written.

    Raises: PvmlError as `tokenise`.
    """
    made = _split(_open_source(recipe), recipe, tokenizer, None)
    stream = token_stream(made.tokenizer, made.training_documents())
    return _tokenised(Shards(stream, made.tokenizer, made.held_out, made.facts()))


def _write(folder: Path, made: "_Split", workers: int, say: Say) -> None:
    blocks = made.tokenizer.blocks(made.training_documents(), workers=workers)
    with new_folder(folder) as partial:
        write_shards(
            partial,
            _reported(blocks, made.corpus.name, say),
            key=folder.name,
            tokenizer=made.tokenizer,
            held_out=made.held_out,
            facts=made.facts(),
        )


@dataclass(frozen=True)
class _Source:
    """What a recipe reads, opened."""

    corpus: Corpus
    held_out: Corpus | None


def _open_source(recipe: Recipe) -> _Source:
    held_out = None if recipe.held_out is None else open_corpus(recipe.held_out)
    return _Source(open_corpus(recipe.data, recipe.limit), held_out)


def _keys(recipe: Recipe, source: _Source, tokenizer: Tokenizer | None) -> list[str]:
    """The names of the folders to look for; the last is the one to make."""
    decides = {
        **asdict(recipe),
        "data": source.corpus.identity,
        "vocabulary_bytes": VOCABULARY_BYTES,
        "version": VERSION,
    }
    if source.held_out is None:
        del decides["held_out"]  # as before there was any, so that folders from then are found
    else:
        del decides["split_seed"]
        decides |= {"held_out": source.held_out.identity, "held_out_bytes": HELD_OUT_BYTES}
    vocabularies = [recipe.tokenizer]
    if tokenizer is not None:
        vocabularies.append(_digest(tokenizer.to_json()))
    return [_digest(json.dumps({**decides, "tokenizer": word})) for word in vocabularies]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class _Split:
    """A corpus that was read once, with what is known from that."""

    corpus: Corpus
    survey: Survey
    tokenizer: Tokenizer
    held_out: list[str]
    held_out_name: str | None
    notes: list[str]

    def training_documents(self) -> Iterator[str]:
        """The others, read anew.

        Raises: PvmlError if they are not the same as the first time.
        """
        fingerprint = Fingerprint()
        held_out = self.survey.held_out
        for number, document in enumerate(self.corpus):
            fingerprint.add(document.encode())
            if number < len(held_out) and not held_out[number]:
                yield document
        if fingerprint.hexdigest() != self.survey.fingerprint:
            raise PvmlError(
                f"{self.corpus.name} changed while it was read: start again when it is at rest"
            )

    def facts(self) -> dict[str, object]:
        facts = {
            "name": self.corpus.name,
            "fingerprint": self.survey.fingerprint,
            "documents": len(self.survey.held_out),
            "n_bytes": self.survey.n_bytes,
            "notes": self.notes,
        }
        if self.held_out_name is not None:
            facts["held_out_name"] = self.held_out_name
            facts["held_out_fingerprint"] = fingerprint_of(self.held_out)
        return facts


def _split(
    source: _Source, recipe: Recipe, tokenizer: Tokenizer | None, check: Check | None
) -> _Split:
    corpus, beside = source.corpus, source.held_out
    held_out: list[str] | None = None
    notes: list[str] = []
    if beside is None:
        found = survey(corpus, recipe.n_held_out, recipe.split_seed)
    else:
        held_out, notes = _read_held_out(beside)
        found, common = survey_beside(corpus, held_out)
        if common:
            notes.append(
                f"The training text holds {common:,} of the {len(held_out):,} held-out documents "
                f"too, word for word: grades on what was trained on flatter."
            )
    notes = [*corpus.notes, *notes]
    if tokenizer is None:
        training = _Limited(compress(corpus, ~found.held_out), VOCABULARY_BYTES)
        tokenizer = Tokenizer.from_spec(recipe.tokenizer, training)
        if training.reached:
            notes.append(
                f"The vocabulary was learnt from the first {VOCABULARY_BYTES >> 20} MiB of the "
                f"training documents."
            )
    if held_out is None:
        held_out = list(compress(corpus, found.held_out))
    if check is not None:
        check(tokenizer, held_out)
    name = None if beside is None else beside.name
    return _Split(corpus, found, tokenizer, held_out, name, notes)


def _read_held_out(corpus: Corpus) -> tuple[list[str], list[str]]:
    """The first documents of a held-out corpus, as many as are graded, and what to tell of them."""
    documents: list[str] = []
    n_bytes = 0
    for document in corpus:
        if n_bytes >= HELD_OUT_BYTES:
            break
        documents.append(document)
        n_bytes += len(document.encode())
    else:
        return documents, [f"Held out: {note}" for note in corpus.notes]
    return documents, [
        f"Of the held-out text only the first {len(documents):,} documents are graded, "
        f"{HELD_OUT_BYTES >> 20} MiB: they stay in memory. Give a smaller file for other ones."
    ]


class _Limited:
    """The first texts, up to so many bytes in all."""

    def __init__(self, texts: Iterable[str], n_bytes: int):
        self._texts = texts
        self._room = n_bytes
        self.reached = False

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self._room -= len(text.encode())
            if self._room < 0:
                self.reached = True
                return
            yield text


def _open(
    root: Path, key: str, tokenizer: Tokenizer | None, say: Say | None = None
) -> Tokenised | None:
    """What is in a folder, if it is whole and made by this tokenizer."""
    folder = root / FOLDER / key
    if not folder.exists():
        return None
    try:
        shards = open_shards(folder, key)
    except PvmlError as error:
        if say:
            say(f"{folder} is made anew: {error}.")
        return None
    if tokenizer is not None and tokenizer.to_json() != shards.tokenizer.to_json():
        return None
    return _tokenised(shards, key)


def _tokenised(shards: Shards, key: str | None = None) -> Tokenised:
    return Tokenised(
        **shards.facts,
        tokenizer=shards.tokenizer,
        stream=shards.stream,
        held_out=shards.held_out,
        key=key,
    )


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[bool]:
    """Within it, no other process makes the same folder; False where the disk knows no locks."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say("Another process tokenises the same corpus; this one waits for it.")
            lock.acquire()
        except NotImplementedError:
            pass
    except OSError as error:
        raise RunDirError(
            f"{folder.parent}, where tokens are kept, could not be written "
            f"({error.strerror or error}): give a --run-dir that can be written"
        ) from error
    try:
        yield lock.is_locked
    finally:
        lock.release()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reported(blocks: Iterable[Block], name: str, say: Say) -> Iterator[Block]:
    """The blocks; every ten seconds it is said how far they are."""
    started = last = time.monotonic()
    documents = n_bytes = 0
    for block in blocks:
        yield block
        documents += len(block.lengths)
        n_bytes += int(block.n_bytes.sum())
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_REPORTS:
            last = now
            rate = n_bytes / 1e6 / (now - started)
            say(f"tokenising {name}: {documents:,} documents, {rate:,.1f} MB/s")
