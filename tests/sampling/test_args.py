"""SamplingArgs: what may be asked of a sampler, checked once, at construction."""

import dataclasses
import inspect
import math
import subprocess
import sys
from typing import Any

import pytest

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs


def test_the_defaults_are_the_seeds() -> None:
    """50 tokens, temperature 1, no limit and no penalty, no stop, no seed, BOS in front."""
    args = SamplingArgs()

    assert (args.top_k, args.top_p, args.min_p) == (0, 0.0, 0.0)
    assert (args.frequency_penalty, args.repetition_penalty) == (0.0, 1.0)
    assert (args.no_repeat_ngram_size, args.logit_bias, args.banned_tokens) == (0, (), ())
    assert args.stop == ()
    assert (args.max_new_tokens, args.temperature, args.seed) == (50, 1.0, None)
    assert args.prepend_bos


REFUSED: list[tuple[str, Any]] = [
    ("max_new_tokens", 0),
    ("max_new_tokens", -3),
    ("max_new_tokens", 2.5),
    ("max_new_tokens", True),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_k", -1),
    ("top_k", 2.0),
    ("top_k", True),
    ("top_p", -0.1),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("top_p", "most"),
    ("top_p", True),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("frequency_penalty", math.inf),
    ("frequency_penalty", math.nan),
    ("frequency_penalty", "some"),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.nan),
    ("no_repeat_ngram_size", -1),
    ("no_repeat_ngram_size", 2.0),
    ("logit_bias", {-7: 1.0}),
    ("logit_bias", ((7, 10**400),)),
    ("temperature", 10**400),
    ("stop", ("\udcff",)),
    ("logit_bias", (7, 1.0)),
    ("logit_bias", ((7,),)),
    ("logit_bias", ((-1, 1.0),)),
    ("logit_bias", ((7, math.inf),)),
    ("logit_bias", ((7, 1.0), (7, 2.0))),
    ("banned_tokens", 7),
    ("banned_tokens", (-1,)),
    ("banned_tokens", (7.0,)),
    ("stop", "the end"),
    ("stop", ("the end", "")),
    ("stop", (7,)),
    ("seed", -1),
    ("seed", 2**63),
    ("seed", 1.0),
    ("seed", True),
    ("prepend_bos", 1),
]


def test_nonsense_is_refused_by_name() -> None:
    """A value that cannot be used is an error that names the field and the value."""
    # in a process of its own: the tests' shape hook would refuse a wrong type before we do
    code = f"""
from math import inf, nan
from pvml.sampling.args import SamplingArgs
for field, value in {REFUSED!r}:
    try:
        SamplingArgs(**{{field: value}})
    except ValueError as refusal:
        print(refusal)
    else:
        print("accepted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    complaints = done.stdout.splitlines()

    assert len(complaints) == len(REFUSED)
    for complaint, (field, value) in zip(complaints, REFUSED, strict=True):
        assert complaint.startswith(f"{field} must be ")
        assert complaint.endswith(f", got {value!r}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 1),
        ("temperature", 0.0),
        ("temperature", 1e-300),
        ("top_k", 10**9),
        ("top_p", 1.0),
        ("min_p", 1.0),
        ("frequency_penalty", -1e300),
        ("repetition_penalty", 1e-300),
        ("no_repeat_ngram_size", 1),
        ("logit_bias", ((0, -1e300), (5, 0.0))),
        ("banned_tokens", (0, 0)),
        ("stop", (" ", "\n\n")),
        ("seed", 2**63 - 1),
    ],
)
def test_the_extremes_are_allowed(name: str, value: Any) -> None:
    """The smallest and largest values that make sense are taken as they are."""
    assert getattr(SamplingArgs(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"top_k": 40, "top_p": 0.9}, "top_k=40 and top_p=0.9"),
        ({"top_k": 40, "min_p": 0.1}, "top_k=40 and min_p=0.1"),
        ({"top_p": 1.0, "min_p": 0.1}, "top_p=1.0 and min_p=0.1"),
        ({"top_k": 1, "top_p": 0.9, "min_p": 1.0}, "top_k=1 and top_p=0.9 and min_p=1.0"),
    ],
)
def test_the_limits_exclude_each_other(limits: dict[str, Any], told: str) -> None:
    """Two of top-k, top-p and min-p are an error that names those given; 0 takes one back."""
    with pytest.raises(PvmlError, match=f"^set at most one of .*: got {told}$"):
        SamplingArgs(**limits)
    first = next(iter(limits))
    others = {name: type(value)(0) for name, value in limits.items() if name != first}
    assert getattr(SamplingArgs(**{first: limits[first], **others}), first) == limits[first]


def test_arguments_cannot_change_later() -> None:
    """Checked once means checked for good."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingArgs().temperature = -1  # type: ignore[misc]


def test_reading_arguments_needs_no_torch() -> None:
    """The command line reads these fields before it knows whether torch is needed."""
    source = inspect.getfile(SamplingArgs)
    code = "import sys, pvml.sampling.args as a; print('torch' in sys.modules, a.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", source]
