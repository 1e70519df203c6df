"""The model that a training starts from."""

import math

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.training.args import TrainingArgs
from pvml.training.first_weights import first_model, start_positions_as_waves


@pytest.mark.parametrize("d_model", [6, 7])
def test_positions_begin_as_waves(d_model):
    """Row p holds sin and cos of p at every speed: the first has speed 1, and no two rows agree."""
    W_pos = t.nn.Parameter(t.zeros(11, d_model))
    start_positions_as_waves(W_pos, 0.5)
    half = (d_model + 1) // 2

    assert W_pos[3, 0].item() == pytest.approx(0.5 * math.sin(3))
    assert W_pos[3, half].item() == pytest.approx(0.5 * math.cos(3))
    assert W_pos[3, 1].item() == pytest.approx(0.5 * math.sin(3 * 1000 ** (-2 / d_model)))
    assert len(W_pos.unique(dim=0)) == 11
    assert W_pos.requires_grad


def test_nothing_but_the_positions_differs():
    """With waves asked for, every other weight is the one that the seed draws without."""
    cfg = Config(d_model=8, n_heads=2, n_layers=1, n_ctx=5, d_vocab=11)
    drawn = dict(Transformer(cfg, seed=3).named_parameters())

    plain = first_model(cfg, TrainingArgs(seed=3))
    waves = first_model(cfg, TrainingArgs(seed=3, position_waves=0.1))

    assert all(t.equal(p, drawn[name]) for name, p in plain.named_parameters())
    differing = [n for n, p in waves.named_parameters() if not t.equal(p, drawn[n])]
    assert differing == ["pos_embed.W_pos"]
    assert waves.pos_embed.W_pos.abs().max().item() == pytest.approx(0.1)


def test_waves_need_positions():
    """A model without W_pos cannot begin with waves in it, and the error says so."""
    cfg = Config(d_model=8, n_heads=2, n_layers=1, n_ctx=5, d_vocab=11, positions="none")
    with pytest.raises(PvmlError, match="position_waves 0.1 has no meaning"):
        first_model(cfg, TrainingArgs(position_waves=0.1))
