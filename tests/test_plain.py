"""Settings' numbers: NumPy's are taken as Python's, and what no float holds is no finite number."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pvml.plain import is_finite, is_whole, plain, plain_tuple


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.int64(5), 5),
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (True, True),
        ("7", "7"),
        (None, None),
        ([1, 2], [1, 2]),
    ],
)
def test_plain(given: Any, expected: Any) -> None:
    """Numbers become int or float; a truth, a text and a list stay what they are."""
    assert plain(given) == expected and type(plain(given)) in (type(expected), np.float64)


def test_plain_tuple() -> None:
    """Lists become tuples and a dictionary pairs, with plain numbers inside."""
    assert plain_tuple({np.int32(3): np.float32(0.5)}) == ((3, 0.5),)
    assert plain_tuple([[np.int64(1)], "ab"]) == ((1,), "ab")
    assert plain_tuple("ab") == "ab"


def test_bounds() -> None:
    """Both ends belong to them; True is no number, 1.0 not whole, 10**400 and NaN not finite."""
    assert is_whole(0, 0) and is_whole(7, 0, 7) and not is_whole(8, 0, 7) and not is_whole(-1, 0)
    assert not is_whole(True, 0) and not is_whole(1.0, 0)
    assert is_finite(0.0, 0.0) and is_finite(10**300) and not is_finite(-1.0, 0.0)
    assert not any(map(is_finite, (True, math.nan, math.inf, 10**400, -(10**400), "1", None)))


SWEEP = """
import json
import numpy as np
from pvml.config import Config
from pvml.sampling.args import SamplingArgs
from pvml.training.args import TrainingArgs

(k,), (half,) = np.arange(5, 6), np.linspace(0.5, 0.5, 1, dtype=np.float32)
args = SamplingArgs(top_k=k, temperature=half, logit_bias={k: half}, banned_tokens=[k], stop=["."])
assert args == SamplingArgs(
    top_k=5, temperature=0.5, logit_bias=((5, 0.5),), banned_tokens=(5,), stop=(".",)
)
assert TrainingArgs(lr=half, epochs=k) == TrainingArgs(lr=0.5, epochs=5)
cfg = Config(d_model=np.int64(12), n_heads=3, n_layers=0, n_ctx=4, d_vocab=np.int32(7))
print(json.dumps(cfg.to_dict()), type(args.temperature))
"""


def test_sweeps_with_numpy() -> None:
    """Settings out of np.arange and np.linspace, lists and dictionaries, are those by hand."""
    # in a process of its own: the tests' shape hook would refuse a wrong type before we do
    done = subprocess.run([sys.executable, "-c", SWEEP], capture_output=True, text=True, check=True)
    assert '"d_model": 12' in done.stdout and "<class 'float'>" in done.stdout
