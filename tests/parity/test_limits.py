"""How much may differ in float64: just below the limit agrees, just above it does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from pvml.parity import check as checking
from pvml.parity.check import Report, check, compare, float64_allowed
from pvml.parity.verification import GRADIENTS, TENSORS
from pvml.parity.verification_text import verdict
from pvml.parity.verifying import verify
from pvml.trace.tap import listen

SIZES = pytest.mark.parametrize(
    ("large", "limit"), [(10**7, 1e-12), (1, 1e-10)], ids=["small", "large"]
)
"""From how many parameters on a model is taken for large, and what is allowed for a tiny one."""
AROUND = pytest.mark.parametrize(("share", "ok"), [(0.9, True), (1.1, False)])


@pytest.mark.parametrize(
    ("n_parameters", "units"), [(9_999_999, 4503), (10_000_000, 450_359)], ids=["1e-12", "1e-10"]
)
def test_the_limits_by_hand(n_parameters: int, units: int) -> None:
    """1e-12 is 4503.6 times 2^-52, the unit of 1: so many units off 1 agree, and one more do not.

    From ten million parameters on it is 1e-10, and so a hundred times as many.
    """
    allowed = float64_allowed({"W": np.broadcast_to(0.0, n_parameters - 3), "b": np.zeros(3)})
    for off, ok in ((units, True), (units + 1, False)):
        for sign in (1, -1):
            ours = {"x": np.array([0.5, 1.0 + sign * off * 2.0**-52])}
            rows = compare(ours, {"x": np.array([0.5, 1.0])}, allowed)
            assert rows[0].ulps == off
            assert Report(rows=rows, dtype="float64").ok == ok


def test_what_is_just_allowed_agrees() -> None:
    """A difference of the allowance itself is rounding; one beyond it is not, however little."""
    for allowed, ok in ((0.125, True), (float(np.nextafter(0.125, 0)), False)):
        (row,) = compare({"x": np.array([3.5])}, {"x": np.array([4.0])}, allowed)
        assert row.relative == 0.125 and row.ok == ok


@SIZES
@AROUND
def test_a_check_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
    draw: Any,
    ids: Tensor,
    large: int,
    limit: float,
    share: float,
    ok: bool,
) -> None:
    """Logits a tenth less off than is allowed pass, and a tenth more do not."""
    monkeypatch.setattr(checking, "LARGE", large)
    model, by = draw(n_layers=1), 1 + share * limit
    model.register_forward_hook(lambda module, args, out: out * by)
    report = check(model, ids)
    for row in report.returned:
        assert row.relative == pytest.approx(share * limit, rel=0.01)
    assert len(report.returned) == 2
    assert report.ok == ok, report.summary()


@contextmanager
def off(model: Any, what: str, by: float) -> Iterator[str]:
    """Within it, the last tensor of the pass, or a gradient that nothing depends on, is off."""
    if what == TENSORS:
        name = "unembed.logits"
        with listen(model, name, lambda _, x: x * by, edits=True):
            yield name
    else:
        name = "blocks.0.mlp.W_in"
        hook = model.get_parameter(name).register_hook(lambda gradient: gradient * by)
        yield name
        hook.remove()


@SIZES
@AROUND
@pytest.mark.parametrize("what", [TENSORS, GRADIENTS])
def test_a_verification_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
    draw: Any,
    by: Any,
    ids: Tensor,
    what: str,
    large: int,
    limit: float,
    share: float,
    ok: bool,
) -> None:
    """So does `pvml verify`, both ways; what is above is no rounding when looked at once more."""
    monkeypatch.setattr(checking, "LARGE", large)
    model = draw(n_layers=1)
    reference = by("float64", model)
    with off(model, what, 1 + share * limit) as name:
        found = verify(model, ids, reference, backward=what == GRADIENTS)
    (row,) = (row for row in found[what].whole if row.name == name)
    assert row.relative == pytest.approx(share * limit, rel=0.01)
    assert found.ok == ok, verdict(found)
    assert ok or (found.finding is not None and found.finding.row.name == name)
