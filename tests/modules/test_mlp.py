"""The MLP: gelu_new by hand, and one position at a time."""

import math

import torch as t

from pvml.config import Config
from pvml.modules.mlp import MLP
from pvml.trace.capture import capture


def test_gelu_new_by_hand():
    """At 1 the tanh form gives 0.8411920 and the exact form 0.8413447: ours is the tanh form."""
    mlp = MLP(Config(d_model=2, n_heads=1, d_mlp=1)).double()
    with t.no_grad():
        mlp.W_in.fill_(0.5)
        mlp.W_out.fill_(1.0)
    with capture(mlp, "mlp.post") as cache:
        mlp(t.ones(1, 1, 2, dtype=t.float64))
    by_formula = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (1 + 0.044715)))

    assert round(by_formula, 7) == 0.8411920
    assert abs(cache["mlp.post"].item() - by_formula) < 1e-15


def test_positions_do_not_mix():
    """Changing one position changes no other's output."""
    mlp = MLP(Config(d_model=13, n_heads=1)).double()
    x = t.randn(1, 5, 13, dtype=t.float64)
    changed = x.clone()
    changed[0, 2] += 1

    same = (mlp(x) == mlp(changed)).all(-1)[0]
    assert same.tolist() == [True, True, False, True, True]


def test_the_two_gelus_are_never_far_apart():
    """gelu_new differs from the exact form by at most 4.7e-4, near |x| = 2.70."""
    mlp = MLP(Config(d_model=1, n_heads=1, d_mlp=1)).double()
    with t.no_grad():
        mlp.W_in.fill_(1.0)
    x = t.linspace(-6, 6, 12001, dtype=t.float64)
    with capture(mlp, "mlp.post") as cache:
        mlp(x[None, :, None])
    exact = x * 0.5 * (1 + t.erf(x / math.sqrt(2)))
    gap = (cache["mlp.post"][0, :, 0] - exact).abs()

    assert round(gap.max().item(), 5) == 0.00047
    assert round(abs(x[gap.argmax()].item()), 1) == 2.7
