"""`pvml data`: what a model would see of a corpus."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pvml.cli.flags import parse


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """Read a corpus, cut it into rows and print what a model will see of it."""

    # the fields of pvml.data.tinystories.DataArgs, whose file imports torch
    data: str = "tinystories"
    """The corpus: storybook, storybook:N, tinystories (from the hub), or a file or folder."""
    tokenizer: str = "gpt2"
    """The vocabulary: gpt2, or bpe:N to train N entries on the corpus."""
    n_ctx: int = 128
    """Length of a row (tokens, BOS included)."""
    batch_size: int = 4
    """Rows in the batch that is shown."""
    n_held_out: int = 1000
    """Documents kept apart for the test loader."""
    seed: int = 0
    """Chooses the held-out documents and the order of the rows."""
    limit: int | None = None
    """Read at most so many documents; all unless given."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml data` say; the exit code."""
    flags = parse(DataFlags, "data", arguments)

    from pvml.data.tinystories import DataArgs, listing

    print("\n".join(listing(DataArgs(**asdict(flags)))))
    return 0
