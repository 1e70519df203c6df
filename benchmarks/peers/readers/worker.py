"""A reader's own process: reads circuits off random weights, one task for each line that comes in.

Run by `peers/process.py` as `python -m peers.readers.worker JOB`, where JOB is JSON: contestant
(ours or lens), config, threads. Answers are lines of JSON: first that it is ready, then the
seconds, what was found, and the bytes that the process grew by at most while it read.
"""

import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch as t

from peers.readers.task import Task
from peers.worker import off_defaults, own_stdout, peak_bytes, say
from pvml.config import Config


def main(job: dict[str, Any]) -> None:
    """Serve until the pipe is closed."""
    answers = own_stdout()
    t.set_num_threads(job["threads"])
    # normalisation is left out: what is compared is the same product of the same matrices
    model = off_defaults(Config.from_dict(job["config"])).eval()
    read = importlib.import_module(f"peers.readers.{job['contestant']}").build(model)
    say(answers, {"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        task = Task(**{**asked, "head": tuple(asked["head"])})
        before = resident_bytes()
        start = time.perf_counter()
        with t.no_grad():
            told = read(task)
        seconds = time.perf_counter() - start if told.seconds is None else told.seconds
        grew = peak_bytes() - before
        say(answers, {**asdict(told), "seconds": seconds, "grew": grew})


def resident_bytes() -> int:
    """What the process holds now. Its peak starts again from here, where the system allows that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return peak_bytes()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
