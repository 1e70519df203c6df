"""The recipe: the seeds' defaults, and nonsense refused at construction."""

import json
import math
from typing import Any

import pytest

from pvml.errors import PvmlError
from pvml.training.args import TrainingArgs


def test_the_defaults_are_the_seeds_recipe() -> None:
    """Batch 32, 10 epochs of at most 500 steps, lr 1e-3, decay 1e-2, seed 0."""
    args = TrainingArgs()

    assert (args.batch_size, args.epochs, args.max_steps_per_epoch) == (32, 10, 500)
    assert (args.lr, args.weight_decay, args.seed, args.device) == (1e-3, 1e-2, 0, None)


def test_a_recipe_survives_json() -> None:
    """What `to_dict` gives comes back equal through JSON."""
    args = TrainingArgs(lr=3e-4, n_held_out=17, sample_prompt=None)

    assert TrainingArgs.from_dict(json.loads(json.dumps(args.to_dict()))) == args


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("epochs", 0),
        ("max_steps_per_epoch", -1),
        ("lr", 0.0),
        ("lr", math.nan),
        ("weight_decay", -0.1),
        ("weight_decay", math.inf),
        ("seed", -1),
        ("seed", 1 << 32),
        ("n_held_out", 0),
    ],
)
def test_nonsense_is_refused(field: str, value: Any) -> None:
    """A value that cannot be is an error that names the field and the value."""
    with pytest.raises(PvmlError, match=f"{field} must be .*{value}"):
        TrainingArgs.from_dict({field: value})


def test_unknown_fields_are_refused() -> None:
    """A stored field that this version does not know is an error that names it."""
    with pytest.raises(PvmlError, match="unknown training fields warmup"):
        TrainingArgs.from_dict({"warmup": 3})


def test_a_batch_that_no_memory_holds_is_refused() -> None:
    """A batch size beyond 2**20 is an error that names it."""
    with pytest.raises(PvmlError, match="batch_size must be at most 1048576, got 1048577"):
        TrainingArgs(batch_size=(1 << 20) + 1)


def test_a_prompt_that_cannot_be_encoded_is_refused_before_training() -> None:
    """Half of a surrogate pair, which invalid UTF-8 on a command line becomes, is refused."""
    with pytest.raises(PvmlError, match="sample_prompt .* half of a surrogate pair"):
        TrainingArgs(sample_prompt="once \udcff")
