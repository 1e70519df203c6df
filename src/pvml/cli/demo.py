"""`pvml demo`: the whole job on a small model, in a few minutes."""

from collections.abc import Sequence

from pvml.cli.flags import parse
from pvml.demos.args import DemoArgs


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml demo` say; the exit code."""
    args = parse(DemoArgs, "demo", arguments)

    from pvml.demos.demo import run

    run(args)
    return 0
