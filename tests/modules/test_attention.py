"""Attention: by hand, the mask, the kernel against the formula, half types, storage."""

import math

import pytest
import torch as t

from pvml.config import Config
from pvml.modules import attention
from pvml.modules.attention import Attention, attend, cannot_attend, fused, in_pieces
from pvml.trace.capture import capture
from pvml.trace.tap import Tap

CFG = Config(d_model=13, n_heads=3, d_head=5, n_ctx=11, d_vocab=29)


def random_qkv(dtype=t.float64, n_q=7, n_k=7, scale=1.0):
    q = scale * t.randn(2, n_q, 3, 5, dtype=t.float64)
    k, v = scale * t.randn(2, 2, n_k, 3, 5, dtype=t.float64)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def test_two_positions_by_hand():
    """Scores 0 and ln 3 (after dividing by sqrt 4) share the second row as 1/4 and 3/4."""
    attn = Attention(Config(d_model=4, n_heads=1)).double()
    with t.no_grad():
        attn.W_Q[0], attn.W_K[0], attn.W_V[0], attn.W_O[0] = (t.eye(4) for _ in range(4))
    x = t.zeros(1, 2, 4, dtype=t.float64)
    x[0, 1, 0] = math.sqrt(2 * math.log(3))
    with capture(attn) as cache:
        out = attn(x)

    t.testing.assert_close(
        cache["attn.attn_pattern"][0, 0], t.tensor([[1.0, 0], [0.25, 0.75]], dtype=t.float64)
    )
    t.testing.assert_close(out[0, 1], 0.75 * x[0, 1])


def test_the_mask_is_the_future():
    """True above the diagonal; queries are the last of the keys' positions."""
    assert cannot_attend(3, 3, None, t.device("cpu")).int().tolist() == [
        [0, 1, 1],
        [0, 0, 1],
        [0, 0, 0],
    ]
    assert cannot_attend(2, 4, None, t.device("cpu")).int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_padding_sees_only_itself_and_is_seen_by_none():
    """A padded key is hidden from every other query; its own row keeps its diagonal."""
    real = t.tensor([[False, True, True]])

    assert cannot_attend(3, 3, real, t.device("cpu"))[0].int().tolist() == [
        [0, 1, 1],
        [1, 0, 1],
        [1, 0, 0],
    ]


def test_causality(make_model, tokens):
    """A later token never changes an earlier position's output."""
    model = make_model()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 29

    assert t.equal(model(tokens)[:, :5], model(changed)[:, :5])


@pytest.mark.parametrize("n_q", [1, 4, 7])
@pytest.mark.parametrize("padded", [False, True])
def test_the_kernel_is_the_formula(n_q, padded):
    """softmax(mask(q k / sqrt d)) v, written out with loops, equals the fused kernel."""
    q, k, v = random_qkv(n_q=n_q)
    real = t.ones(2, 7, dtype=t.bool)
    if padded:
        real[0, :3] = real[1, 2] = False
    out = fused(q, k, v, real if padded else None)
    for b in range(2):
        for i in range(n_q):
            at = 7 - n_q + i
            seen = [j for j in range(at + 1) if real[b, j] or j == at]
            for h in range(3):
                shares = (k[b, seen, h] @ q[b, i, h] / 5**0.5).softmax(0)
                t.testing.assert_close(out[b, i, h], shares @ v[b, seen, h], rtol=0, atol=1e-14)


@pytest.mark.parametrize("queries", [1, 3, 7, 64])
def test_pieces_are_the_kernel(monkeypatch, queries):
    """Cut anywhere, attention in pieces and its gradients are those of the kernel."""
    monkeypatch.setattr(attention, "QUERIES", queries)
    monkeypatch.setattr(attention, "attends_in_pieces", lambda q: False)
    qkv = [x.requires_grad_() for x in random_qkv()]
    weights = t.randn(2, 7, 3, 5, dtype=t.float64)
    z, expected = in_pieces(*qkv), fused(*qkv, None)
    gradients, wanted = (t.autograd.grad((out * weights).sum(), qkv) for out in (z, expected))

    for one, other in zip((z, *gradients), (expected, *wanted), strict=True):
        t.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_rows_to_be_differentiated_go_in_pieces_up_to_a_length(monkeypatch):
    """Without gradients, over 512 positions or none, and behind a cache, the kernel is taken."""
    taken = []
    monkeypatch.setattr(attention, "in_pieces", lambda q, k, v: taken.append(q.shape[1]) or v)
    for n in (0, 1, 7, 512, 513):
        q = t.randn(1, n, 1, 2, requires_grad=True)
        fused(q, q, q, None)
        fused(q.detach(), q, q, None)
        with t.no_grad():
            fused(q, q, q, None)
    fused(t.randn(1, 3, 1, 2, requires_grad=True), q, q, None)

    assert taken == [1, 7, 512]


@pytest.mark.parametrize("dtype", [t.float16, t.bfloat16], ids=str)
def test_half_types_neither_overflow_nor_give_nan(dtype):
    """Scores far below zero, masked in half types: rows still sum to 1 and nothing is NaN."""
    q, k, v = random_qkv(dtype, scale=8.0)
    tap = Tap("attn", {"positions": "standard"})
    real = t.ones(2, 7, dtype=t.bool)
    real[0, :6] = False
    from pvml.trace.tap import Listener

    kept = {}
    tap.listeners["attn_pattern"] = (("p", Listener(lambda name, x: kept.update(p=x.clone()))),)
    z = attend(q, k, v, real, tap)

    assert z.isfinite().all()
    assert kept["p"].isfinite().all()
    t.testing.assert_close(
        kept["p"].float().sum(-1),
        t.ones(2, 3, 7),
        rtol=0,
        atol=2 ** -(7 if dtype == t.bfloat16 else 10),
    )


def test_reading_weights_are_stored_as_one_matrix():
    """W_Q reads (n_heads, d_model, d_head) and lies d_model-major, also after .to and a reload."""
    attn = Attention(CFG)
    again = Attention(CFG)
    again.load_state_dict(attn.state_dict())
    for weights in (attn, again, attn.to(t.float64)):
        for W in (weights.W_Q, weights.W_K, weights.W_V):
            assert W.shape == (3, 13, 5)
            assert W.permute(1, 0, 2).is_contiguous()


def test_biases_are_per_head_and_b_O_is_added_once():
    """With all values zero, the output is b_V through W_O summed over heads, plus b_O once."""
    attn = Attention(CFG).double()
    with t.no_grad():
        attn.W_V.zero_()
        attn.b_V.normal_()
        attn.b_O.normal_()
    expected = sum(attn.b_V[h] @ attn.W_O[h] for h in range(3)) + attn.b_O

    t.testing.assert_close(attn(t.randn(1, 4, 13, dtype=t.float64)), expected.expand(1, 4, 13))


def test_shortformer_positions_reach_queries_and_keys_only():
    """Positions move the pattern, and values not at all."""
    attn = Attention(Config(**{**CFG.to_dict(), "positions": "shortformer"})).double()
    x, positions = t.randn(2, 1, 4, 13, dtype=t.float64)
    with capture(attn) as plain:
        attn(x)
    with capture(attn) as placed:
        attn(x, positions)

    assert t.equal(plain["attn.v"], placed["attn.v"])
    assert not t.allclose(plain["attn.q"], placed["attn.q"])
    t.testing.assert_close(placed["attn.qk_input"], x + positions)
