"""`pvml train --preset`: flags by one name."""

import pytest

from pvml.cli.flags import parse
from pvml.cli.main import main
from pvml.cli.presets import PRESETS, expanded
from pvml.cli.train import TrainFlags


def flags_of(*arguments: str) -> TrainFlags:
    return parse(TrainFlags, "train", expanded(arguments))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_flags(name: str) -> None:
    """`--preset NAME` gives what its flags give, spelt either way, and not what none gives."""
    given = flags_of(*PRESETS[name].split())

    for arguments in (["--preset", name], [f"--preset={name}"]):
        preset = flags_of(*arguments)
        assert (preset.tokenizer, preset.model) == (given.tokenizer, given.model)
        assert preset.training == given.training != TrainFlags().training


def test_flags_that_are_given_win() -> None:
    """Before or after --preset, a flag of one's own goes before the preset's."""
    for arguments in (
        ["--lr", "0.5", "--d-model", "96", "--preset", "laptop"],
        ["--preset", "laptop", "--lr", "0.5", "--d-model", "96"],
    ):
        flags = flags_of(*arguments)
        assert flags.training.lr == 0.5
        assert (flags.model.d_model, flags.model.d_mlp, flags.model.d_head) == (96, 384, 32)
        assert flags.training.optimizer == "muon"


def test_an_unknown_preset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is no preset ends with exit code 2 and the names there are."""
    assert main(["train", "--preset", "desktop"]) == 2

    assert "laptop" in capsys.readouterr().err
