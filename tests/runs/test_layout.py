"""The names in a run directory, and back from a name to what it stands for."""

from pathlib import Path

import pytest

from pvml.runs.layout import checkpoint_steps, run_of_checkpoint, step_folder, step_of


@pytest.mark.parametrize("step", [0, 7, 5000])
def test_a_step_comes_back_from_its_folder(step: int) -> None:
    """The folder of a step is the folder of no other."""
    assert step_of(step_folder(Path("runs/x"), step)) == step


@pytest.mark.parametrize(
    "name", ["", "step", "step-", "step--1", "step-07", "step-²", ".step-7", "7"]
)
def test_other_names_are_no_steps(name: str) -> None:
    """Only the name that is written is read: leftovers and other folders are passed over."""
    assert step_of(Path("checkpoints") / name) is None


def test_the_steps_are_sorted_as_numbers(tmp_path: Path) -> None:
    """Step 1,000 comes after 200; files and leftovers do not count; no folder, no steps."""
    assert checkpoint_steps(tmp_path) == []
    for name in ("step-1000", "step-200", ".step-300.part-1", "other"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-400").touch()

    assert checkpoint_steps(tmp_path) == [200, 1000]


def test_a_checkpoint_belongs_to_a_run(tmp_path: Path) -> None:
    """A folder of a checkpoint leads to its run; one that lies elsewhere leads nowhere."""
    folder = step_folder(tmp_path, 7)
    folder.mkdir(parents=True)
    assert run_of_checkpoint(folder) is None
    (tmp_path / "config.json").touch()

    assert run_of_checkpoint(folder) == (tmp_path.resolve(), 7)
    assert run_of_checkpoint(folder.parent) is run_of_checkpoint(tmp_path) is None
