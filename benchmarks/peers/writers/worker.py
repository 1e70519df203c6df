"""A writer's own process: builds it, then does one task for each line that comes in.

Run by `peers/process.py` as `python -m peers.writers.worker JOB`, where JOB is JSON: contestant,
config, threads. Answers are lines of JSON: first that it is ready, then the seconds and the ids.
"""

import importlib
import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch as t

from peers.worker import off_defaults, own_stdout, peak_bytes, say
from peers.writers.task import Task
from pvml.config import Config


def main(job: dict[str, Any]) -> None:
    """Serve until the pipe is closed."""
    answers = own_stdout()
    t.set_num_threads(job["threads"])
    kind, _, variant = job["contestant"].partition("-")
    model = off_defaults(Config.from_dict(job["config"])).eval()
    write = importlib.import_module(f"peers.writers.{kind}").build(model, variant)
    del model
    say(answers, {"ready": True})
    for line in sys.stdin:
        task = Task(**json.loads(line))
        # who slept has to find its memory again
        write(replace(task, n_new=min(2, task.n_new)))
        start = time.perf_counter()
        ids = write(task)
        seconds = time.perf_counter() - start
        say(answers, {"seconds": seconds, "ids": ids, "peak_bytes": peak_bytes()})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
