"""What is shown of a training: each number under a name that says what it is of."""

import math
from io import StringIO

import pytest
from rich.console import Console

from pvml.training import progress
from pvml.training.progress import TrainingProgress, worse_than_guessing


def shown(*, terminal: bool) -> str:
    """All that two steps print, the second after an epoch of accuracy 0.142."""
    told = StringIO()
    console = Console(file=told, force_terminal=terminal, width=120, color_system=None)
    with TrainingProgress(10, 0, console) as training:
        training.update(1, 3.5, 100)
        training.update(2, 2.25, 200, accuracy=0.142)
    return told.getvalue()


def test_a_loss_above_a_blind_guess_is_told() -> None:
    """ln 1,024 is 6.931: above it a sentence says so, at it and below, or without a loss, none."""
    told = worse_than_guessing(74_691.0, 1024)

    assert "blind guess, ln(1,024) = 6.931 nats/token" in told and "lower --lr" in told
    assert worse_than_guessing(math.log(1024), 1024) == ""
    assert worse_than_guessing(6.9, 1024) == worse_than_guessing(math.nan, 1024) == ""


def test_a_bar_names_the_accuracy_for_what_it_is() -> None:
    """Beside a live training loss stands the last epoch's held-out figure, named so."""
    bar = shown(terminal=True)

    assert "step 2/10" in bar and "loss 2.250" in bar
    assert "held-out accuracy 0.142" in bar
    assert bar.count("accuracy") == bar.count("held-out accuracy")


def test_a_step_line_tells_what_is_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No accuracy in it, behind an epoch either: the epoch's own line tells that."""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    lines = shown(terminal=False).splitlines()

    assert [line.partition("  ")[0] for line in lines] == ["step 1/10", "step 2/10"]
    assert lines[1].startswith("step 2/10  loss 2.250  ") and lines[1].endswith(" s left")
    assert not any("accuracy" in line for line in lines)
