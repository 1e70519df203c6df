"""State dicts of other programs: prefixes go, every fault is told, buffers are no weights."""

import pytest
import torch as t

from pvml.errors import PvmlError
from pvml.reference.state_dicts import Converted, Origin, bare_names, faults, same_names


def test_two_spellings_of_one_name_are_refused() -> None:
    """Wrappers' parts go wherever they stand, but not a last part that is called so."""
    assert bare_names(["module.a._orig_mod.b", "c.module"]) == {
        "a.b": "module.a._orig_mod.b",
        "c.module": "c.module",
    }
    with pytest.raises(PvmlError, match=r"two tensors are called a once 'module\.a' has lost"):
        bare_names(["a", "module.a"])


def test_faults_are_sorted_and_complete() -> None:
    """All four kinds in one sentence; a long list is cut, and says by how much."""
    given = {"b": t.zeros(2), "x": t.zeros(1), "i": t.zeros(3, dtype=t.int64)}
    told = faults(given, {"a": (1,), "b": (3,), "i": (3,)})

    assert told == (
        "missing: a; unexpected: x; wrong shape: b (2,) instead of (3,); "
        "no numbers to compute with: i (int64)"
    )
    assert faults({}, {f"n{i}": (1,) for i in range(700)}).endswith(" and 200 more")
    assert faults({"a": t.zeros(1)}, {"a": (1,)}) == ""


def test_buffers_are_told_apart_from_weights() -> None:
    """Only a last part that is exactly mask or IGNORE is a buffer; the rest keep their keys."""
    state = {name: t.zeros(1) for name in ("module.a.w", "a.mask", "IGNORE", "mask.w", "a.masks")}
    converted = same_names(state)

    assert [origin[:2] for origin in converted.origins] == [
        ("a.w", "module.a.w"),
        ("mask.w", "mask.w"),
        ("a.masks", "a.masks"),
    ]
    assert sorted(converted.ignored) == ["IGNORE", "a.mask"]


def test_a_replaced_tensor_tells_both_steps() -> None:
    """What is done to a tensor later is told after what was done before."""
    converted = Converted(
        {"a": t.zeros(2), "b": t.zeros(2)},
        [Origin("a", "x", "as it is"), Origin("b", "y", "transposed")],
        {},
    )
    for name in ("a", "b"):
        converted.replacing(name, t.zeros(1), "cut")

    assert [origin.done for origin in converted.origins] == ["cut", "transposed, cut"]
    assert converted.weights["a"].shape == (1,)
