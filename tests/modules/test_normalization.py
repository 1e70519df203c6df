"""LayerNorm: the biased variance, the eps inside the root, and its corners."""

import pytest
import torch as t

from pvml.config import Config
from pvml.modules.normalization import LayerNorm
from pvml.trace.capture import capture


def layer(d_model, dtype=t.float32, **changes):
    ln = LayerNorm(Config(d_model=d_model, n_heads=1, **changes)).to(dtype)
    with t.no_grad():
        ln.w.normal_()
        ln.b.normal_()
    return ln


def test_two_numbers_by_hand():
    """On (0, 2) the biased variance is 1: with eps 3 the outputs are -1/2 and +1/2."""
    ln = LayerNorm(Config(d_model=2, n_heads=1, layer_norm_eps=3.0)).double()
    out = ln(t.tensor([[[0.0, 2.0]]], dtype=t.float64))

    assert out.tolist() == [[[-0.5, 0.5]]]


def test_the_scale_of_the_input_is_thrown_away():
    """[1, 2, 3, 4] and [10, 20, 30, 40] come out (almost) the same; the eps is the difference."""
    ln = LayerNorm(Config(d_model=4, n_heads=1))
    small, large = ln(t.tensor([[[1.0, 2, 3, 4], [10.0, 20, 30, 40]]]))[0]

    t.testing.assert_close(small, large, rtol=0, atol=1e-5)
    assert not t.equal(small, large)
    t.testing.assert_close(large, t.tensor([-1.3416, -0.4472, 0.4472, 1.3416]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [t.float64, t.float32, t.bfloat16, t.float16], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.1, -7.7, 1e4])
def test_a_constant_vector_gives_exactly_b(dtype, value):
    """768 equal numbers have no direction: the output is b, exactly, and never NaN."""
    ln = layer(768, dtype)

    assert t.equal(ln(t.full((1, 1, 768), value, dtype=dtype))[0, 0], ln.b)


def test_a_large_offset_changes_little():
    """x + 1e4 gives x's output to 4e-3 in float32, where 1e4 itself is known only to 5e-4."""
    x = t.randn(1, 3, 768)
    ln = LayerNorm(Config(n_heads=1))

    t.testing.assert_close(ln(x + 1e4), ln(x), rtol=0, atol=4e-3)


@pytest.mark.parametrize("dtype", [t.bfloat16, t.float16], ids=str)
def test_half_types_take_float32_statistics(dtype):
    """A half-precision output is the float32 output, rounded once."""
    ln = layer(768, dtype)
    x = (5 + t.randn(1, 3, 768)).to(dtype)
    exact = LayerNorm(Config(n_heads=1))
    exact.load_state_dict(ln.state_dict())

    assert t.equal(ln(x), exact(x.float()).to(dtype))


def test_under_autocast_the_next_products_type_comes_out():
    """The stream stays float32, statistics too, and what is multiplied next is rounded once."""
    ln = layer(8)
    x = 1000 + t.randn(1, 3, 8)
    exact = ln(x)
    with t.autocast("cpu", t.bfloat16):
        half = ln(x)

    assert half.dtype == t.bfloat16
    assert t.equal(half, exact.bfloat16())


def test_the_shown_steps_make_the_output():
    """Mean, standard deviation and standardised stream are those the kernel used."""
    ln = layer(13, t.float64)
    x = t.randn(2, 3, 13, dtype=t.float64)
    with capture(ln) as cache:
        out = ln(x)

    t.testing.assert_close(cache["ln.residual_mean"], x.mean(-1, keepdim=True))
    variance = x.var(-1, keepdim=True, correction=0)
    t.testing.assert_close(cache["ln.residual_std"], (variance + 1e-5).sqrt())
    t.testing.assert_close(cache["ln.normalized"] * ln.w + ln.b, out, rtol=0, atol=1e-14)
