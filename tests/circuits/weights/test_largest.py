"""Places of the largest are those of a stable sort, whatever ties there are."""

import pytest
import torch as t

from pvml.circuits.weights.largest import first_largest, largest_in_groups


def test_zeros_of_both_signs_and_infinities_are_in_order() -> None:
    """0.0 and -0.0 tie; the infinities are first and last."""
    x = t.tensor([[-0.0, 1.0, 0.0, -t.inf, t.inf, -1.0, 1.0]])

    assert first_largest(x, 7).tolist() == [[4, 1, 6, 0, 2, 5, 3]]


@pytest.mark.parametrize("m", [1, 9, 160, 161, 500, 703, 704, 2000])
@pytest.mark.parametrize("kind", ["real", "tied", "equal", "-inf"])
def test_they_are_those_of_a_stable_sort(m: int, kind: str) -> None:
    """On every way that a width can take, with few, many and nothing but ties."""
    x = t.randn(50, m, generator=t.Generator().manual_seed(m), dtype=t.float32)
    if kind == "tied":
        x = (x * 3).round()
    elif kind != "real":
        x = t.full_like(x, 1.0 if kind == "equal" else -t.inf)
    for k in (1, 10, m):
        wanted = x.argsort(dim=-1, descending=True, stable=True)[:, :k]
        assert t.equal(first_largest(x, min(k, m)), wanted)
        if m % 4 == 0:
            found = largest_in_groups(x, x.view(50, -1, 4).amax(-1), min(k, m))
            assert t.equal(found, wanted)
