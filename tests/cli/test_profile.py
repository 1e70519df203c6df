"""`pvml profile`: what is profiled, and what is printed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.runs.format import RunDir

SMALL = ["--d-model", "8", "--n-layers", "1", "--n-heads", "2", "--d-vocab", "31"]
SMALL += ["--batch-size", "4", "--steps", "1", "--device", "cpu"]


@pytest.fixture
def profiled(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the command with --json; what it printed."""

    def run(*flags: str) -> dict[str, Any]:
        assert main(["profile", *flags, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert isinstance(told, dict)
        return told

    return run


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """A step and a forward pass, for every n_ctx, with shares; then what doubling costs."""
    assert main(["profile", *SMALL, "--n-ctx", "5", "9"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("d_model 8, n_layers 1, n_heads 2, d_vocab 31, batch_size 4, float32")
    for words in ("a training step", "a forward pass alone", "n_ctx 5", "n_ctx 9", "attention, b"):
        assert words in out
    assert out.count("measured as a whole") == 2 and "100.0%" in out
    assert "clipping" not in out
    assert "n_ctx 18 instead of 9, at equal tokens per step" in out


def test_the_object(profiled: Callable[..., dict[str, Any]]) -> None:
    """With --json everything is there, and the flags reach the recipe."""
    told = profiled(*SMALL, "--n-ctx", "5", "--precision", "bfloat16", "--grad-clip", "1")

    assert told["model"]["d_model"] == 8 and "n_ctx" not in told["model"]
    assert (told["args"]["precision"], told["args"]["grad_clip"]) == ("bfloat16", 1.0)
    assert told["device"] == "cpu" and told["threads"] >= 1
    (one,) = told["profiles"]
    assert (one["n_ctx"], one["batch_size"]) == (5, 4)
    assert sum(one["parts"].values()) == pytest.approx(one["step"])
    doubling = told["doubling"]
    assert doubling["cost"] == pytest.approx(doubling["doubled"] / doubling["step"])


def test_a_runs_model_and_recipe(
    profiled: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run directory says shape and recipe; the recipe can be changed, the shape cannot."""
    tokenizer = Tokenizer.train(["the cat"], 257)
    cfg = Config(d_model=6, n_heads=1, n_layers=1, n_ctx=7, d_vocab=257)
    args = {"batch_size": 3, "device": "cpu"}
    run = RunDir.create(tmp_path / "run", cfg=cfg, tokenizer=tokenizer, args=args)
    told = profiled(str(run.path), "--steps", "1", "--batch-size", "2", "--no-doubling")

    assert told["model"]["d_model"] == 6 and told["doubling"] is None
    assert [one["n_ctx"] for one in told["profiles"]] == [7]
    assert told["args"]["batch_size"] == 2
    assert main(["profile", str(run.path), "--d-vocab", "99"]) == 2
    assert "leave --d-vocab out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--n-ctx", "1"], "n_ctx must be at least 2"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--batch-size", "1", "--n-ctx", "5"], "half of a batch_size of 1"),
        (["--d-model", "9"], "d_model 9 is not a multiple"),
    ],
)
def test_bad_use(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    """What cannot be profiled is told, with exit code 2."""
    assert main(["profile", *SMALL, *flags]) == 2

    assert message in capsys.readouterr().err
