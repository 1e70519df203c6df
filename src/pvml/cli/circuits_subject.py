"""What a command of `pvml circuits` is about: a model, and its heads, tokens and texts in words."""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pvml.cli.circuits_output import told
from pvml.errors import PvmlError

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from pvml.circuits.claims.inputs import Opened
    from pvml.circuits.held import Head
    from pvml.circuits.weights.maps import Circuit
    from pvml.circuits.weights.scales import TypicalScale
    from pvml.data.tokenizer import Tokenizer
    from pvml.modules.transformer import Transformer

Words = tuple[tuple[str, ...], ...]
"""What a flag was given that takes several words, and can be given again."""
Names = Annotated[Words, tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME [NAME ...]")]
HeadWords = Annotated[Words, tyro.conf.UseAppendAction, tyro.conf.arg(metavar="HEAD [HEAD ...]")]
Tokens = Annotated[Words, tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TOKEN [TOKEN ...]")]

_ROWS = 16
"""Of the built-in text, for what is typical."""
_HEAD = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """What every command takes."""

    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class RowsFlags(CommonFlags):
    """What commands take that read text in rows."""

    data: str | None = None
    """The text: a file or folder, storybook:N, tinystories:validation (from the hub), ... Unset:
    the built-in stories, in rows of at most 128 tokens."""
    limit: int | None = 400
    """Read at most so many documents of --data."""
    n_ctx: int | None = None
    """Length of a row of --data (tokens, BOS included). Unset: the longest that the model reads."""
    seed: int = 0
    """Draws random sequences, random heads and whatever else is drawn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsRead:
    """Rows of tokens, each with BOS first, and what they are of."""

    tokens: "Int[Tensor, 'batch posn']"
    what: str
    """In words."""
    natural: bool
    """Whether they are text, not random tokens."""
    notes: tuple[str, ...] = ()
    """What the reading skipped or cut, as sentences."""

    def told(self) -> dict[str, Any]:
        """For JSON."""
        n, posn = self.tokens.shape
        return {"what": self.what, "rows": n, "tokens_in_a_row": posn, "notes": list(self.notes)}

    def __str__(self) -> str:
        n, posn = self.tokens.shape
        said = f"text   {n:,} rows of {posn:,} tokens (BOS included): {self.what}"
        return "\n".join([said, *(f"       {note}" for note in self.notes)])


class Subject:
    """A model that was loaded by its word, with its tokenizer."""

    def __init__(self, word: str, device: str | None):
        """Raises: PvmlError as `pvml.loading.load`, or for a weight that is no finite number."""
        from pvml.circuits.held import require_finite
        from pvml.loading import load

        self.word = word
        self.loaded = load(word, device=device)
        self.model: Transformer = self.loaded.model
        require_finite(self.model)
        self.tokenizer: Tokenizer = self.loaded.tokenizer

    @property
    def title(self) -> str:
        """The model in a line: where it is from, and its shape."""
        cfg = self.model.cfg
        kind = "attention only" if cfg.attn_only else "with MLPs"
        norms = "no LayerNorm" if cfg.normalization == "none" else "LayerNorm"
        layers = f"{cfg.n_layers} layer{'' if cfg.n_layers == 1 else 's'} of {cfg.n_heads} heads"
        from pvml.processing.changes import described

        lines = [
            f"model  {self.loaded.name}: {self.loaded.source}",
            f"       {layers}, {kind}, positions {cfg.positions}, {norms}",
        ]
        processed = described(self.model.processing)
        return "\n".join([*lines, told(f"       {processed}")] if processed else lines)

    def told(self, command: str) -> dict[str, Any]:
        """For JSON: which command this is, and of which model."""
        return {
            "command": command,
            "model": self.loaded.name,
            "source": self.loaded.source,
            "config": self.model.cfg.to_dict(),
            "processing": list(self.model.processing),
        }

    @property
    def opened(self) -> "Opened":
        """The model as claims are about it, by the word that loads it again."""
        from pvml.circuits.claims.inputs import Opened

        return Opened(self.model, self.tokenizer, self.word)

    @cached_property
    def texts(self) -> list[str]:
        """What each id of the model's vocabulary stands for."""
        known = self.tokenizer.to_str_tokens(range(self.tokenizer.d_vocab))
        # models may have more rows than there are tokens, for their size alone
        return known + [f"<{i}>" for i in range(len(known), self.model.cfg.d_vocab)]

    def require_layers(self, what: str, least: int = 1) -> None:
        """Nothing, if the model has so many layers.

        Raises: PvmlError that says what else can be asked.
        """
        n = self.model.cfg.n_layers
        if n < least:
            raise PvmlError(
                f"{what} needs a model of at least {least} layer{'s' * (least > 1)}, and "
                f"{self.loaded.name} has {n}"
                + (": `bigram` and `paths` tell all that it does" if n == 0 else "")
            )

    def head(self, word: str) -> "Head":
        """The head that is written layer.head, as 1.4.

        Raises: PvmlError for what is written otherwise, or is not there.
        """
        from pvml.circuits.held import require_head

        found = _HEAD.fullmatch(word.strip())
        if not found:
            raise PvmlError(f"a head is written layer.head, such as 1.4, got {word!r}")
        self.require_layers("a head")
        return require_head(self.model, (int(found[1]), int(found[2])))

    def heads(self, words: Words) -> "list[Head]":
        """The heads of a flag.

        Raises: PvmlError as `head`.
        """
        return [self.head(word) for word in all_of(words)]

    def heads_in_a_row(self, word: str) -> "list[Head]":
        """Heads that read each other, the lowest first, as 0.3>1.4.

        Raises: PvmlError as `head`.
        """
        return [self.head(part) for part in re.split("[>,]", word)]

    def token(self, text: str, flag: str) -> int:
        """The id of a text that is one token; `<|endoftext|>` is the special one.

        Raises: PvmlError that shows the pieces and says what can be done.
        """
        ids = self._ids(text)
        if len(ids) == 1:
            return ids[0]
        if not ids:
            raise PvmlError(f"{flag} needs a token, and got an empty text")
        pieces = ", ".join(map(repr, self.tokenizer.to_str_tokens(ids)))
        other = text.lstrip(" ") if text.startswith(" ") else f" {text}"
        hint = ": give one of them"
        if other and len(self._ids(other)) == 1:
            hint = f": {other!r} is one"
        raise PvmlError(f"{flag} {text!r} is {len(ids)} tokens, {pieces}{hint}")

    def tokens_of(self, words: Words, flag: str) -> list[int]:
        """The ids of a flag's tokens, each once, in their order.

        Raises: PvmlError as `token`.
        """
        return list(dict.fromkeys(self.token(text, flag) for text in all_of(words)))

    def sequence(self, text: str, flag: str = "TEXT") -> "Int[Tensor, '1 posn']":
        """A text as tokens behind BOS. flag: what messages call it.

        Raises: PvmlError for an empty text, or one that the model cannot read at once.
        """
        tokens = self.tokenizer.to_tokens(text)
        n, n_ctx = tokens.shape[1], self.model.cfg.n_ctx
        if n < 2:
            raise PvmlError(f"{flag} is empty: give a text to read, such as 'Once upon a time'")
        if n > n_ctx:
            raise PvmlError(
                f"{flag} has {n:,} tokens, BOS included, and {self.loaded.name} reads at most "
                f"{n_ctx:,}: give a shorter one"
            )
        return tokens.to(self.model.device)

    def rows(self, flags: RowsFlags) -> RowsRead:
        """The rows that the flags ask for: of --data, or the built-in stories.

        Raises: PvmlError for a corpus that is none, is too short, or a row that is too long.
        """
        from pvml.circuits.claims.inputs import inputs_for
        from pvml.data.rows import pack
        from pvml.data.sources import open_corpus

        n_ctx = self.model.cfg.n_ctx
        if flags.data is None:
            if flags.n_ctx is not None:
                raise PvmlError("--n-ctx is the length of the rows of --data: give that too")
            inputs, tokens = inputs_for(self.opened, None, None, flags.seed)
            natural = inputs.made != "random"
            what = f"random tokens, since the vocabulary of {self.loaded.name} has no text"
            if natural:
                what = f"the built-in stories ({inputs.corpus}); --data takes another"
            return RowsRead(tokens=tokens, what=what, natural=natural)
        if flags.n_ctx is not None and not 2 <= flags.n_ctx <= n_ctx:
            raise PvmlError(
                f"--n-ctx must be 2 to {n_ctx:,} tokens for {self.loaded.name}, got {flags.n_ctx}"
            )
        corpus = open_corpus(flags.data, flags.limit)
        rows = pack(self.tokenizer, corpus, flags.n_ctx or n_ctx)
        return RowsRead(
            tokens=rows.batch(range(len(rows))),
            what=flags.data,
            natural=True,
            notes=tuple(corpus.notes),
        )

    def typical_scale(self, circuit: "Circuit") -> "TypicalScale | None":
        """What a circuit leaves out, on some of the built-in text; None where that is nothing."""
        from pvml.circuits.claims.inputs import inputs_for
        from pvml.circuits.weights.scales import typical_scale

        if not circuit.left_out:
            return None
        _, tokens = inputs_for(self.opened, None, None, 0)
        return typical_scale(self.model, circuit, tokens[:_ROWS])

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, allow_special=True)


def all_of(words: Words) -> list[str]:
    """All words of a flag, whichever of its occurrences they came with."""
    return list(chain.from_iterable(words))


def written(head: "Head") -> str:
    """A head as one writes it: 1.4."""
    return f"{head[0]}.{head[1]}"
