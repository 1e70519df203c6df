"""The parent's side of a contestant: a process that is started, told what to do, and ended."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pvml.config import Config

_SECONDS_TO_END = 5.0


class ContestantError(RuntimeError):
    """A contestant's process ended or did not answer. The message holds what it said last."""


class Contestant:
    """One contestant in a process of its own. A context manager: the process ends with it.

    The process sleeps until it is told to step, so that what it takes is its own.
    """

    def __init__(
        self,
        name: str,
        cfg: Config,
        batch: int,
        threads: int,
        timeout: float,
        worker: str = "peers.worker",
    ):
        self.name, self.timeout = name, timeout
        job = {"contestant": name, "config": cfg.to_dict(), "batch": batch, "threads": threads}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._step = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment(threads),
            # a group of its own, so that whatever it starts ends with it
            start_new_session=True,
        )
        self._unread = b""

    def __enter__(self) -> "Contestant":
        return self

    def wait_until_ready(self) -> None:
        """Return once it is built.

        Raises: ContestantError if it ended or took too long.
        """
        self._answer()

    def step(self) -> dict[str, Any]:
        """Have it take its next step; what it tells about it, `seconds` and `peak_bytes` included.

        Raises: ContestantError if it ended or took too long.
        """
        self._step += 1
        return self.ask(str(self._step))

    def ask(self, line: str) -> dict[str, Any]:
        """Have it do what its worker makes of a line; what it tells.

        Raises: ContestantError if it ended or took too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContestantError(self._last_words("ended")) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(self.timeout):
                    raise ContestantError(
                        self._last_words(f"did not answer within {self.timeout:g} s")
                    )
                piece = os.read(pipe, 1 << 16)
                if not piece:
                    raise ContestantError(self._last_words("ended"))
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self, what: str) -> str:
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()[-15:]
        return "\n  ".join([f"{self.name} {what}. It said last:", *(said or ["(nothing)"])])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._process.stdin.close()  # type: ignore[union-attr]
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            pipe.close()  # type: ignore[union-attr]


def environment(threads: int) -> dict[str, str]:
    """What the process is told: where `peers` lies, and how many threads everything may use."""
    folder = str(Path(__file__).resolve().parent.parent)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # else torch.compile starts a pool of processes that outlives its work
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
