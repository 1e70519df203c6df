"""Errors in a narrow type, the model's beside the reference's: ratios by hand, and a rule."""

from dataclasses import replace
from typing import Any

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.parity.check import Row, move_off_defaults
from pvml.parity.references import reference_for
from pvml.parity.rounding import error_ratios
from pvml.parity.verification import GRADIENTS, TENSORS, Section, Verification
from pvml.parity.verifying import verify


def row(name: str, relative: float) -> Row:
    return Row(
        name=name, shape=(2,), max_abs_diff=relative, relative=relative, ulps=0.0, allowed=1.0
    )


def narrow(ours: dict[str, float], theirs: dict[str, float]) -> Verification:
    rows = tuple(row(name, error) for name, error in ours.items())
    section = Section(title=TENSORS, modules=(), whole=rows, rounding=theirs)
    return Verification(title="it", short="it", dtype="float32", sections=(section,))


def test_ratios_by_hand() -> None:
    """Ratios 1, 3 and 2 have the median 2; what is exact on both sides has none."""
    found = error_ratios(
        narrow({"a": ours, "b": 0.0}, {"a": theirs, "b": 0.0})
        for ours, theirs in ((1e-7, 1e-7), (3e-7, 1e-7), (2e-7, 1e-7))
    )
    a, b = found.rows
    assert a.ratios == (1.0, pytest.approx(3.0), 2.0) and a.typical == 2.0
    assert b.ratios == () and b.typical == 1.0
    assert (found.models, found.typical, found.worst.name) == (3, 2.0, "a")
    assert found.largest == (pytest.approx(3.0), "a")
    assert not found.ok and "FURTHER" in found.verdict()
    assert [line.split()[0] for line in found.table().splitlines()] == ["tensor", "a"]


@pytest.mark.parametrize(
    ("ours", "theirs", "ok"),
    [
        ({"a": 1e-7, "b": 1e-7, "c": 2e-7}, {"a": 1e-7, "b": 1e-7, "c": 1e-7}, True),
        ({"a": 1.2e-7, "b": 1.2e-7, "c": 1e-7}, {"a": 1e-7, "b": 1e-7, "c": 1e-7}, False),
        ({"a": 1e-7, "b": 1e-7, "c": 2.1e-7}, {"a": 1e-7, "b": 1e-7, "c": 1e-7}, False),
        ({"a": 1e-7, "b": 2e-7}, {"a": 1e-7, "b": 0.0}, False),
        ({"a": 1e-7, "b": 1e-7, "c": 1e-7}, {"a": 1e-7, "b": 0.0, "c": 1e-7}, True),
        ({"a": 1e-7, "b": float("inf")}, {"a": 1e-7, "b": 1e-7}, False),
    ],
    ids=["at most 2", "the median", "one tensor", "beside an exact one", "near it", "infinite"],
)
def test_the_rule(ours: dict[str, float], theirs: dict[str, float], ok: bool) -> None:
    """The median ratio is at most 1.1, and no tensor's above 2."""
    assert error_ratios([narrow(ours, theirs)]).ok == ok


def test_whose_errors_they_are_is_told() -> None:
    """Of what the reference does not show, NumPy's; without a word where it shows all."""
    found = narrow({"a": 1e-7, "b": 1e-7, "c": 1e-7}, {"a": 1e-7, "b": 1e-7, "c": 1e-7})
    assert "does not show" not in error_ratios([found]).verdict()
    some = error_ratios([replace(found, reached=frozenset({"a"}))]).verdict()
    assert "(of 2 tensors, which it does not show, over those of NumPy's float32)" in some


def test_float64_has_no_rounding_to_compare() -> None:
    """Nothing to compare, and float64, are refused."""
    for found in ([], [narrow({"a": 1e-16}, {})]):
        with pytest.raises(PvmlError, match="float32"):
            error_ratios(found)


def test_float32_is_as_near_the_truth_as_the_reference() -> None:
    """Over seeds, errors of the model and of the reference are alike, backwards too."""
    sizes: dict[str, Any] = {"d_model": 21, "n_heads": 3, "n_layers": 1, "n_ctx": 17}
    found = []
    for seed in range(3):
        model = move_off_defaults(Transformer(Config(**sizes, d_vocab=53), seed=seed), seed)
        ids = t.randint(53, (2, 17), generator=t.Generator().manual_seed(seed))
        found.append(verify(model, ids, reference_for(model, "float64"), backward=True))
    ratios = error_ratios(found)
    assert ratios.models == 3 and 0.5 < ratios.typical < 1.5
    names = {row.name for row in ratios.rows}
    assert "unembed.logits" in names and "d blocks.0.attn.W_Q" in names
    assert {section.title for section in found[0].sections} == {TENSORS, GRADIENTS}
