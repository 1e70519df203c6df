"""`pvml data`: what a model would see of a corpus."""

from collections.abc import Sequence

from pvml.cli.flags import parse
from pvml.data.args import DataArgs


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml data` say; the exit code."""
    args = parse(DataArgs, "data", arguments)

    from pvml.data.tinystories import listing

    print("\n".join(listing(args)))
    return 0
