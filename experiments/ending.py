"""How a script ends: as `pvml` does, each failure told in a sentence, with the same exit codes."""

from collections.abc import Callable

from pvml.cli import main as pvml


def ended(script: str, run: Callable[[], int]) -> int:
    """The exit code of what is run, or of its failure, which is told under the script's name.

    A training that was stopped goes on with the script's own command.
    """

    def goes_on() -> int:
        try:
            return run()
        except KeyboardInterrupt as stop:
            if not str(stop):
                raise
            raise KeyboardInterrupt(f"{stop}; so does this command, if it is given again") from None

    return pvml.ended(script, goes_on)
