"""What a model returns is judged beside what it names: watched, and when nobody looks."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.modules.normalization import LayerNorm
from pvml.parity.check import check


def _rolled(module: Any, args: Any, out: Tensor) -> Tensor:
    return out.roll(1, -1)


@pytest.mark.parametrize("whole", [False, True], ids=["unembed", "model"])
@pytest.mark.parametrize("dtype", [t.float64, t.bfloat16], ids=str)
def test_what_is_returned_is_judged(draw: Any, ids: Tensor, dtype: t.dtype, whole: bool) -> None:
    """Every named tensor is right, and a hook changes the answer after the last name: it fails."""
    model = draw(dtype)
    (model if whole else model.unembed).register_forward_hook(_rolled)
    report = check(model, ids)
    assert all(row.ok for row in report.rows) and not report.ok
    assert report.first_bad == report.returned[0]
    assert "66 of 66" in report.summary() and "what the model returns" in report.summary()
    assert "what the model returns" in report.table(only_bad=True)


def test_a_pass_that_nobody_looks_at_is_judged(
    draw: Any, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right while something listens, wrong otherwise: what is used is what is checked."""
    norm = LayerNorm.forward

    def without_b(self: LayerNorm, x: Tensor) -> Tensor:
        return norm(self, x) if self.tap.listeners else norm(self, x) - self.b

    monkeypatch.setattr(LayerNorm, "forward", without_b)
    report = check(draw(), ids)
    assert all(row.ok for row in (*report.rows, report.returned[0])) and not report.ok
    assert "what it returns when nobody looks" in report.summary()


def test_what_is_no_tensor_is_no_answer(draw: Any, ids: Tensor) -> None:
    """A pass that returns something else than logits is wrong, and says what it returned."""
    model = draw()
    model.register_forward_hook(lambda module, args, out: (out, 1))
    report = check(model, ids)
    assert not report.ok and "tuple is no tensor" in report.summary()
