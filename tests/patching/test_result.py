"""What a sweep found: normalised between the prompts, told in words, kept in a file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.errors import PvmlError, RunDirError
from pvml.patching.metric import LogitDifference, described
from pvml.patching.result import Patched

FOUND = Patched(
    over="z",
    direction="denoising",
    metric="logit of ' rain' minus logit of ' cake' at the last position (nats)",
    axes=("layer", "head"),
    shape=(2, 3),
    numbers=(-1.0, -1.0, 0.0, 3.0, -2.0, 1.0),
    clean=3.0,
    corrupted=-1.0,
    clean_tokens=("<|endoftext|>", " rain", " ball"),
    corrupted_tokens=("<|endoftext|>", " cake", " ball"),
    n_prompts=1,
)


def test_values_lie_between_the_prompts() -> None:
    """By hand: 0 is the corrupted prompt's -1, 1 the clean one's 3, and below 0 there is more."""
    assert FOUND.values.tolist() == [[-1, -1, 0], [3, -2, 1]]
    assert FOUND.normalised.tolist() == [[0, 0, 0.25], [1, -0.25, 0.5]]
    assert [cell.place for cell in FOUND.largest(4)] == [(1, 0), (1, 2), (0, 2), (1, 1)]
    noised = replace(FOUND, direction="noising")
    assert (noised.base, noised.largest(1)[0].place, noised.largest(1)[0].effect) == (
        1.0,
        (1, 1),
        -1.25,
    )


def test_the_table_lists_what_changes_most() -> None:
    """A line for each, with the metric, its place between the prompts, and the change."""
    assert FOUND.table(3).splitlines() == [
        "patch      metric  normalised  change",
        "head 1.0   +3.000      +1.000  +1.000",
        "head 1.2   +1.000      +0.500  +0.500",
        "head 0.2   +0.000      +0.250  +0.250",
        "and 3 that change less",
    ]
    assert "that change less" not in FOUND.table(6)
    with pytest.raises(PvmlError, match="give at least 1"):
        FOUND.table(0)


@pytest.mark.parametrize(
    ("axes", "place", "name"),
    [
        (("layer", "head"), (1, 2), "head 1.2"),
        (("layer", "position"), (1, 2), "layer 1, position 2 ' ball'"),
        (("layer", "position"), (0, 1), "layer 0, position 1 ' rain'/' cake'"),
        (
            ("layer", "head", "position"),
            (1, 0, 1),
            "head 1.0, position 1 ' rain'/' cake'",
        ),
    ],
)
def test_cells_have_names(axes: Any, place: Any, name: str) -> None:
    """A head as one writes it, a position with its token, both tokens where the prompts differ."""
    shape = (2, 3, 3)[: len(axes)]
    many = replace(FOUND, axes=axes, shape=shape, numbers=(0.0,) * len(t.zeros(shape).flatten()))
    assert many.name_of(place) == name
    assert replace(many, n_prompts=2).name_of(place) == name.partition(" '")[0]


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    """Equal in every field; what no sweep wrote is refused by name."""
    path = FOUND.save(tmp_path / "found.json")
    saved = json.loads(path.read_text())

    assert Patched.load(path) == FOUND
    for damaged, complaint in (
        ({**saved, "format": "other"}, "is no 'pvml activation patching 1'"),
        ({**saved, "shape": [2, 2]}, r"6 numbers do not fill cells of shape \(2, 2\)"),
        ({**saved, "numbers": [None] * 6}, r"found.json.numbers\[0\] is damaged: expected float"),
        ({**saved, "direction": "up"}, "expected one of denoising, noising"),
        ({"format": saved["format"]}, "found.json is damaged: expected an object of axes"),
    ):
        path.write_text(json.dumps(damaged))
        with pytest.raises(PvmlError, match=complaint):
            Patched.load(path)
    with pytest.raises(RunDirError, match="nowhere.json is missing"):
        Patched.load(tmp_path / "nowhere.json")


def test_metrics_have_words() -> None:
    """A logit difference says of what, and where; a function is called by its name."""
    assert LogitDifference(answer=1, wrong=2, position=4).described("abc".__getitem__) == (
        "logit of b minus logit of c at position 4 (nats)"
    )
    assert LogitDifference(answer=(1,), wrong=(2, 0)).described() == (
        "logit of token 1 minus logit of each of 2 tokens at the last position (nats)"
    )
    assert LogitDifference(answer=[1, 2], wrong=3) == (LogitDifference(answer=(1, 2), wrong=3))
    assert described(float, str) == "float"


def test_a_logit_difference_is_a_function_of_logits() -> None:
    """By hand: the mean over prompts of one column minus the other, at the position."""
    logits = t.arange(24.0).view(2, 3, 4) ** 2
    assert LogitDifference(answer=3, wrong=1)(logits) == ((121 - 81) + (529 - 441)) / 2
    assert (
        LogitDifference(answer=(3, 0), wrong=1, position=0)(logits) == ((9 - 1) + (144 - 169)) / 2
    )
