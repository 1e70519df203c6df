"""The benchmark of circuits: its peer finds what ours does, limits judge, a survey goes on."""

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pvml.config import Config

Import = Callable[[str], Any]


@pytest.fixture
def benchmarks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports a module of the folder, as a script in it would."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("peers", "card", "circuits"):
            del sys.modules[name]


def test_verdicts_by_hand(benchmarks: Import) -> None:
    """Ratios are medians of the rounds' own; what was not measured is not kept."""
    circuits = benchmarks("circuits")
    race = circuits.Race(grew=300 << 20)
    race.rounds = [
        {"top": 2.0, "bare": 1.0, "eigen": 20.0},
        {"top": 3.0, "bare": 2.0, "eigen": 50.0},
        {"top": 9.0, "bare": 5.0, "eigen": 100.0},
    ]
    shape = circuits.Shape(
        cfg=Config(),
        ratios={("eigen", "bare"): 20.0, ("eigen", "lens"): 1.0},
        at_most={("top", "bare"): 1.75},
        mib=256.0,
    )
    told = [(v.measured, v.ok) for v in circuits.judge(shape, race)]
    assert told == [(20.0, True), (None, False), (1.8, False), (300.0, False)]
    assert race.seconds("top") == 3.0


def test_a_peer_that_finds_something_else_is_refused(benchmarks: Import) -> None:
    """Scores to a thousandth of the largest, and as many."""
    circuits = benchmarks("circuits")
    race = circuits.Race()
    race.take("eigenvalues, ours", [0.5, -1.0])
    race.take("eigenvalues, lens", [0.5009, -1.0])
    for other in ([0.502, -1.0], [0.5], [0.5, float("nan")]):
        with pytest.raises(circuits.ContestantError, match="eigenvalues: lens found .* not read"):
            race.take("eigenvalues, lens", other)


def test_as_many_tokens_as_fit(benchmarks: Import) -> None:
    """The square of float32 numbers that the memory holds, at most the vocabulary."""
    circuits = benchmarks("circuits")
    assert circuits.dense_tokens(50257, 4.0) == 32768
    assert circuits.dense_tokens(500, 4.0) == 500
    assert 0 < circuits.dense_tokens(50257, None) <= 50257


def test_the_script_races_processes(root: Path) -> None:
    """A tiny race through the command: a card, a line of JSON, exit code 0."""
    lens = importlib.util.find_spec("transformer_lens") is not None
    command = [sys.executable, "benchmarks/circuits.py", "--shape", "tiny", "--rounds", "1"]
    command += ["--threads", "1", "--dense-gib", "0.0002"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *card, line = done.stdout.splitlines()
    assert card[0].startswith("Reading circuits: d12, 2 layers, 3 heads, 500 tokens")
    told = json.loads(line)
    titles = {title.rpartition(", ")[0] for title in told["seconds"] if title.endswith("lens")}
    assert titles == ({"eigenvalues", "row top of 231 tokens"} if lens else set())
    assert (told["skipped"] is None) is lens
    assert all(seconds > 0 for seconds in told["seconds"].values())


def test_a_survey_goes_on(root: Path, tmp_path: Path) -> None:
    """Stopped after two circuits, then given again: the rest is scanned, and nothing twice."""
    command = [sys.executable, "benchmarks/survey.py", str(tmp_path / "s"), "--layers", "1"]
    command += ["--d-vocab", "300", "--threads", "1"]

    def told(*more: str) -> Any:
        done = subprocess.run(
            [*command, *more], cwd=root, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first, second = told("--most", "2"), told()
    assert (first["circuits"], first["missing"]) == (2, 22)
    assert (second["circuits"], second["missing"]) == (22, 0)
    assert second["seconds"] > 0 and second["grew_bytes"] > 0
