"""Kept figures: every row is checked before it is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvml.errors import RunDirError


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"bits_per_byte": None}, "bits_per_byte must be a finite number above 0, not 'None'"),
        ({"bits_per_byte": "0.9"}, "bits_per_byte must be a finite number above 0, not '0.9'"),
        ({"seconds": 0}, "seconds must be a finite number above 0, not '0'"),
        ({"tokens": "x"}, "tokens must be a whole number of at least 1, not 'x'"),
        ({"tokens": True}, "tokens must be a whole number of at least 1, not 'True'"),
        ({"tokens": 10**400}, "tokens must be a whole number of at least 1, not '1000"),
        ({"seed": 1.5, "change": 3}, "change must be a text, not '3'; seed must be a whole"),
        ({"command": ["pvml"]}, "command must be a text"),
    ],
)
def test_a_bad_figure_is_told(tmp_path: Path, damage: dict[str, Any], told: str) -> None:
    """By file and line, with what it must be and what to do."""
    import recipes
    from kept import read

    lines = recipes.RESULTS.read_text().splitlines()
    results = tmp_path / "results.jsonl"
    lines[1] = json.dumps({**json.loads(lines[1]), **damage})
    results.write_text("\n".join(lines) + "\n")

    with pytest.raises(RunDirError, match=rf"jsonl, line 2: .*{told}.*Remove the line"):
        read(results, recipes.KEPT)


def test_a_row_that_comes_twice_is_told(tmp_path: Path) -> None:
    """It would count twice in the mean."""
    import recipes
    from kept import read

    first, second, *_ = recipes.RESULTS.read_text().splitlines()
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join([first, second, first]) + "\n")

    with pytest.raises(RunDirError, match="line 3: the row is of the command of an earlier line"):
        read(results, recipes.KEPT)


def test_the_kept_figures_are_sound() -> None:
    """All that come with the project."""
    import laptop
    import recipes
    import reproduce
    from kept import read

    for results, kinds in (
        (recipes.RESULTS, recipes.KEPT),
        (laptop.RESULTS, recipes.KEPT),
        (reproduce.RESULTS, reproduce.KEPT),
    ):
        assert read(results, kinds)
