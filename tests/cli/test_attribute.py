"""`pvml attribute | lens`: what they print, as text and as JSON, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.main import main

CPU = ["--device", "cpu"]


@pytest.fixture
def asked(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command on a small trained model; its exit code, stdout and stderr."""

    def ask(command: str, *flags: str) -> tuple[int, str, str]:
        code = main([command, str(finished_run), "Tom saw a cat.", *flags, *CPU])
        return code, *capsys.readouterr()

    return ask


def test_attribute_prints_parts_that_add_up(asked: Any, tmp_path: Path) -> None:
    """The largest parts, a sum that is the model's own, what was frozen, and a picture."""
    code, out, _ = asked("attribute", "--top", "4", "--plot", str(tmp_path / "bars.png"))

    assert code == 0
    lines = {line[:16].strip(): line for line in out.splitlines()}
    assert lines["sum"].split()[1] == lines["the model's own"].split()[3]
    assert "others" in out
    assert "Frozen: ln_final's standard deviation." in " ".join(out.split())
    assert (tmp_path / "bars.png").stat().st_size > 1000


def test_attribute_as_json(asked: Any) -> None:
    """All parts with their numbers, which add up to the difference of logits that was asked for."""
    code, out, _ = asked("attribute", "--json", "--answer", " a", "--minus", "t")
    found = json.loads(out)

    assert code == 0
    assert (found["answer"], found["minus"]) == (" a", "t")
    assert sum(part["nats"] for part in found["parts"]) == pytest.approx(found["logit"], abs=1e-5)
    assert {part["kind"] for part in found["parts"]} == {"direct", "head", "bias"}


def test_lens_prints_a_row_for_each_stream(asked: Any) -> None:
    """Two layers have three streams; the last says what the model says."""
    code, out, _ = asked("lens")
    assert code == 0
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(("0_", "1_", "final"))]
    assert rows == ["0_pre", "1_pre", "final_post"]
    assert "divided by its own standard deviation" in out

    code, out, _ = asked("lens", "--json", "--answer", " a", "--scale", "final")
    found = json.loads(out)
    assert [stream["name"] for stream in found["streams"]] == rows
    assert found["scale"] == "final"
    assert found["streams"][-1]["rank"] >= 1


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("attribute", ["--answer", "Tom saw a cat"], "--answer"),
        ("attribute", ["--top", "0"], "--top must be at least 1"),
        ("attribute", ["--position", "99"], "position 99 is not in a sequence"),
        ("attribute", ["--plot", "bars.gif"], "must end in .png or .svg"),
        ("lens", ["--incl-mid"], "attention-only"),
        ("lens", ["--position", "-99"], "position -99"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    asked: Any, command: str, flags: list[str], message: str
) -> None:
    """Bad use is told in a line, by exit code 2."""
    code, _, err = asked(command, *flags)

    assert code == 2
    assert message in " ".join(err.split())
