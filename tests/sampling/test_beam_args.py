"""The knobs of a beam search are checked once, at construction."""

import math
import subprocess
import sys
from typing import Any

from pvml.sampling.beam_args import BeamArgs

REFUSED: list[tuple[str, Any, str]] = [
    ("max_new_tokens", 0, "a whole number of at least 1, got 0"),
    ("max_new_tokens", 1.5, "got 1.5"),
    ("num_beams", 0, "a whole number of at least 1, got 0"),
    ("num_beams", 2.0, "got 2.0"),
    ("num_beams", True, "got True"),
    ("num_return_sequences", 0, "a whole number of at least 1, got 0"),
    ("num_return_sequences", 4, "no more texts are kept: got 4 and num_beams 3"),
    ("no_repeat_ngram_size", -1, "a whole number of at least 0, got -1"),
    ("length_penalty", math.nan, "(0 compares sums, 1 means), got nan"),
    ("length_penalty", 10.5, "a number from -10 to 10"),
    ("length_penalty", True, "got True"),
    ("early_stopping", "always", "True, False or \"never\", got 'always'"),
    ("early_stopping", 1, "got 1"),
    ("prepend_bos", 1, "True or False, got 1"),
]


def test_nonsense_is_refused_by_name() -> None:
    """A value that cannot be used is an error that names the field, the value, and what may be."""
    # in a process of its own: the tests' shape hook would refuse a wrong type before we do
    code = f"""
from math import nan
from pvml.sampling.beam_args import BeamArgs
for field, value, _ in {REFUSED!r}:
    try:
        BeamArgs(**{{field: value}})
    except ValueError as refusal:
        print(refusal)
    else:
        print("accepted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    complaints = done.stdout.splitlines()

    assert len(complaints) == len(REFUSED)
    for complaint, (field, _, told) in zip(complaints, REFUSED, strict=True):
        assert complaint.startswith(f"{field} must be ")
        assert told in complaint


def test_the_edges_are_allowed() -> None:
    """One beam, as many texts as beams, both ends of the penalty, all three ways to stop."""
    BeamArgs(num_beams=1, num_return_sequences=1, max_new_tokens=1)
    BeamArgs(num_beams=3, num_return_sequences=3)
    for penalty in (-10.0, 0.0, 1.5, 10.0):
        BeamArgs(length_penalty=penalty)
    BeamArgs(early_stopping=True)
    BeamArgs(early_stopping="never")


def test_torch_is_not_needed() -> None:
    """The knobs, the record and the drawings can be imported without torch."""
    code = (
        "import sys, pvml.sampling.beam_args, pvml.sampling.beam_record, pvml.sampling.beam_tree\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
