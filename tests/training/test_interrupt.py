"""What is said when Ctrl-C stops a training: a command that a shell takes as it stands."""

import shlex
from pathlib import Path

import pytest

from pvml.cli.flags import parse
from pvml.cli.train import TrainFlags
from pvml.training.interrupt import command_to_go_on


@pytest.mark.parametrize(
    "path",
    ["runs/a", "my runs/a b", "runs/-x", "-r/-x", "a'b/$HOME", "/tmp/r/x", "x", "runs/--y=z"],
)
def test_the_command_is_read_as_it_is_meant(path: str) -> None:
    """Split as a shell splits it, and parsed, it names the run's folder."""
    pvml, train, *words = shlex.split(command_to_go_on(Path(path)))
    flags = parse(TrainFlags, "train", words)

    assert (pvml, train, flags.resume, flags.name) == ("pvml", "train", True, Path(path).name)
    assert flags.run_dir == Path(path).parent


def test_a_link_is_named_as_it_is(tmp_path: Path) -> None:
    """The folder and the name belong together: what the link points to lies elsewhere."""
    (tmp_path / "real" / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/run")
    assert command_to_go_on(tmp_path / "link").endswith(f"--run-dir {tmp_path} --name link")


def test_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path without a name of its own, `.`, is told by the one it has."""
    monkeypatch.chdir(tmp_path)
    told = command_to_go_on(Path())
    assert told.endswith(f"--run-dir {tmp_path.parent} --name {tmp_path.name}")
