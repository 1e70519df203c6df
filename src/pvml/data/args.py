"""What a look at a corpus can be told. Nothing here imports torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from pvml.errors import PvmlError

Packing = Literal["stream", "document"]
"""How rows are cut: one after the other, or each from a document's start."""


@dataclass(frozen=True, kw_only=True)
class DataArgs:
    """Read a corpus, cut it into rows and print what a model will see of it.

    Raises: PvmlError at construction for a value that cannot be used, naming field and value.
    """

    data: str = "tinystories"
    """The corpus: storybook, storybook:N, tinystories (from the hub), or a file or folder."""
    tokenizer: str = "gpt2"
    """The vocabulary: gpt2, or bpe:N to train N entries on the corpus."""
    n_ctx: int = 128
    """Length of a row (tokens, BOS included)."""
    packing: Packing = "stream"
    """Rows cut from one stream of text, or rows that each start at a document's start."""
    batch_size: int = 4
    """Rows in the batch that is shown."""
    n_held_out: int | None = None
    """Documents kept apart for testing. Unset: 1,000, or a tenth of them where that is fewer."""
    seed: int = 0
    """Chooses the held-out documents and the order of the rows."""
    limit: int | None = None
    """Read at most so many documents; all unless given."""

    def __post_init__(self) -> None:
        for name, least in (("n_ctx", 2), ("batch_size", 1), ("n_held_out", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise PvmlError(f"{name} must be at least {least}, got {value}")
        if self.packing not in get_args(Packing):
            raise PvmlError(
                f"packing must be one of {', '.join(get_args(Packing))}, got {self.packing!r}"
            )
        if self.batch_size > 1 << 20:
            raise PvmlError(f"batch_size must be at most {1 << 20}, got {self.batch_size}")
