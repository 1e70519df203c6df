"""What the reader sees while a model trains: a bar on a terminal, a line now and then elsewhere."""

import math
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


def worse_than_guessing(held_out_loss: float, d_vocab: int) -> str:
    """A sentence for the end of a run whose loss (nats) is above a blind guess's; else empty."""
    guess = math.log(d_vocab)
    if not held_out_loss > guess:
        return ""
    return (
        f"That is worse than a blind guess, ln({d_vocab:,}) = {guess:.3f} nats/token: the run "
        f"diverged, or hardly learnt. Try a lower --lr, or more steps."
    )


class TrainingProgress:
    """The steps' loss, tokens per second and time left. A context manager.

    A bar also shows the last grading's accuracy, named as what it is: it is of held-out text and
    of an earlier step. Lines leave it to the line that told it.
    """

    def __init__(self, n_steps: int, step: int, console: Console | None = None):
        self.console = console or Console()
        self.n_steps = n_steps
        self._first_step = step
        self._first_tokens: int | None = None
        self._started = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("step {task.completed:,}/{task.total:,}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("", total=n_steps, completed=step, told="")

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, step: int, loss: float, tokens: int, accuracy: float | None = None) -> None:
        """Show that this step is done.

        tokens: how many were read, by this and all earlier steps. accuracy: of the last grading,
        the share of held-out tokens that were right.
        """
        if self._first_tokens is None:
            self._first_tokens = tokens * self._first_step // step
        now = time.monotonic()
        speed = (tokens - self._first_tokens) / max(now - self._started, 1e-9)
        told = f"loss {loss:.3f}  {speed:,.0f} tokens/s"
        graded = "" if accuracy is None else f"  held-out accuracy {accuracy:.3f}"
        self._bar.update(self._task, completed=step, told=told + graded)
        due = now - self._last_line >= _SECONDS_BETWEEN_LINES or step == self._first_step + 1
        if not self.console.is_terminal and due:
            self._last_line = now
            left = (self.n_steps - step) * (now - self._started) / (step - self._first_step)
            self.say(f"step {step:,}/{self.n_steps:,}  {told}  {left:,.0f} s left")

    def say(self, text: str) -> None:
        """Print a line; a bar stays below it."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
