"""The certificate: what it takes for the same, and what makes it fail."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.export.certificate import Certificate, Comparison, _as_likely, _same_text, certify
from pvml.export.form import Form, Reading, Source

ROW: dict[str, Any] = {
    "read_as": "a class",
    "dtype": "float64",
    "max_abs_diff": 2e-13,
    "relative": 1e-14,
    "allowed": 1e-12,
    "argmax_equal": 5,
    "positions": 5,
    "same_greedy": True,
}


def certificate(*rows: dict[str, Any], **changes: Any) -> Certificate:
    facts: dict[str, Any] = {
        "form": "hf",
        "library": "a library 1.0",
        "torch": "2",
        "pvml": "0",
        "stored_as": "float32",
        "tokens": (1, 2, 3),
        "greedy_prompt": (1,),
        "greedy": (4, 5),
        "comparisons": tuple(Comparison(**{**ROW, **row}) for row in rows),
        "same_ids": True,
    }
    return Certificate(**{**facts, **changes})


@pytest.mark.parametrize(
    ("rows", "changes", "passed"),
    [
        ([{}], {}, True),
        ([{}, {"allowed": None, "relative": 0.3, "argmax_equal": 0}], {}, True),
        ([{"same_greedy": None}], {"same_ids": None}, True),
        ([{"relative": 2e-12}], {}, False),
        ([{"relative": float("nan")}], {}, False),
        ([{"relative": float("inf"), "allowed": float("inf")}], {}, False),
        ([{"argmax_equal": 4}], {}, False),
        ([{"same_greedy": False}], {}, False),
        ([{}], {"same_ids": False}, False),
        ([{}], {"padded_first": 1}, False),
        ([{"allowed": None}], {}, False),
        ([], {}, False),
    ],
)
def test_what_passes(rows: list[dict[str, Any]], changes: dict[str, Any], passed: bool) -> None:
    """One judged row at least, all of them right, the same ids, and no padding in front."""
    made = certificate(*rows, **changes)
    assert made.passed is passed
    assert made.text().endswith("passed" if passed else "FAILED")
    assert made.to_dict()["passed"] is passed


def test_the_text_tells_each_comparison() -> None:
    """Which dtype, read as what, how far off, and whether it was judged."""
    rows = ({"dtype": "float32", "allowed": None, "relative": 3e-7}, {"relative": 1e-3})
    assert certificate(*rows).text().splitlines() == [
        "a library 1.0 has read it back; logits of 3 tokens beside PvML's:",
        "dtype    read as  max abs diff  relative  allowed      same argmax",
        "float32  a class  2.0e-13       3.0e-07   not judged   5 of 5",
        "float64  a class  2.0e-13       1.0e-03   1e-12 WRONG  5 of 5",
        "the 2 tokens that its greedy generate writes: float32: the same, float64: the same",
        "its tokenizer gives the same ids for 3 texts",
        "FAILED",
    ]


def test_a_tie_is_no_difference() -> None:
    """Of two tokens as likely to rounding either is the likeliest; a third one is not."""
    logits = t.tensor([[1.0, 8.0, 8.0 - 1e-6, 7.9]])
    for token, same in ((1, True), (2, True), (3, False)):
        assert bool(_as_likely(logits, t.tensor([token]))) is same


def test_texts_are_the_same_up_to_a_tie() -> None:
    """What follows another choice of a tie cannot be compared; another length is another text."""
    steps = [t.tensor([0.0, 5.0, 5.0]), t.tensor([9.0, 0.0, 0.0])]
    assert _same_text([1, 0], [1, 0], steps)
    assert _same_text([1, 0], [2, 2], steps)
    assert not _same_text([1, 0], [1, 2], steps)
    assert not _same_text([1, 0], [0, 0], steps)
    assert not _same_text([1, 0], [1], steps)
    assert not _same_text([1, 0], [7, 0], steps)


def test_sharp_attention_rounds_more_and_a_mistake_is_still_one(
    make_loaded: Callable[..., Any],
) -> None:
    """Queries and keys 100 times as large: 1.2e-12 is float64's rounding, and 1e-6 is not."""
    loaded = make_loaded(t.float64)
    plain = deepcopy(loaded.model)
    with t.no_grad():
        for block in loaded.model.blocks:
            block.attn.W_Q.mul_(100)
            block.attn.W_K.mul_(100)

    def certified(model: Any, off: float) -> Certificate:
        def logits(tokens: t.Tensor) -> t.Tensor:
            right = model(tokens).detach()
            return right + off * right.abs().max()

        form = Form(
            title="a library",
            tag="a-library",
            reasons=lambda cfg, weights: [],
            require_library=lambda: "a library 1.0",
            write=lambda source, folder: None,
            read=lambda folder, dtype: [Reading(how="a class", logits=logits)],
            encode=None,
            opening="",
        )
        source = Source(
            cfg=model.cfg,
            weights=model.state_dict(),
            dtype=t.float64,
            tokenizer=loaded.tokenizer,
            rows=model.cfg.d_vocab,
        )
        return certify(source, "hf", form, Path())

    sharp = certified(loaded.model, 1.2e-12)
    assert sharp.passed and 1.2e-12 < sharp.comparisons[-1].allowed < 1e-6
    assert not certified(loaded.model, 1e-6).passed
    assert not certified(plain, 1.2e-12).passed
