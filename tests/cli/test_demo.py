"""`pvml demo`: its flags reach the job, and a failed check is exit code 1."""

import pytest

from pvml.cli.main import main
from pvml.demos.args import DemoArgs
from pvml.errors import CheckFailed


def test_flags_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given replaces the job's own defaults, and nothing else does."""
    asked: list[DemoArgs] = []
    monkeypatch.setattr("pvml.demos.demo.run", asked.append)

    assert main(["demo"]) == 0
    assert main(["demo", "--data", "my text.txt", "--steps", "7", "--device", "cpu"]) == 0
    assert asked == [DemoArgs(), DemoArgs(data="my text.txt", steps=7, device="cpu")]


def test_a_failed_check_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that does not verify ends the command with 1 and the reason."""

    def fail(args: DemoArgs) -> None:
        raise CheckFailed("the trained model is not what it should be")

    monkeypatch.setattr("pvml.demos.demo.run", fail)

    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "pvml: the trained model is not what it should be\n"
