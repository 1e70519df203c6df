"""The demo's training: what its positions begin as."""

import math

import pytest
import torch as t

from pvml.demos.learning import start_positions_as_sines


@pytest.mark.parametrize("d_model", [6, 7])
def test_positions_begin_as_waves(d_model):
    """Row p holds sin and cos of p at every speed: the first has speed 1, and no two rows agree."""
    W_pos = t.nn.Parameter(t.zeros(11, d_model))
    start_positions_as_sines(W_pos)
    half = (d_model + 1) // 2

    assert W_pos[3, 0].item() == pytest.approx(math.sin(3))
    assert W_pos[3, half].item() == pytest.approx(math.cos(3))
    assert W_pos[3, 1].item() == pytest.approx(math.sin(3 * 1000 ** (-2 / d_model)))
    assert len(W_pos.unique(dim=0)) == 11
    assert W_pos.requires_grad
