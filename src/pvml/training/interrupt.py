"""Ctrl-C that is heard at once and acted on when the work is in a state worth saving."""

import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TrainingStopped(KeyboardInterrupt):
    """Ctrl-C stopped the training, after it was saved. The message says how to go on."""


@contextmanager
def interruptible(say: Callable[[str], object]) -> Iterator[Callable[[], bool]]:
    """Within it Ctrl-C only makes the given call answer True; a second one interrupts at once.

    Signals reach the main thread alone: in another, the call always answers False.
    """
    asked = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say("Ctrl-C: finishing this step, then saving. Once more stops without saving.")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def command_to_go_on(run: Path) -> str:
    """The command that resumes a run, quoted for a shell; a link to a run is named as it is."""
    if run.name in ("", ".."):
        run = run.resolve()
    flags = {"--run-dir": str(run.parent), "--name": run.name}
    words = [
        word
        for flag, value in flags.items()
        # a value that begins with a dash would be read as another flag
        for word in ([f"{flag}={value}"] if value.startswith("-") else [flag, value])
    ]
    return shlex.join(["pvml", "train", "--resume", *words])
