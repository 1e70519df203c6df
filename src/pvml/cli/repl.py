"""The REPL's two ends: where lines come from, and the model that answers.

What a line means is in `pvml.sampling.repl`.
"""

import io
import os
import stat
import sys
from collections.abc import Callable
from functools import partial

from pvml.errors import PvmlError
from pvml.sampling.repl import COMMANDS, PROMPT, START, Repl, Voice
from pvml.sampling.settings import Settings, counted

Read = Callable[[], str]
"""The next line, without its end. Raises: EOFError behind the last one."""


def lines_may_come() -> bool:
    """Whether standard input is somebody typing who sees the answers, a pipe, or a file."""
    if at_a_terminal():
        return True
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or no file
        return False
    # a device that is no terminal, such as /dev/null, has nothing to say
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def at_a_terminal() -> bool:
    """Whether lines are typed, and answers seen."""
    streams = (sys.stdin, sys.stdout)
    return all(stream is not None and stream.isatty() for stream in streams)


def converse(model: str, start: Settings = START, device: str | None = None) -> None:
    """Answer lines until they end, or until `:q`. Ctrl-C stops an answer, and nothing else.

    Raises: PvmlError for a first model that cannot be opened; KeyboardInterrupt while it waits for
    a line that nobody types.
    """
    repl = Repl(lambda word: _voice(word, device), model, start)
    print(repl.greeting(), end="", flush=True)
    typed = at_a_terminal()
    if isinstance(sys.stdin, io.TextIOWrapper):
        # a line in another encoding is refused as a prompt, and the next one read
        sys.stdin.reconfigure(errors="surrogateescape")
    read = _typed_lines() if typed else _piped_line
    while not repl.ended:
        answering = False
        try:
            line = read()
            answering = True
            _answer(repl, line)
        except EOFError:
            return
        except KeyboardInterrupt:
            if not (typed or answering):
                raise
            told = "\n  stopped by Ctrl-C\n" if answering else f"  {_HOW_TO_QUIT}"
            print(told, flush=True)


_HOW_TO_QUIT = "Ctrl-D or :q quits"


def _answer(repl: Repl, line: str) -> None:
    from pvml.cli.main import TOO_LARGE, out_of_memory

    try:
        for piece in repl.answer(line):
            print(piece, end="", flush=True)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        print(f"\n  {TOO_LARGE}\n", flush=True)


def _voice(word: str, device: str | None) -> Voice:
    from pvml.cli.writing import write
    from pvml.loading import load
    from pvml.sampling.sampler import Sampler

    try:
        sampler = Sampler(*load(word, device=device))
    except OSError as error:
        raise PvmlError(f"{word}: {error}") from error
    cfg, size = sampler.model.cfg, sum(x.numel() for x in sampler.model.parameters())
    sizes = counted(size, "parameter"), counted(cfg.n_layers, "layer"), f"d_model {cfg.d_model}"
    return Voice(word, ", ".join(sizes), partial(write, sampler))


def _typed_lines() -> Read:
    """Lines that can be edited and called back while they are typed."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter

    words = WordCompleter([f":{name}" for name in COMMANDS], sentence=True)
    session: PromptSession[str] = PromptSession(completer=words, complete_while_typing=False)
    return lambda: session.prompt(PROMPT)


def _piped_line() -> str:
    """A line of a pipe or file, shown behind the prompt as if it were typed there."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    line = line.rstrip("\r\n")
    print(f"{PROMPT}{line}", flush=True)
    return line
