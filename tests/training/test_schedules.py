"""The learning rate of every step, computed by hand."""

from typing import Any

import pytest

from pvml.errors import PvmlError
from pvml.training.args import TrainingArgs
from pvml.training.schedules import lr_at, require_schedule_fits


def rates(n_steps: int, **fields: Any) -> list[float]:
    args = TrainingArgs(lr=1.0, **fields)
    return [lr_at(step, n_steps, args) for step in range(n_steps)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 3}, [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"schedule": "linear", "warmup_steps": 2}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        (
            {"schedule": "linear", "warmup_steps": 2, "final_lr_share": 0.2},
            [0.5, 1, 1, 0.8, 0.6, 0.4],
        ),
        # cos 0, 45, 90 and 135 degrees
        (
            {"schedule": "cosine", "warmup_steps": 2},
            [0.5, 1, 1, 0.8535533905932737, 0.5, 0.14644660940672627],
        ),
        # cos 0, 30, 60, 90, 120 and 150 degrees, between 1 and 0.5
        (
            {"schedule": "cosine", "final_lr_share": 0.5},
            [1, 0.9665063509461096, 0.875, 0.75, 0.625, 0.5334936490538904],
        ),
        ({"schedule": "wsd", "decay_share": 0.5}, [1, 1, 1, 1, 2 / 3, 1 / 3]),
        (
            {"schedule": "wsd", "warmup_steps": 2, "decay_share": 0.5, "final_lr_share": 0.1},
            [0.5, 1, 1, 1, 0.7, 0.4],
        ),
        ({"schedule": "wsd", "decay_share": 1.0}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"schedule": "cosine", "warmup_steps": 6}, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
    ],
)
def test_six_steps_by_hand(fields: dict[str, Any], expected: list[float]) -> None:
    """Every schedule's six rates; the warm-up ends at lr, the fall would end one step later."""
    assert rates(6, **fields) == pytest.approx(expected, abs=1e-12)


def test_the_rate_scales_with_lr() -> None:
    """Ten times the lr, ten times every rate."""
    small, large = (
        TrainingArgs(lr=lr, schedule="cosine", warmup_steps=3, final_lr_share=0.1)
        for lr in (3e-4, 3e-3)
    )

    for step in range(20):
        assert lr_at(step, 20, large) == pytest.approx(10 * lr_at(step, 20, small), rel=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 7])
def test_no_rate_is_zero_or_above_lr(schedule: str, warmup_steps: int) -> None:
    """Rates rise to lr once, never pass it, then never rise, and every step moves the weights."""
    found = rates(50, schedule=schedule, warmup_steps=warmup_steps)
    top = found.index(max(found))

    assert max(found) == 1.0
    assert min(found) > 0
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    """Seven steps of warm-up in a run of six are an error that names both."""
    args = TrainingArgs(warmup_steps=7)

    require_schedule_fits(args, 7)
    with pytest.raises(PvmlError, match="warmup_steps 7 is longer than the run, which has 6 steps"):
        require_schedule_fits(args, 6)


def test_a_decay_that_meets_the_warm_up_is_refused() -> None:
    """Six steps of warm-up and the last five of ten for the decay overlap; five and five fit."""
    fits, overlaps = (TrainingArgs(schedule="wsd", decay_share=0.5, warmup_steps=n) for n in (5, 6))

    require_schedule_fits(fits, 10)
    with pytest.raises(PvmlError, match="last 5 steps .decay_share 0.5.* run of 10 steps"):
        require_schedule_fits(overlaps, 10)


@pytest.mark.parametrize("step", [-1, 6])
def test_a_step_outside_the_run_has_no_rate(step: int) -> None:
    """Steps count from 0 to n_steps - 1; another is an error that names it."""
    with pytest.raises(PvmlError, match=f"step {step} is not one of 6 steps"):
        lr_at(step, 6, TrainingArgs())
