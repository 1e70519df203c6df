"""A verification as text: a line for every tensor, both ways, and who judged it."""

from typing import Any

from torch import Tensor

from pvml.parity.verification import MODULES, TENSORS, WHOLE
from pvml.parity.verification_text import table, verdict
from pvml.parity.verifying import verify


def test_the_table_has_a_line_for_every_tensor(draw: Any, by: Any, ids: Tensor) -> None:
    """Name, shape, both ways' three numbers, and a verdict that says who judged."""
    model = draw(b_U=False)
    found = verify(model, ids, by("hf", model), backward=True)
    first, second = table(found).split("\n\n")
    assert first.startswith("named tensors: 66 of 66 agree\n")
    lines = {line.split()[0]: line for line in first.splitlines()[3:]}
    assert list(lines) == [row.name for row in found[TENSORS].whole]
    assert lines["blocks.0.attn.z"].endswith("  ok")
    assert lines["blocks.0.attn.mask"].endswith("  ok (float64)")
    assert MODULES in first and WHOLE in first
    assert second.startswith("gradients: ")
    assert table(found, only_wrong=True).splitlines()[0] == "named tensors: 66 of 66 agree"
    assert len(table(found, only_wrong=True).splitlines()) == 3
    assert "closest to the limit" in verdict(found)
