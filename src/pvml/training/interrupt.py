"""Ctrl-C that is heard at once and acted on when the work is in a state worth saving."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
