"""`pvml COMMAND ...`: which commands there are, and how each way of ending is told.

Exit codes: 0 done, 1 a check failed, 2 bad use or bad input, 130 Ctrl-C. Nothing here imports
torch, and a command's own file is imported only when it is asked for.
"""

import difflib
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from pvml.errors import CheckFailed, PvmlError

COMMANDS = {
    "demo": ("pvml.cli.demo", "train a small model here and now, prove it, take it apart"),
    "train": ("pvml.cli.train", "train a model on stories, files or TinyStories"),
    "sample": ("pvml.cli.sample", "let a model continue a text"),
    "compare": ("pvml.cli.compare", "what models write from the same prompts, side by side"),
    "trace": ("pvml.cli.trace", "print every named tensor of a pass, with shape and meaning"),
    "verify": ("pvml.cli.verify", "prove a model right tensor by tensor, or find what is wrong"),
    "import": ("pvml.cli.import_model", "make a run of a model from elsewhere, tensor by tensor"),
    "models": ("pvml.cli.models", "list the trained models that come with the package"),
    "data": ("pvml.cli.data", "show what a model would see of a corpus, with statistics"),
    "runs": ("pvml.cli.runs", "list runs, compare their figures, show which settings differ"),
    "evaluate": ("pvml.cli.evaluate", "grade a model on a text: bits per byte, loss, accuracy"),
    "plot": ("pvml.cli.plot", "draw how runs went: loss by step, time, tokens, FLOPs, ..."),
    "patch": ("pvml.cli.patch", "move activations between two prompts' passes"),
    "attribute": ("pvml.cli.attribute", "what each part of a model adds to a prediction"),
    "lens": ("pvml.cli.lens", "what each layer would predict, were it the last"),
    "circuits": ("pvml.cli.circuits", "what heads do: paths, copying, composition, claims"),
    "export": ("pvml.cli.export", "write a model for another library, which must compute the same"),
    "profile": ("pvml.cli.profile", "show where a training step's time goes"),
}
"""Each command's file, which has a `main(arguments) -> exit code`, and its line of help."""

TOO_LARGE = (
    "this does not fit into the memory: choose a smaller model or batch, less data, or a shorter "
    "text"
)
_CLOSED_PIPE = 141
"""What a shell reports for a program that a closed pipe ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, once the command line has been done or its failure told on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return ended("pvml", lambda: _run(words))


def ended(program: str, run: Callable[[], int]) -> int:
    """The exit code of what is run, or of its failure, which is told under the program's name."""
    _never_without_streams()
    _never_fail_on_a_character()
    try:
        code = _code_of(run)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the interpreter flushes once more at its end, and would complain then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except KeyboardInterrupt as stop:
        return _tell(program, str(stop) or "stopped by Ctrl-C", 130)
    except CheckFailed as failure:
        return _tell(program, str(failure), 1)
    except PvmlError as error:
        return _tell(program, str(error), 2)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return _tell(program, TOO_LARGE, 2)
    except OSError as error:
        named = error.filename is not None and error.strerror
        return _tell(program, f"{error.filename}: {error.strerror}" if named else str(error), 2)


def _code_of(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as stop:  # the flags' parser ends so, after --help too
        if isinstance(stop.__context__, BrokenPipeError):  # and the progress bar's library
            raise stop.__context__ from None
        return stop.code if isinstance(stop.code, int) else 0


def _run(arguments: list[str]) -> int:
    name, *rest = arguments or [""]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        import pvml

        print(f"pvml {pvml.__version__}")
        return 0
    if not name:
        print(usage(), file=sys.stderr)
        return 2
    if name not in COMMANDS:
        raise PvmlError(_unknown(name))
    return int(import_module(COMMANDS[name][0]).main(rest))


def usage() -> str:
    """The text of `pvml --help`."""
    lines = [f"  {name:<10}{about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: pvml COMMAND [...]",
            "",
            "A transformer to read, trust, train, sample and take apart.",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            "  -h, --help     this text; after a command, its arguments",
            "  -V, --version  which version this is",
        ]
    )


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"there is no command {name!r}: {meant}"


def out_of_memory(error: Exception) -> bool:
    """Whether Python, a device or the CPU's allocator (which has no class of its own) says so."""
    said = (type(error).__name__, str(error))
    return any(
        words in text
        for text in said
        for words in ("MemoryError", "can't allocate memory", "Storage size calculation overflowed")
    )


def _tell(program: str, message: str, code: int) -> int:
    print(f"{program}: {''.join(map(_printable, message))}", file=sys.stderr)
    return code


def _printable(sign: str) -> str:
    """The sign, or an escape for what a file's names could tell the terminal to do."""
    return sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode()


def _never_without_streams() -> None:
    """A shell's `>&-` leaves none, and the next file opened would get its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # open until the end


def _never_fail_on_a_character() -> None:
    """A story may hold a character that this terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
