"""The golden figures and their tests belong together by name, and a wrong figure is noticed."""

import ast
import math
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


def unmatched(names: set[str], sources: list[str]) -> list[str]:
    """What is wrong between figures of these names and the test files, in sentences.

    Of a figure NAME there is a function NAME that computes it, called by `test_NAME`, which is
    marked `network`, and by `test_NAME_offline`, which is not.
    """
    functions = {
        node.name: node
        for source in sources
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    networked = {name for name, node in functions.items() if is_networked(node)}
    wrong = [
        f"{name} has no figure"
        for name in sorted(networked)
        if name.removeprefix("test_") not in names
    ]
    for name in sorted(names):
        if name not in functions:
            wrong.append(f"nothing computes the figure {name}")
        for test in (f"test_{name}", f"test_{name}_offline"):
            if (test in networked) != (test == f"test_{name}"):
                wrong.append(f"{test} is missing, or its mark `network` is wrong")
            if test not in functions or name not in called_by(functions[test]):
                wrong.append(f"{test} does not compute the figure")
    return wrong


def is_networked(function: ast.FunctionDef) -> bool:
    return any("mark.network" in ast.unparse(one) for one in function.decorator_list)


def called_by(function: ast.FunctionDef) -> set[str]:
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def test_each_figure_is_computed_twice(figures: dict[str, Any]) -> None:
    """No figure that nobody computes, no network test without a figure, no path untried offline."""
    others = set(FOLDER.glob("test_*.py")) - {Path(__file__)}

    assert len(others) == 3
    assert unmatched(set(figures), [file.read_text() for file in others]) == []


WHOLE = """
def loss(x): return x

@pytest.mark.network
def test_loss(real, agree): agree(loss(real))

def test_loss_offline(): assert loss(1) == 1
"""


@pytest.mark.parametrize(
    ("names", "source", "wrong"),
    [
        ({"loss"}, WHOLE, []),
        ({"loss", "gain"}, WHOLE, ["nothing computes the figure gain"]),
        (set(), WHOLE, ["test_loss has no figure"]),
        ({"loss"}, WHOLE.replace("loss(real)", "1"), ["test_loss does not compute the figure"]),
        ({"loss"}, WHOLE.replace("loss(1)", "1"), ["test_loss_offline does not compute"]),
        (
            {"loss"},
            WHOLE.replace("@pytest.mark.network", ""),
            ["test_loss is missing, or its mark"],
        ),
        ({"loss"}, WHOLE.replace("_offline", "_else"), ["test_loss_offline does not compute"]),
    ],
)
def test_what_does_not_match_is_named(names: set[str], source: str, wrong: list[str]) -> None:
    """A figure alone, a test alone, a test that computes nothing, a mark or a test that is gone."""
    found = unmatched(names, [source])

    assert bool(found) == bool(wrong)
    assert all(any(line.startswith(start) for line in found) for start in wrong)


def test_figures_explain_themselves(figures: dict[str, Any]) -> None:
    """Each says what it is and which note prints it, and agrees with itself, part by part."""
    for name, figure in figures.items():
        assert figure.what and figure.source, name
        assert figure.at_most is None or (figure.why and figure.within == 0), name
        parts = figure.value if name in ("run_grades", "run_log") else [None]
        for part in parts:
            value = figure.value if part is None else figure.value[part]
            assert figure.disagreements(value, part) == [], name


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"value": 3, "within": 0}, 3, 4),
        ({"value": 0.5, "within": 0.01}, 0.509, 0.52),
        ({"value": 0.5, "within": 0.01}, 0.491, math.nan),
        ({"value": "a", "within": 0}, "a", "b"),
        ({"value": ["a", 1.0], "within": 0.1}, ["a", 1.05], ["a", 1.2]),
        ({"value": ["a", 1.0], "within": 0.1}, ["a", 1.0], ["a"]),
        ({"value": ["a"], "within": 0}, ["a"], "a"),
        (
            {"value": {"x": 1, "y": 2}, "within": {"x": 0, "y": 1}},
            {"x": 1, "y": 3},
            {"x": 2, "y": 2},
        ),
        ({"value": {"x": 1, "y": 2}, "within": 1}, {"x": 1, "y": 2}, {"x": 1}),
        (
            {"value": {"x": 0.0, "y": 3e-5}, "at_most": {"x": 0, "y": 1e-4}},
            {"x": 0.0, "y": 0.0},
            {"x": 1e-9, "y": 0.0},
        ),
        ({"value": {"x": 3e-5}, "at_most": {"x": 1e-4}}, {"x": 9e-5}, {"x": 2e-4}),
        ({"value": {"x": 3e-5}, "at_most": {"x": 1e-4}}, {"x": 9e-5}, {"x": math.nan}),
    ],
)
def test_a_wrong_figure_is_told(
    figures: dict[str, Any], fields: Any, right: Any, wrong: Any
) -> None:
    """Numbers agree within the tolerance, all else exactly; a NaN or a lost part never does."""
    figure = type(next(iter(figures.values())))(what="a figure", source="a note", **fields)

    assert figure.disagreements(right) == []
    assert len(figure.disagreements(wrong)) == 1


def test_a_part_is_compared_alone(figures: dict[str, Any]) -> None:
    """Of a figure of several runs each has its own value and all have one tolerance."""
    figure = figures["run_log"]
    run = "d128-l6-h4-ctx128-20k"
    found = {"loss": 2.0804, "slope": -0.005, "accuracy": 0.517, "minutes": 67.3}

    assert figure.disagreements(found, run) == []
    assert figure.disagreements({**found, "loss": 2.081}, run)[0].startswith("['loss'] is 2.081")
    assert figure.disagreements(found, "d128-l6-h4-ctx128-5k")
