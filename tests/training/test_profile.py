"""Where a step's time goes: told by a clock that stands still but for what the test adds."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch as t

from pvml.config import Config
from pvml.data.rows import Rows
from pvml.errors import PvmlError
from pvml.modules.attention import Attention
from pvml.modules.embedding import Embed
from pvml.modules.mlp import MLP
from pvml.modules.unembedding import Unembed
from pvml.training import losses
from pvml.training import profile as profiling
from pvml.training.args import TrainingArgs
from pvml.training.optimizer import Optimizers
from pvml.training.profile import (
    FORWARD_PARTS,
    LOSS,
    STEP_PARTS,
    Subject,
    cost_of_doubling,
    profile,
)

ARGS = TrainingArgs(batch_size=4, device="cpu", grad_clip=1.0)


def shape(**changes: Any) -> Config:
    sizes: dict[str, Any] = {"d_model": 8, "n_heads": 2, "n_layers": 2, "n_ctx": 7, "d_vocab": 31}
    return Config(**{**sizes, **changes})


class Clock:
    """Stands still until a part of the work that was given a price is done."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now = 0.0
        self._patch = patch
        patch.setattr(profiling.time, "perf_counter", lambda: self.now)

    def price(self, owner: Any, name: str, seconds: float, backward: float = 0.0) -> None:
        """Every call of this function takes so long, and so does the gradient of its result."""
        work: Callable[..., Any] = getattr(owner, name)

        def priced(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            result = work(*args, **kwargs)
            if backward and result.requires_grad:
                result.register_hook(lambda _: self._pass(backward))
            return result

        self._patch.setattr(owner, name, priced)

    def _pass(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with monkeypatch.context() as patch:
        yield Clock(patch)


# By hand


def test_every_part_by_hand(clock: Clock) -> None:
    """Each part gets what its layers took, forward and backward, over both layers and pieces."""
    clock.price(Rows, "batch", 3.0)
    clock.price(Embed, "forward", 0.5)
    clock.price(Attention, "forward", 1.0, backward=2.0)
    clock.price(MLP, "forward", 10.0, backward=20.0)
    clock.price(losses, "chunked_nats", 100.0)
    clock.price(t.nn.utils, "clip_grad_norm_", 1000.0)
    clock.price(Optimizers, "step", 5000.0)
    clock.price(Optimizers, "zero_grad", 7.0)
    two_pieces = TrainingArgs(batch_size=4, device="cpu", grad_clip=1.0, accumulate=2)
    told = profile(shape(), two_pieces, steps=2, warm_up=1)

    assert told.parts == {
        "data": 3.0,
        "embedding, forward": 2 * 0.5,
        "attention, forward": 2 * 2 * 1.0,
        "rest of the blocks, forward": 2 * 2 * 10.0,
        LOSS: 2 * 100.0,
        "attention, backward": 2 * 2 * 2.0,
        "rest of the blocks, backward": 2 * 2 * 20.0,
        "embedding, backward": 0.0,
        "clipping": 1000.0,
        "optimizer": 5000.0,
        "other": 7.0,
    }
    assert told.step == sum(told.parts.values())
    assert (told.n_ctx, told.batch_size) == (7, 4)


def test_a_forward_pass_alone_by_hand(clock: Clock) -> None:
    """It goes up to the logits, which are made in pieces, and has no loss."""
    clock.price(Attention, "forward", 1.0)
    clock.price(Unembed, "forward", 4.0)
    clock.price(losses, "chunked_nats", 100.0)
    rows = TrainingArgs(batch_size=300, device="cpu")
    told = profile(shape(), rows, steps=1, warm_up=0)

    n_pieces = math.ceil(300 * 7 / 1024)
    assert told.forward_parts == {
        "embedding, forward": 0.0,
        "attention, forward": 2.0,
        "rest of the blocks, forward": 0.0,
        "unembedding": 4.0 * n_pieces,
        "other": 0.0,
    }


def test_the_gradient_of_the_embedding_is_its_own(clock: Clock) -> None:
    """The time until the tables' gradients have arrived, after the last block, is theirs."""
    clock.price(Embed, "forward", 0.0, backward=6.0)
    told = profile(shape(), ARGS, steps=1, warm_up=0)

    assert told.parts["embedding, backward"] == 6.0 == told.step


def test_without_a_limit_nothing_is_clipped(clock: Clock) -> None:
    """What lies before the optimizer is clipping only where there is a limit."""
    told = profile(shape(), TrainingArgs(batch_size=4, device="cpu"), steps=1, warm_up=0)

    assert told.parts["clipping"] == 0.0


def test_doubling_by_hand(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five rows of 7, four are measured against two rows of 14, each a fresh model's."""
    clock.price(Attention, "forward", 1.0)
    batch = Rows.batch

    def by_square(rows: Rows, ids: list[int]) -> t.Tensor:
        clock.now += len(ids) * rows.n_ctx**2
        return batch(rows, ids)

    monkeypatch.setattr(Rows, "batch", by_square)
    told = cost_of_doubling(shape(), TrainingArgs(batch_size=5, device="cpu"), steps=3, warm_up=1)

    assert (told.n_ctx, told.batch_size) == (7, 4)
    assert (told.step, told.doubled) == (4 * 7**2 + 2.0, 2 * 14**2 + 2.0)
    assert told.cost == told.doubled / told.step


# Laws


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_layers": 0},
        {"positions": "none", "normalization": "none"},
        {"positions": "shortformer", "attn_only": True},
        {"tie_embeddings": True},
    ],
)
def test_every_moment_belongs_to_a_part(changes: dict[str, Any]) -> None:
    """For any model, the parts of one step, and of one forward pass, add up to the whole."""
    told = profile(shape(**changes), ARGS, steps=1, warm_up=1)

    assert tuple(told.parts) == STEP_PARTS and tuple(told.forward_parts) == FORWARD_PARTS
    assert all(seconds >= 0 for seconds in told.parts.values())
    assert sum(told.parts.values()) == pytest.approx(told.step, rel=1e-9)
    assert sum(told.forward_parts.values()) == pytest.approx(told.forward, rel=1e-9)


def test_being_watched_changes_nothing() -> None:
    """Watched steps move the weights to the same bits; afterwards no hook is left."""
    watched, alone = Subject(shape(), ARGS), Subject(shape(), ARGS)
    with watched.watched():
        for _ in range(3):
            watched.time_step()
        watched.time_forward()
    for _ in range(3):
        alone.time_step()

    for name, weight in alone.model.state_dict().items():
        assert t.equal(watched.model.state_dict()[name], weight), name
    for module in watched.model.modules():
        for kind in ("forward", "forward_pre", "backward", "backward_pre"):
            assert not getattr(module, f"_{kind}_hooks")
    assert "step" not in vars(watched.update.optimizer)


# Contracts


def test_what_cannot_be_measured_is_refused() -> None:
    """No step, and half of a batch of one row, are errors that say what to give."""
    for measure in (profile, cost_of_doubling):
        with pytest.raises(PvmlError, match="steps must be at least 1, got 0"):
            measure(shape(), ARGS, steps=0)
    with pytest.raises(PvmlError, match="give at least 2"):
        cost_of_doubling(shape(), TrainingArgs(batch_size=1, device="cpu"))
