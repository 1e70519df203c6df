"""What a claim is about and what it was made on: which weights, which rows of tokens, what numbers.

All of it can be stored, and asked for again: a model by its name and the hash of its weights, rows
by how they are made and the hash of what came out.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch as t
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.heads.random_heads import MOST_RANDOM, N_RANDOM
from pvml.circuits.weights import composition, copying
from pvml.config import LARGEST_SEED, Config
from pvml.data.rows import pack
from pvml.data.sources import open_corpus
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.loading import Loaded, load
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer

Made = Literal["random", "storybook", "given"]
"""Rows of random tokens, of the built-in stories, or somebody's own."""

N_ROWS, LONGEST = 128, 128
"""Rows that are made, and tokens in them where the model takes as many."""
STORIES = "storybook:400"
"""The stories that they are of."""
_GPT2_VOCAB, _GPT2_BOS = 50257, 50256


@dataclass(frozen=True, eq=False)
class Opened:
    """A model, with its tokenizer and its name where it has them."""

    model: Transformer
    tokenizer: Tokenizer | None
    name: str | None
    """What `pvml.load` takes, or at least what the model is called."""


Subject = Transformer | Loaded | Opened | str | os.PathLike[str]
"""What a claim can be about: a model, one that `pvml.load` gave, or what `pvml.load` takes."""


def opened(subject: Subject) -> Opened:
    """The model that is meant.

    Raises: PvmlError for what is no model; what `pvml.load` raises for a name.
    """
    if isinstance(subject, Opened):
        return subject
    if isinstance(subject, Transformer):
        return Opened(subject, None, None)
    if isinstance(subject, Loaded):
        return Opened(subject.model, subject.tokenizer, subject.name)
    if not isinstance(subject, str | Path):
        raise PvmlError(
            f"a model is a Transformer, what pvml.load gives, or a name or path that it takes; got "
            f"{type(subject).__name__}"
        )
    found = load(subject)
    return Opened(found.model, found.tokenizer, str(subject))


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """Which model a claim is about."""

    name: str | None
    """A run's path, or another name for `pvml.load`; None for a model that was given as such."""
    weights: str
    """64 hex digits of all tensors, their names, types and shapes."""
    config: Config

    @classmethod
    def of(cls, opened: Opened) -> "ModelIdentity":
        """The identity of a model as it is now."""
        return cls(name=opened.name, weights=hash_of_weights(opened.model), config=opened.model.cfg)

    def __str__(self) -> str:
        return f"{self.name or 'a model without a name'} (weights {self.weights[:12]})"


def hash_of_weights(model: Transformer) -> str:
    """64 hex digits of all tensors of a model, their names, types and shapes."""
    digest = hashlib.sha256()
    for name, x in sorted(model.state_dict().items()):
        digest.update(f"{name} {x.dtype} {tuple(x.shape)}\n".encode())
        digest.update(x.detach().cpu().contiguous().view(t.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class ClaimInputs:
    """The rows of tokens that a claim was made on, and how they are made again.

    Raises: PvmlError at construction for rows that are not made so, or for a seed that is none.
    """

    made: Made
    corpus: str | None
    """What `open_corpus` takes, if the rows are of a corpus."""
    fingerprint: str | None
    """64 hex digits of that corpus's documents."""
    bos: int
    """The id that each row begins with."""
    n_rows: int
    posn: int
    """Tokens in a row."""
    seed: int
    """Draws random tokens."""
    tokens: str
    """64 hex digits of all ids, row by row."""

    def __post_init__(self) -> None:
        _require_within("inputs.seed", self.seed, 0, LARGEST_SEED)
        if self.made != "given":
            _require_within("inputs.n_rows", self.n_rows, 1, N_ROWS)
            _require_within("inputs.posn", self.posn, 1, LONGEST)

    def rows(
        self, subject: Opened, given: Int[Tensor, "batch posn"] | None = None
    ) -> Int[Tensor, "batch posn"]:
        """The rows, made again or `given`.

        Raises: PvmlError where rows have to be given, or are not what they were.
        """
        if self.made == "given" and given is None:
            raise PvmlError(
                f"this claim was made on {self}, which are not stored: give the same rows as tokens"
            )
        if self.made != "given":
            given = _made(self.made, subject, self.bos, self.n_rows, self.posn, self.seed)
        assert given is not None
        self._require_origin(given)
        if hash_of_tokens(given) != self.tokens:
            raise PvmlError(
                f"these are not the rows that the claim was made on ({self}): the corpus, the "
                f"tokenizer or the rows given are others"
            )
        return given

    def _require_origin(self, rows: Int[Tensor, "batch posn"]) -> None:
        """Nothing, if what is said of the rows' origin is true of them.

        Raises: PvmlError that names what is not.
        """
        corpus = open_corpus(STORIES) if self.made == "storybook" else None
        true = {
            "corpus": STORIES if corpus else None,
            "fingerprint": corpus.fingerprint if corpus else None,
            "bos": int(rows[0, 0]),
            "n_rows": len(rows),
            "posn": rows.shape[1],
        }
        for name, value in true.items():
            if getattr(self, name) != value:
                raise PvmlError(
                    f"these are not the rows that the claim was made on ({self}): its {name} is "
                    f"{getattr(self, name)!r}, and theirs is {value!r}"
                )

    def __str__(self) -> str:
        what = {
            "random": f"random tokens (seed {self.seed})",
            "storybook": f"the built-in stories ({self.corpus})",
            "given": "tokens that were given",
        }[self.made]
        return f"{self.n_rows} rows of {self.posn} {what}, sha256 {self.tokens[:12]}"


def hash_of_tokens(tokens: Int[Tensor, "batch posn"]) -> str:
    """64 hex digits of all ids and the rows' length."""
    digest = hashlib.sha256(f"{tuple(tokens.shape)}\n".encode())
    digest.update(tokens.detach().cpu().long().contiguous().numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def inputs_for(
    subject: Opened, tokens: Int[Tensor, "batch posn"] | None, bos: int | None, seed: int
) -> tuple[ClaimInputs, Int[Tensor, "batch posn"]]:
    """What claims are made on, and the rows: those given, else stories, else random tokens.

    Stories where the model has a tokenizer of its vocabulary's size. bos: what random rows begin
    with; unset: the tokenizer's, or where there is none 50256 in GPT-2's vocabulary and otherwise
    0, which is what vocabularies that PvML trains have there.

    Raises: PvmlError for tokens or a bos that the model cannot read, or no rows.
    """
    cfg, corpus = subject.model.cfg, None
    made: Made
    if tokens is not None:
        check_tokens(tokens, cfg)
        if tokens.numel() == 0:
            raise PvmlError(f"claims need at least one row of tokens, got {tuple(tokens.shape)}")
        made, bos, rows = "given", int(tokens[0, 0]), tokens
    else:
        reads = subject.tokenizer is not None and subject.tokenizer.d_vocab == cfg.d_vocab
        made = "storybook" if reads else "random"
        if subject.tokenizer is not None and reads:
            bos = subject.tokenizer.bos_token_id
        elif bos is None:
            bos = _GPT2_BOS if cfg.d_vocab == _GPT2_VOCAB else 0
        rows = _made(made, subject, bos, N_ROWS, min(cfg.n_ctx, LONGEST), seed)
        corpus = open_corpus(STORIES) if reads else None
    return ClaimInputs(
        made=made,
        corpus=STORIES if corpus else None,
        fingerprint=corpus.fingerprint if corpus else None,
        bos=bos,
        n_rows=len(rows),
        posn=rows.shape[1],
        seed=seed,
        tokens=hash_of_tokens(rows),
    ), rows


def _made(
    made: Made, subject: Opened, bos: int, n_rows: int, posn: int, seed: int
) -> Int[Tensor, "batch posn"]:
    if made == "storybook":
        if subject.tokenizer is None:
            raise PvmlError(
                "the claim was made on stories, which need the model's tokenizer: give what "
                "pvml.load gives, or a name or path that it takes"
            )
        found = pack(subject.tokenizer, open_corpus(STORIES), posn)
        return found.batch(range(min(n_rows, len(found))))
    d_vocab = subject.model.cfg.d_vocab
    if not 0 <= bos < d_vocab or d_vocab < 2:
        raise PvmlError(
            f"rows of random tokens need another token than BOS, which is one of this vocabulary "
            f"of {d_vocab}; got bos {bos}"
        )
    drawn = t.randint(d_vocab - 1, (n_rows, posn), generator=t.Generator().manual_seed(seed))
    drawn += drawn >= bos
    drawn[:, 0] = bos
    return drawn


@dataclass(frozen=True, kw_only=True)
class ClaimSettings:
    """The numbers that decide what a search finds, its seed among them.

    Raises: PvmlError at construction for a seed that is none, or numbers beyond all reason.
    """

    seed: int = 0
    n_sequences: int = 64
    """Rows that heads are watched on, and random sequences that they are ablated on."""
    n_random: int = N_RANDOM
    """Random heads in the place of each that attends; 0 leaves them out."""
    n_copying: int = copying.N_NULL
    """Random heads for each layer that copy."""
    n_rotations: int = composition.N_NULL
    """Random rotations between the heads of each pair."""
    effects: bool = True
    """Whether it is measured what heads are worth: a pass for each, and for up to 40 others."""

    def __post_init__(self) -> None:
        _require_within("settings.seed", self.seed, 0, LARGEST_SEED)
        for name in ("n_sequences", "n_random", "n_copying", "n_rotations"):
            _require_within(f"settings.{name}", getattr(self, name), 0, MOST_RANDOM)


def _require_within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise PvmlError(f"{name} must be {least} to {most:,}, got {value}")
