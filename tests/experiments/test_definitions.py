"""The experiments are those of the notes, and each has a twin that follows from it."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.train import default_name
from pvml.training.args import TrainingArgs

PUBLISHED = {
    # name: d_model, layers, heads, n_ctx, steps, steps per epoch; loss, accuracy, minutes, slope
    "d128-l6-h4-ctx512-40k": (128, 6, 4, 512, 40_000, 1000, 1.732, 0.573, 641.3, -0.002),
    "d128-l6-h4-ctx128-20k": (128, 6, 4, 128, 20_000, 500, 2.080, 0.517, 67.3, -0.005),
    "d128-l6-h4-ctx128-5k": (128, 6, 4, 128, 5_000, 500, 2.369, 0.476, 17.0, -0.036),
    "d256-l8-h8-ctx128-5k": (256, 8, 8, 128, 5_000, 500, 2.497, 0.461, 36.6, -0.064),
    "d32-l4-h16-ctx128-20k": (32, 4, 16, 128, 20_000, 500, 2.782, 0.421, 34.6, 0.006),
    "d32-l4-h16-ctx128-5k": (32, 4, 16, 128, 5_000, 500, 2.996, 0.395, 8.4, -0.024),
}
ASKED_FOR = {
    "d256-l8-h8-ctx128-5k-cosine": (256, 8, 8, 128, 5_000, 500),
    "d256-l8-h8-ctx128-20k": (256, 8, 8, 128, 20_000, 500),
    "d32-l4-h4-ctx128-20k": (32, 4, 4, 128, 20_000, 500),
}


@pytest.fixture
def experiments() -> Any:
    from definitions import load_experiments

    return load_experiments()


def shape_of(experiment: Any) -> tuple[int, ...]:
    model, args = experiment.model, experiment.training
    sizes = (model.d_model, model.n_layers, model.n_heads, model.n_ctx)
    return (*sizes, args.epochs * args.max_steps_per_epoch, args.max_steps_per_epoch)


# The originals


def test_the_six_are_those_of_the_notes(experiments: Any) -> None:
    """Shapes, steps and what came of them are the published ones, figure by figure."""
    found = {
        name: (
            *shape_of(one),
            *(one.published[key] for key in ("loss", "accuracy", "minutes", "slope")),
        )
        for name, one in experiments.items()
        if one.published
    }

    assert found == PUBLISHED


def test_the_three_that_were_asked_for_are_there(experiments: Any) -> None:
    """Warm-up and cosine on d256, d256 for 20,000 steps, and d32 with 4 heads: nothing else."""
    asked = {name: shape_of(one) for name, one in experiments.items() if not one.published}

    assert asked == ASKED_FOR
    cosine = experiments["d256-l8-h8-ctx128-5k-cosine"].training
    assert (cosine.schedule, cosine.warmup_steps) == ("cosine", 500)


def test_every_recipe_is_the_plain_one(experiments: Any) -> None:
    """AdamW, lr 1e-3, decay 1e-2, batch 32, seed 0, float32: only steps and schedule differ."""
    may_differ = {"epochs", "max_steps_per_epoch", "schedule", "warmup_steps"}
    for one in experiments.values():
        differing = {
            field.name
            for field in fields(TrainingArgs)
            if getattr(one.training, field.name) != getattr(TrainingArgs(), field.name)
        }
        assert differing <= may_differ
        assert one.name.endswith("cosine") or not differing & {"schedule", "warmup_steps"}
    plain = TrainingArgs()
    assert (plain.optimizer, plain.lr, plain.weight_decay) == ("adamw", 1e-3, 1e-2)
    assert (plain.batch_size, plain.seed, plain.precision) == (32, 0, "float32")


def test_names_say_what_the_runs_are(experiments: Any) -> None:
    """Each name is the one that `pvml train` would give, but for what was added to it."""
    for name, one in experiments.items():
        given = default_name("tinystories", one.model, one.steps)
        assert f"tinystories-{name.removesuffix('-cosine')}" == given


def test_every_file_is_an_experiment(experiments: Any, root: Path) -> None:
    """A file that is added and not listed is found out, and each opens with a question."""
    files = {path.stem for path in (root / "experiments" / "tinystories").glob("*.py")} - {"door"}

    assert files == {name.replace("-", "_") for name in experiments}
    assert all(one.question.endswith("?") for one in experiments.values())


def test_an_original_is_the_seeds_recipe(experiments: Any, tmp_path: Path) -> None:
    """The hub's stories, GPT-2's tokenizer; a seed but 0 is in the name."""
    from definitions import original

    one = experiments["d128-l6-h4-ctx128-5k"]
    plain, other = (original(one, seed, "tinystories", tmp_path) for seed in (0, 2))

    assert (plain.data, plain.tokenizer) == ("tinystories", "gpt2")
    assert plain.name == "tinystories-d128-l6-h4-ctx128-5k"
    assert plain.training == one.training and plain.model == one.model
    assert other.name == "tinystories-d128-l6-h4-ctx128-5k-seed2" and other.training.seed == 2


# The twins


@pytest.mark.parametrize(
    ("name", "n_rows", "epochs", "per_epoch", "warmup"),
    [
        ("d128-l6-h4-ctx128-5k", 25_272, 10, 50, 0),
        ("d128-l6-h4-ctx128-20k", 25_272, 10, 200, 0),
        ("d256-l8-h8-ctx128-5k-cosine", 25_272, 10, 50, 50),
        # the rows that are cut from 15,556 genuine stories; 3 x 6,280 are 588 batches of 32
        ("d128-l6-h4-ctx512-40k", 6_280, 10, 58, 0),
        # 3 x 100 rows are 9 batches: no room for 10 evaluations
        ("d256-l8-h8-ctx128-5k-cosine", 100, 9, 1, 1),
        ("d256-l8-h8-ctx128-5k", 1, 1, 1, 0),
    ],
)
def test_a_twins_steps_by_hand(
    experiments: Any, name: str, n_rows: int, epochs: int, per_epoch: int, warmup: int
) -> None:
    """A tenth of the steps or three passes, in even epochs; the warm-up keeps its share."""
    from definitions import Laptop, twin_recipe

    args = twin_recipe(experiments[name], n_rows, Laptop())

    assert (args.epochs, args.max_steps_per_epoch, args.warmup_steps) == (epochs, per_epoch, warmup)


def test_a_twin_keeps_all_but_five_things(experiments: Any, tmp_path: Path) -> None:
    """Shape, batch, optimizer, rates and schedule are the original's, and so is the seed."""
    from definitions import Laptop, twin

    changed = {"epochs", "max_steps_per_epoch", "warmup_steps", "precision", "checkpoint_every"}
    for one in experiments.values():
        flags = twin(one, 0, "stories.jsonl", tmp_path, 25_272, Laptop())
        differing = {
            field.name
            for field in fields(TrainingArgs)
            if getattr(one.training, field.name) != getattr(flags.training, field.name)
        }
        assert differing <= changed
        assert flags.model == one.model and flags.tokenizer == "bpe:4096"
        assert flags.name == f"twin-{one.name}" and flags.training.precision == "bfloat16"


def test_a_definition_can_be_run(root: Path, tmp_path: Path) -> None:
    """As a program, a file is the original's training; --list tells where it stands."""
    script = root / "experiments" / "tinystories" / "d32_l4_h4_ctx128_20k.py"
    done = subprocess.run(
        [sys.executable, str(script), "--list", "--run-dir", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "tinystories-d32-l4-h4-ctx128-20k" in done.stdout
    assert "to do, 20,000 steps" in done.stdout
