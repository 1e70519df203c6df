"""Where a training step's time goes: every moment of it belongs to one part.

Hooks on the layers tell forward and backward pass apart. The loss computes gradients in its forward
pass, so from the end of the last layer until its gradient arrives is one part. On an accelerator
each border waits for the device: the parts are then right, and an undisturbed step is faster.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch as t
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pvml.config import Config
from pvml.data.rows import Batches, Rows
from pvml.device import pick_device
from pvml.errors import PvmlError
from pvml.modules.inference import inference
from pvml.modules.transformer import Transformer
from pvml.training.args import TrainingArgs
from pvml.training.step import TrainingStep

OTHER = "other"
LOSS = "unembedding and loss, both ways"
STEP_PARTS = (
    "data",
    "embedding, forward",
    "attention, forward",
    "rest of the blocks, forward",
    LOSS,
    "attention, backward",
    "rest of the blocks, backward",
    "embedding, backward",
    "clipping",
    "optimizer",
    OTHER,
)
"""A step's parts, in the order in which they come."""
FORWARD_PARTS = (
    "embedding, forward",
    "attention, forward",
    "rest of the blocks, forward",
    "unembedding",
    OTHER,
)
_MANY = 1_000_000
"""Steps that no profile takes: the run that is imitated is never at its end."""
_UNEMBEDDED_AT_ONCE = 1024
"""Positions, in a forward pass alone: all logits together might not fit into the memory."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Seconds, medians over some steps: the parts' need not add up to the whole's exactly."""

    n_ctx: int
    batch_size: int
    step: float
    """A whole step, the fetching of its batch included."""
    parts: dict[str, float]
    """The step's, by the names in `STEP_PARTS`."""
    forward: float
    """A forward pass alone, in evaluation mode and up to the logits: no loss, no gradients."""
    forward_parts: dict[str, float]
    """The forward pass's, by the names in `FORWARD_PARTS`."""


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Seconds of a step (median), and of one on rows twice as long, half as many."""

    n_ctx: int
    batch_size: int
    step: float
    doubled: float

    @property
    def cost(self) -> float:
        """How many times as long as before the doubled row takes, at equal tokens per step."""
        return self.doubled / self.step


def profile(cfg: Config, args: TrainingArgs, steps: int = 5, warm_up: int = 2) -> Profile:
    """Where training steps spend their time, on a fresh model and random tokens.

    steps: how many are measured, after `warm_up` that do not count.

    Raises: PvmlError for an n_ctx below 2, or no step.
    """
    _require_steps(steps)
    subject = Subject(cfg, args)
    with subject.watched():
        whole = [subject.time_step() for _ in range(warm_up + steps)]
        parts = subject.watch.take_laps()
        alone = [subject.time_forward() for _ in range(warm_up + steps)]
        forward_parts = subject.watch.take_laps()
    return Profile(
        n_ctx=cfg.n_ctx,
        batch_size=args.batch_size,
        step=statistics.median(whole[warm_up:]),
        parts=_medians(parts[warm_up:], STEP_PARTS),
        forward=statistics.median(alone[warm_up:]),
        forward_parts=_medians(forward_parts[warm_up:], FORWARD_PARTS),
    )


def cost_of_doubling(cfg: Config, args: TrainingArgs, steps: int = 5, warm_up: int = 2) -> Doubling:
    """What rows of twice the model's n_ctx cost at equal tokens per step; no part is timed.

    Both kinds of step take turns, so that a slow moment slows both. An odd batch_size is one less.

    Raises: PvmlError for a batch_size of 1, an n_ctx below 2, or no step.
    """
    if args.batch_size < 2:
        raise PvmlError("half of a batch_size of 1 is no batch: give at least 2")
    _require_steps(steps)
    half = args.batch_size // 2
    accumulate = args.accumulate and min(args.accumulate, half)
    subjects = [
        Subject(cfg, replace(args, batch_size=2 * half, accumulate=accumulate)),
        Subject(
            replace(cfg, n_ctx=2 * cfg.n_ctx),
            replace(args, batch_size=half, accumulate=accumulate),
        ),
    ]
    seconds = [[subject.time_step() for subject in subjects] for _ in range(warm_up + steps)]
    step, doubled = (statistics.median(taken) for taken in zip(*seconds[warm_up:], strict=True))
    return Doubling(n_ctx=cfg.n_ctx, batch_size=2 * half, step=step, doubled=doubled)


def _require_steps(steps: int) -> None:
    if steps < 1:
        raise PvmlError(f"steps must be at least 1, got {steps}")


class Subject:
    """A fresh model in training, on random tokens, which take as long as any others."""

    def __init__(self, cfg: Config, args: TrainingArgs):
        self.args = args
        self.model = Transformer(cfg, seed=args.seed).to(pick_device(args.device)).train()
        n_tokens = 4 * args.batch_size * (cfg.n_ctx - 1)
        noise = np.random.RandomState(args.seed).randint(0, cfg.d_vocab, n_tokens)
        self.rows = Rows(noise, cfg.n_ctx, 0)
        self.batches = Batches(len(self.rows), args.batch_size, args.seed)
        self.update = TrainingStep(self.model, args, n_steps=args.warmup_steps + _MANY)
        self.watch = _Watch(self.model.device)
        self.taken = 0

    def time_step(self) -> float:
        """The seconds that the next training step takes."""
        return self.watch.time(self._step)

    def time_forward(self) -> float:
        """The seconds that a forward pass takes, from the next step's batch to logits."""
        tokens = self._tokens()
        return self.watch.time(lambda: self._forward(tokens))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, the watch is told of all parts."""
        optimizer = self.update.optimizer
        move = optimizer.step
        before = OTHER if self.args.grad_clip is None else "clipping"

        def timed_move() -> None:
            self.watch.so_far_was(before)
            self.watch.enter("optimizer")
            move()
            self.watch.leave()

        handles = _hooks(self.model, self.watch)
        optimizer.step = timed_move  # type: ignore[method-assign]
        try:
            yield
        finally:
            del optimizer.step  # what is left is the method
            for handle in handles:
                handle.remove()

    def _step(self) -> None:
        self.watch.enter("data")
        tokens = self._tokens()
        self.watch.leave()
        self.update.take(self.taken, tokens)
        self.taken += 1

    def _forward(self, tokens: Int[Tensor, "batch posn"]) -> None:
        half = self.args.precision == "bfloat16"
        with (
            inference(self.model),
            t.autocast(self.model.device.type, t.bfloat16, enabled=half),
        ):
            stream = self.model.stream(tokens).flatten(0, 1)
            self.watch.turn_to("unembedding")  # it is not the loss that follows
            for piece in t.split(stream, _UNEMBEDDED_AT_ONCE):
                self.model.unembed(piece[None])
            self.watch.leave()

    def _tokens(self) -> Int[Tensor, "batch posn"]:
        return self.rows.batch(self.batches(self.taken)).to(self.model.device)


class _Watch:
    """Seconds by part. The time between two calls goes to the part that was entered last."""

    def __init__(self, device: t.device):
        self._device = device
        self._laps: list[dict[str, float]] = []
        self._entered = [OTHER]
        self._last = 0.0

    def time(self, work: Callable[[], object]) -> float:
        """The seconds that the work takes; its parts are a new lap."""
        self._laps.append(defaultdict(float))
        self._entered = [OTHER]
        began = self._last = self._now()
        work()
        self.so_far_was(OTHER)
        return self._last - began

    def take_laps(self) -> list[dict[str, float]]:
        """The laps since the last call of this, each the seconds of its parts."""
        laps, self._laps = self._laps, []
        return laps

    def enter(self, part: str) -> None:
        self.so_far_was(self._entered[-1])
        self._entered.append(part)

    def leave(self) -> None:
        self.so_far_was(self._entered.pop())

    def turn_to(self, part: str) -> None:
        """Leave for another part; the time since the last call is nobody's."""
        self.so_far_was(OTHER)
        self._entered[-1] = part

    def so_far_was(self, part: str) -> None:
        """Give the time since the last call to this part."""
        now = self._now()
        self._laps[-1][part] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type != "cpu":
            t.accelerator.synchronize()
        return time.perf_counter()


def _hooks(model: Transformer, watch: _Watch) -> list[RemovableHandle]:
    handles: list[RemovableHandle] = []

    def forward(module: nn.Module, part: str) -> None:
        handles.append(module.register_forward_pre_hook(lambda *_: watch.enter(part)))
        handles.append(module.register_forward_hook(lambda *_: watch.leave()))

    def backward(module: nn.Module, part: str) -> None:
        handles.append(module.register_full_backward_pre_hook(lambda *_: watch.enter(part)))
        handles.append(module.register_full_backward_hook(lambda *_: watch.leave()))

    def arrived(table: Tensor) -> None:
        watch.so_far_was("embedding, backward")

    for layer in (model.embed, *([] if model.cfg.positions == "none" else [model.pos_embed])):
        forward(layer, "embedding, forward")
        # ids have no gradient, so the layer has no backward hooks, but its table has
        for table in layer.parameters():
            handles.append(table.register_post_accumulate_grad_hook(arrived))  # type: ignore[no-untyped-call]
    for block in model.blocks:
        forward(block, "rest of the blocks, forward")
        backward(block, "rest of the blocks, backward")
        attention = block.get_submodule("attn")
        forward(attention, "attention, forward")
        backward(attention, "attention, backward")
    handles.append(model.ln_final.register_forward_hook(lambda *_: watch.enter(LOSS)))
    handles.append(model.ln_final.register_full_backward_pre_hook(lambda *_: watch.leave()))
    return handles


def _medians(laps: list[dict[str, float]], names: tuple[str, ...]) -> dict[str, float]:
    return {name: statistics.median(lap.get(name, 0.0) for lap in laps) for name in names}
