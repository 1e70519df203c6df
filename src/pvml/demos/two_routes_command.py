"""`python -m pvml.circuits.two_routes` from a terminal: the worked example, or help about it."""

import argparse
from collections.abc import Sequence

from pvml.demos.two_routes import main


def command(arguments: Sequence[str] | None = None) -> None:
    """Print the example, or what it is if asked for help.

    Raises: SystemExit for help or any other argument: it takes none.
    """
    argparse.ArgumentParser(
        prog="python -m pvml.circuits.two_routes",
        description="Print the worked example, from a model's weights to its prediction. It takes "
        "no arguments and writes no file.",
    ).parse_args(arguments)
    main()
