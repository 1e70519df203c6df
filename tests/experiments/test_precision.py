"""The precision experiment: it trains what is missing, compares, and judges."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pvml.errors import PvmlError


@pytest.fixture(scope="module")
def precision(root: Path) -> ModuleType:
    path = root / "experiments" / "precision.py"
    spec = importlib.util.spec_from_file_location("precision", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["precision"] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def args(precision: ModuleType, tmp_path: Path) -> Any:
    """One seed, three steps of a tiny model."""
    return precision.Args(
        data="storybook:60",
        tokenizer="bpe:270",
        n_held_out=5,
        steps=3,
        seeds=(4,),
        d_model=6,
        n_layers=1,
        n_heads=2,
        n_ctx=13,
        batch_size=2,
        run_dir=tmp_path,
    )


def test_each_way_is_trained_once(precision: ModuleType, args: Any, capsys: Any) -> None:
    """Three runs, in the arithmetic and pieces of their names, and not again when asked again."""
    assert precision.main(args) == 0
    *_, line = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    ways = {"float32": ("float32", None), "again": ("float32", 2), "bfloat16": ("bfloat16", None)}
    for name, way in ways.items():
        run = precision.RunDir.open(args.run_dir / f"{name}-seed4")
        assert (run.args["precision"], run.args["accumulate"]) == way
        assert told["runs"][0][name] == run.summary()["final_held_out_loss"]
    before = {path: path.stat().st_mtime_ns for path in args.run_dir.glob("*/summary.json")}
    assert len(before) == 3
    assert precision.main(args) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_difference_of_a_hundredth_is_too_much(
    precision: ModuleType, args: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, whichever of the two is better; what rounding alone does is told beside it."""
    for worse in (0.01, -0.011):
        losses = {"seed": 4, "float32": 2.0, "again": 2.003, "bfloat16": 2.0 + worse}
        row = {**losses, "difference": worse, "rounding": 0.003}
        monkeypatch.setattr(precision, "finished_run", lambda flags: None)
        monkeypatch.setattr(precision, "require_same_material", lambda runs: None)
        monkeypatch.setattr(precision, "compared", lambda seed, runs: row)
        assert precision.main(args) == 1
        told = capsys.readouterr().out
        assert "in the mean of 1 seeds: NO" in told and f"{worse:+.4f}" in told
        assert "+0.0030" in told


def test_another_experiments_runs_are_not_taken(precision: ModuleType, args: Any) -> None:
    """Runs that lie there with other settings are refused, and what differs is named."""
    precision.main(args)
    with pytest.raises(PvmlError, match="d_model 8 .the run: 6."):
        precision.main(replace(args, d_model=8))


def test_too_little_text_is_told(precision: ModuleType, args: Any) -> None:
    """A corpus with fewer batches than steps does not pass for a whole run."""
    with pytest.raises(PvmlError, match=r"is used up after \d+ steps, and 5,000 were asked for"):
        precision.main(replace(args, data="storybook:12", steps=5000))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seeds": ()}, "--seeds names no seed"),
        ({"seeds": (0, 2, 0)}, "--seeds names 0 twice"),
        ({"threads": 0}, "--threads must be 1 to 1,024, got 0"),
    ],
)
def test_bad_use_is_told(precision: ModuleType, args: Any, changes: Any, told: str) -> None:
    """A seed given twice would count twice in the mean; nothing is trained."""
    with pytest.raises(PvmlError, match=told):
        precision.main(replace(args, **changes))
    assert not list(args.run_dir.iterdir())
