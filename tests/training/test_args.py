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
    assert (args.optimizer, args.schedule, args.warmup_steps) == ("adamw", "constant", 0)
    assert (args.accumulate, args.grad_clip, args.precision) == (None, None, "float32")
    assert (args.packing, args.parallel, args.split_seed) == ("stream", "ddp", 0)
    assert (args.checkpoint_every, args.keep_every) == (None, None)


def test_a_recipe_survives_json() -> None:
    """What `to_dict` gives comes back equal through JSON."""
    args = TrainingArgs(
        lr=3e-4, n_held_out=17, sample_prompt=None, schedule="wsd", decay_share=0.3, keep_every=7
    )

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
        ("seed", True),
        ("split_seed", -1),
        ("split_seed", 1 << 32),
        ("n_held_out", 0),
        ("accumulate", 0),
        ("warmup_steps", -1),
        ("checkpoint_every", 0),
        ("keep_every", 0),
        ("grad_clip", 0.0),
        ("position_waves", 0.0),
        ("grad_clip", math.inf),
        ("decay_share", 0.0),
        ("decay_share", 1.01),
        ("final_lr_share", -0.1),
        ("final_lr_share", 1.01),
    ],
)
def test_nonsense_is_refused(field: str, value: Any) -> None:
    """A value that cannot be is an error that names the field and the value."""
    with pytest.raises(PvmlError, match=f"{field} must be .*{value}"):
        TrainingArgs.from_dict({field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("optimizer", "sgd", "optimizer must be one of adamw, muon, got 'sgd'"),
        ("schedule", "step", "schedule must be one of constant, linear, cosine, wsd, got 'step'"),
        ("precision", None, "precision must be one of float32, bfloat16, got None"),
        ("parallel", ["ddp"], r"parallel must be one of ddp, fsdp, got \['ddp'\]"),
        ("packing", 3, "packing must be one of stream, document, got 3"),
        ("grad_clip", "1", "grad_clip must be a finite number above 0, got '1'"),
        ("accumulate", 1.5, "accumulate must be a whole number of at least 1, got 1.5"),
        ("device", 0, "device must be a text or unset, got 0"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(field: str, value: Any, message: str) -> None:
    """A word outside the list is an error that gives the list; other types are named too."""
    args = TrainingArgs()
    # past the constructor, whose annotations a hook checks under pytest and nothing checks outside
    object.__setattr__(args, field, value)

    with pytest.raises(PvmlError, match=f"^{message}$"):
        args.__post_init__()


def test_unknown_fields_are_refused() -> None:
    """A stored field that this version does not know is an error that names it."""
    with pytest.raises(PvmlError, match="unknown training fields warmup"):
        TrainingArgs.from_dict({"warmup": 3})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 4, "accumulate": 5}, "accumulate 5 .* batch_size 4"),
        ({"optimizer": "muon", "parallel": "fsdp"}, "optimizer muon .* parallel fsdp"),
        ({"final_lr_share": 0.1}, "final_lr_share 0.1 .* schedule constant"),
        ({"schedule": "cosine", "decay_share": 0.5}, "decay_share 0.5 .* schedule cosine"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    """Two fields that cannot both hold are an error that names both and their values."""
    with pytest.raises(PvmlError, match=message):
        TrainingArgs(**fields)


def test_the_edges_are_allowed() -> None:
    """One row a piece, a decay over the whole run, an lr that ends where it was."""
    args = TrainingArgs(
        batch_size=4, accumulate=4, schedule="wsd", decay_share=1.0, final_lr_share=1.0
    )

    assert TrainingArgs.from_dict(args.to_dict()) == args


def test_an_older_runs_split_is_found_again() -> None:
    """A recipe from before split_seed was split by its seed; a newer one keeps its own."""
    assert TrainingArgs.from_dict({"seed": 7, "lr": 0.1}).split_seed == 7
    assert TrainingArgs.from_dict({"seed": 7, "split_seed": 0}).split_seed == 0
    assert TrainingArgs.from_dict({"lr": 0.1}) == TrainingArgs(lr=0.1)


def test_a_batch_that_no_memory_holds_is_refused() -> None:
    """A batch size beyond 2**20 is an error that names it."""
    with pytest.raises(PvmlError, match="batch_size must be at most 1048576, got 1048577"):
        TrainingArgs(batch_size=(1 << 20) + 1)


@pytest.mark.parametrize("field", ["lr", "weight_decay", "grad_clip", "position_waves"])
@pytest.mark.parametrize("value", [1e308, 1000001.0, 10**400])
def test_a_rate_beyond_float32_is_refused(field: str, value: Any) -> None:
    """What would overflow in an optimizer is an error that names field, limit and value."""
    args = TrainingArgs()
    # past the constructor: the hook takes no whole number for a float
    object.__setattr__(args, field, value)
    with pytest.raises(PvmlError) as refusal:
        args.__post_init__()
    assert str(refusal.value) == f"{field} must be at most 1e+06, got {value!r}"

    TrainingArgs.from_dict({field: 1e6})


def test_a_prompt_that_cannot_be_encoded_is_refused_before_training() -> None:
    """Half of a surrogate pair, which invalid UTF-8 on a command line becomes, is refused."""
    with pytest.raises(PvmlError, match="sample_prompt .* half of a surrogate pair"):
        TrainingArgs(sample_prompt="once \udcff")
