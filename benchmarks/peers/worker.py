"""A contestant's own process: builds it, then takes one step for each line that comes in.

Run by `process.py` as `python -m peers.worker JOB`, where JOB is JSON: contestant, config, batch,
threads. Answers are lines of JSON: first that it is ready, then what there is to tell of each step.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch as t
from torch import Tensor

from peers.contract import Peer, Step
from pvml.config import Config
from pvml.modules.transformer import Transformer


def main(job: dict[str, Any]) -> None:
    """Serve until the pipe is closed."""
    answers = own_stdout()
    t.set_num_threads(job["threads"])
    cfg = Config.from_dict(job["config"])
    take = taker(job["contestant"], cfg, job["batch"])
    say(answers, {"ready": True})
    for line in sys.stdin:
        tokens = tokens_of(int(line), cfg, job["batch"])
        start = time.perf_counter()
        result = take(tokens)
        seconds = time.perf_counter() - start
        say(answers, {"seconds": seconds, "peak_bytes": peak_bytes(), **result})


def own_stdout() -> TextIO:
    """The pipe to the parent; whatever libraries print goes to stderr from here on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def say(answers: TextIO, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def taker(contestant: str, cfg: Config, batch: int) -> Any:
    """From a batch of tokens to what is told about it."""
    if contestant == "floor":
        from peers.floor import Floor

        floor = Floor(cfg, batch)
        return lambda tokens: floor.measure()
    kind, _, variant = contestant.partition("-")
    module = importlib.import_module(f"peers.{kind}")
    model = off_defaults(cfg)
    if kind == "ours":
        step = module.build(model, variant, batch)
    else:
        step = training_step(module.build(model, *filter(None, [variant])))
    return lambda tokens: {"loss": step(tokens)}


def training_step(peer: Peer) -> Step:
    """A step of a peer: its own loss, and PyTorch's fused AdamW over all that it trains."""
    model, loss_of = peer
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = t.optim.AdamW(trained, lr=1e-3, weight_decay=1e-2, fused=True)

    def step(tokens: Tensor) -> float:
        loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def off_defaults(cfg: Config) -> Transformer:
    """The same model in every process, no bias at zero and no norm at one: they hide mistakes."""
    model = Transformer(cfg, seed=0)
    generator = t.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = t.empty(parameter.shape).normal_(std=cfg.init_range, generator=generator)
            parameter.data.add_(noise)
    return model


def tokens_of(step: int, cfg: Config, batch: int) -> Tensor:
    """The ids of one step, (batch, n_ctx): the same in every process."""
    generator = t.Generator().manual_seed(step)
    return t.randint(cfg.d_vocab, (batch, cfg.n_ctx), generator=generator)


def peak_bytes() -> int:
    """The largest resident set that this process ever had: interpreter, libraries and all."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    # not ru_maxrss: on Linux it starts at the parent's
    kibibytes = status.partition("VmHWM:")[2].split()[0]
    return 1024 * int(kibibytes)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
