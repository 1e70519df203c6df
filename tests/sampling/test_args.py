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
    """50 tokens, temperature 1, no limit on what can be drawn, no seed, BOS in front."""
    args = SamplingArgs()

    assert (args.top_k, args.top_p) == (0, 0.0)
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
        ("seed", 2**63 - 1),
    ],
)
def test_the_extremes_are_allowed(name: str, value: Any) -> None:
    """The smallest and largest values that make sense are taken as they are."""
    assert getattr(SamplingArgs(**{name: value}), name) == value


def test_top_k_and_top_p_exclude_each_other() -> None:
    """Both at once is an error that names both; 0 takes one back."""
    with pytest.raises(PvmlError, match=r"top_k=40 and top_p=0\.9$"):
        SamplingArgs(top_k=40, top_p=0.9)
    assert SamplingArgs(top_k=40, top_p=0.0).top_k == 40


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
