"""A verification as text: a line for every tensor, both ways, and who judged it."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from pvml.parity.check import Row
from pvml.parity.verification import MODULES, TENSORS, WHOLE, Section, Verification
from pvml.parity.verification_text import table, verdict
from pvml.parity.verifying import verify


def test_the_table_has_a_line_for_every_tensor(draw: Any, by: Any, ids: Tensor) -> None:
    """Name, shape, both ways' three numbers, and a verdict that says who judged."""
    model = draw(b_U=False)
    found = verify(model, ids, by("hf", model), backward=True)
    first, second = table(found).split("\n\n")
    assert first.startswith("named tensors: 66 of 66 agree\n")
    *rows, below = first.splitlines()[3:]
    lines = {line.split()[0]: line for line in rows}
    assert list(lines) == [row.name for row in found[TENSORS].whole]
    assert lines["blocks.0.attn.z"].endswith("  ok")
    assert lines["blocks.0.attn.mask"].endswith("  ok (formulae)")
    assert below == (
        "(formulae): Hugging Face's GPT2LMHeadModel does not show this tensor, and the float64 "
        "NumPy reference judges it"
    )
    assert "(formulae)" not in second and "(formulae)" not in table(found, only_wrong=True)
    assert MODULES in first and WHOLE in first
    assert second.startswith("gradients: ")
    assert table(found, only_wrong=True).splitlines()[0] == "named tensors: 66 of 66 agree"
    assert len(table(found, only_wrong=True).splitlines()) == 3
    assert "closest to the limit" in verdict(found)


def row(name: str, relative: float) -> Row:
    return Row(
        name=name, shape=(2,), max_abs_diff=relative, relative=relative, ulps=1.0, allowed=0.5
    )


def test_the_verdict_counts_who_judged_by_hand() -> None:
    """a and b are the reference's, b wrong; c, d, e the formulae's, d wrong in its module alone."""
    names = "abcde"
    section = Section(
        title=TENSORS,
        modules=tuple(row(name, 0.6 if name == "d" else 0.1) for name in names),
        whole=tuple(row(name, 0.6 if name == "b" else 0.1) for name in names),
    )
    found = Verification(
        title="it", short="it", dtype="float64", sections=(section,), reached=frozenset("ab")
    )
    head, second, *_ = verdict(found).splitlines()
    assert head == "1 of 2 named tensors agree with it (float64)"
    assert second == (
        "2 of 3 named tensors, which it does not show, agree with the float64 NumPy reference"
    )
    marks = [line.split("  ")[-1] for line in table(found).splitlines()[3:-1]]
    assert marks == ["ok", "WRONG", "ok (formulae)", "WRONG (formulae)", "ok (formulae)"]
    alone = replace(found, reached=frozenset())
    assert verdict(alone).splitlines()[0] == "3 of 5 named tensors agree with it (float64)"
    assert "which it does not show" not in verdict(alone) and "(formulae)" not in table(alone)
