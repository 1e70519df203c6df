"""`pvml data`: what a model would see of a corpus."""

from collections.abc import Sequence
from dataclasses import dataclass

from pvml.cli.flags import parse
from pvml.data.args import DataArgs


@dataclass(frozen=True, kw_only=True)
class DataFlags(DataArgs):
    """Read a corpus, cut it into rows and print what a model will see of it."""

    data: str = "storybook"
    """The corpus: storybook, storybook:N, tinystories (from the hub), or a file or folder."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml data` say; the exit code."""
    args = parse(DataFlags, "data", arguments)

    from pvml.data.tinystories import listing

    print("\n".join(listing(args)))
    return 0
