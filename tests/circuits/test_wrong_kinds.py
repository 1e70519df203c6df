"""What a circuit was not made from is told in a sentence."""

import subprocess
import sys

WRONG = {
    "ov(model, 1, 0)": "a head is given as (layer, head), such as (1, 0), got 1",
    "ov(model, '1.0')": "a head is given as (layer, head), such as (1, 0), got '1.0'",
    "ov(model, (True, False))": "a head is given as (layer, head), such as (1, 0), got (True,",
    "qk(model, (1.0, 0))": "a head is given as (layer, head), such as (1, 0), got (1.0, 0)",
    "qk(model, (1, 0), keys_through=(0, 1))": "a head is given as (layer, head), such as (1, 0)",
    "qk(model, (1, 0), keys_through=((0, 9),))": "there is no head 0.9: this model has 2 layers",
    "scan(qk(model, (1, 0)), RowTop(1))": "a scan reads a map, which a circuit has as circuit.map",
    "expand(model, ' text')": "one sequence is taken apart at a time, as tokens of shape (1, posn)",
    "expand_score(model, [[1]], (0, 0), 0, 0)": "one sequence is taken apart at a time, as tokens",
}


def test_wrong_kinds_are_told() -> None:
    """Each is a PvmlError that names what was given; NumPy's numbers and lists are heads."""
    # in a process of its own: the tests' shape hook would refuse a wrong type before we do
    code = f"""
import numpy as np
from pvml.circuits import expand
from pvml.circuits.paths.score_paths import expand_score
from pvml.circuits.weights.maps import ov, qk
from pvml.circuits.weights.streamed import RowTop, scan
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

model = Transformer(Config(d_model=8, n_heads=2, n_layers=2, n_ctx=9, d_vocab=13), seed=0)
for wrong in {list(WRONG)!r}:
    try:
        print("accepted", eval(wrong))
    except PvmlError as error:
        print(error)
print(ov(model, [0, 1], np.array([1, 0])[[0, 1]].tolist()).name, qk(model, (np.int64(1), 0)).name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *told, right = done.stdout.splitlines()

    for (wrong, message), line in zip(WRONG.items(), told, strict=True):
        assert line.startswith(message), (wrong, line)
    assert right == "OV 0.1 > 1.0 QK 1.0"
