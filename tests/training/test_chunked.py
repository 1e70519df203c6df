"""The chunked loss against the plain one: values, gradients, and what it never holds."""

import math

import pytest
import torch as t

from pvml.modules.unembedding import log_prob_of
from pvml.training import chunked
from pvml.training.chunked import Buffers, chunked_grades, chunked_nats

D_MODEL, D_VOCAB = 7, 131


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 5 predictions, so that a few predictions make several and a shorter last one."""
    monkeypatch.setattr(chunked, "CHUNK", 5)


def inputs(
    n: int, dtype: t.dtype = t.float64, scale: float = 1.0
) -> tuple[t.Tensor, t.Tensor, t.Tensor, t.Tensor]:
    generator = t.Generator().manual_seed(n)
    stream, W_U, b_U = (
        (scale * t.randn(shape, generator=generator, dtype=t.float64)).to(dtype).requires_grad_()
        for shape in ((n, D_MODEL), (D_MODEL, D_VOCAB), (D_VOCAB,))
    )
    return stream, W_U, b_U, t.randint(D_VOCAB, (n,), generator=generator)


def plain(stream: t.Tensor, W_U: t.Tensor, b_U: t.Tensor, targets: t.Tensor) -> t.Tensor:
    return -log_prob_of(stream @ W_U + b_U, targets)


def worst(ours: t.Tensor, truth: t.Tensor) -> float:
    ours, truth = ours.detach().double(), truth.detach().double()
    return float((ours - truth).abs().max() / truth.abs().max())


@pytest.mark.parametrize("n", [1, 4, 5, 13])
def test_equal_to_the_plain_loss_in_float64(n: int) -> None:
    """Losses, their sum and all three gradients agree with the plain loss to 1e-12."""
    given = inputs(n)
    expected = plain(*given)
    wanted = t.autograd.grad(expected.sum() / n, given[:3])

    nats, losses = chunked_nats(*given)
    got = t.autograd.grad(nats / n, given[:3])

    assert worst(losses, expected) < 1e-12
    assert worst(nats, expected.sum()) < 1e-12
    assert [worst(a, b) < 1e-12 for a, b in zip(got, wanted, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "most"),
    [
        (t.float32, None, 2e-6),
        (t.float32, t.bfloat16, 2e-2),
        (t.bfloat16, None, 2e-2),
    ],
)
def test_other_types_agree_to_their_rounding(
    dtype: t.dtype, arithmetic: t.dtype | None, most: float
) -> None:
    """float32 agrees to its rounding; bfloat16 products to theirs, with results in the input's."""
    given = inputs(13, dtype)
    exact = [x.detach().double().requires_grad_() for x in given[:3]]
    expected = plain(*exact, given[3])
    wanted = t.autograd.grad(expected.sum(), exact)

    nats, losses = chunked_nats(*given, arithmetic)
    got = t.autograd.grad(nats, given[:3])

    assert losses.dtype == t.float32
    assert [g.dtype for g in got] == [dtype] * 3
    assert worst(losses, expected) < most
    assert max(worst(a, b) for a, b in zip(got, wanted, strict=True)) < most


def test_the_sums_over_chunks_are_float32_under_bfloat16() -> None:
    """A bfloat16 sum of 4,000 equal pieces would stop growing at a few hundred of them."""
    n = 4000
    stream = t.ones(n, 1, requires_grad=True)
    W_U = t.zeros(1, 2, requires_grad=True)
    nats, _ = chunked_nats(stream, W_U, t.zeros(2), t.zeros(n, dtype=t.long), arithmetic=t.bfloat16)
    nats.backward()

    assert float(nats.detach()) == pytest.approx(n * math.log(2), rel=1e-5)
    assert W_U.grad is not None
    assert W_U.grad.tolist() == [[-n / 2, n / 2]]


def test_hopeless_predictions_have_their_true_loss() -> None:
    """A target 500 nats behind has probability 0 in float32, and a loss of 500 all the same."""
    stream = t.tensor([[1.0], [1.0], [0.0]], requires_grad=True)
    W_U = t.tensor([[500.0, 0.0, 0.0]])

    nats, losses = chunked_nats(stream, W_U, t.zeros(3), t.tensor([1, 0, 2]))
    (gradient,) = t.autograd.grad(nats, stream)

    assert losses.tolist() == pytest.approx([500.0, 0.0, math.log(3)], abs=1e-5)
    assert gradient[:, 0].tolist() == pytest.approx([500.0, 0.0, 500 / 3], rel=1e-6, abs=1e-4)


def test_one_that_is_not_a_number_stays_its_own() -> None:
    """A NaN in one prediction is in its loss and in the sum, and in no other loss."""
    stream, W_U, b_U, targets = inputs(7, t.float32)
    broken = stream.detach().clone()
    broken[3] = math.nan

    nats, losses = chunked_nats(broken, W_U, b_U, targets)

    assert nats.isnan()
    assert losses.isnan().tolist() == [i == 3 for i in range(7)]


def test_used_twice_in_one_step_the_gradients_add_up() -> None:
    """Two calls on the same weights and buffers, differentiated together, add; neither is lost."""
    first, second = inputs(6), inputs(9)
    W_U, b_U = first[1], first[2]
    buffers = Buffers()
    expected = plain(*first).sum() / 6 + plain(second[0], W_U, b_U, second[3]).sum() / 9
    wanted = t.autograd.grad(expected, (first[0], second[0], W_U, b_U))

    one, _ = chunked_nats(*first, buffers=buffers)
    other, _ = chunked_nats(second[0], W_U, b_U, second[3], buffers=buffers)
    got = t.autograd.grad(one / 6 + other / 9, (first[0], second[0], W_U, b_U))

    assert max(worst(a, b) for a, b in zip(got, wanted, strict=True)) < 1e-12


def test_a_table_that_is_tied_gets_both_gradients() -> None:
    """W_U as a transposed view of W_E works, and its gradient reaches W_E."""
    stream, W_U, _, targets = inputs(8)
    W_E = W_U.detach().T.contiguous().requires_grad_()
    zero = t.zeros(D_VOCAB, dtype=t.float64)
    (wanted,) = t.autograd.grad(plain(stream, W_E.T, zero, targets).sum(), W_E)

    nats, _ = chunked_nats(stream, W_E.T, zero, targets)
    (got,) = t.autograd.grad(nats, W_E)

    assert worst(got, wanted) < 1e-12


def test_only_gradients_that_are_asked_for_exist() -> None:
    """With a frozen table the stream's gradient is the same, and none is made for the table."""
    stream, W_U, b_U, targets = inputs(8)
    (wanted,) = t.autograd.grad(chunked_nats(stream, W_U, b_U, targets)[0], stream)

    nats, _ = chunked_nats(stream, W_U.detach(), b_U.detach(), targets)
    nats.backward()
    with t.no_grad():
        silent, _ = chunked_nats(stream, W_U, b_U, targets)

    assert stream.grad is not None
    assert t.equal(stream.grad, wanted)
    assert not silent.requires_grad
    assert t.equal(silent, nats)


def test_a_second_backward_pass_is_refused() -> None:
    """The gradients are handed out once; asking again is an error, not a wrong number."""
    nats, _ = chunked_nats(*inputs(3))
    nats.backward(retain_graph=True)

    with pytest.raises(RuntimeError, match="gives its gradients away in one backward pass"):
        nats.backward()


def test_no_prediction_at_all_is_a_sum_of_nothing() -> None:
    """An empty batch has a loss sum of 0 and gradients of 0."""
    stream, W_U, b_U, targets = inputs(2)
    nats, losses = chunked_nats(stream[:0], W_U, b_U, targets[:0])
    nats.backward()

    assert (float(nats.detach()), losses.shape) == (0.0, (0,))
    assert W_U.grad is not None
    assert not W_U.grad.any()


def test_all_logits_never_exist_together() -> None:
    """No tensor made on the way, forward or backward, has as many numbers as all logits."""
    n = 64
    generator = t.Generator().manual_seed(0)
    stream = t.randn(n, D_MODEL, generator=generator, requires_grad=True)
    W_U = t.randn(D_MODEL, D_VOCAB, generator=generator, requires_grad=True)
    sizes = []

    class Sizes(t.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
            out = fn(*args, **(kwargs or {}))
            sizes.extend(
                x.untyped_storage().nbytes() // x.element_size()
                for x in t.utils._pytree.tree_leaves(out)
                if isinstance(x, t.Tensor)
            )
            return out

    with Sizes():
        nats, _ = chunked_nats(
            stream, W_U, t.zeros(D_VOCAB), t.zeros(n, dtype=t.long), buffers=Buffers()
        )
        nats.backward()

    assert 0 < max(sizes) < n * D_VOCAB // 4


def test_grades_are_the_losses_and_whether_the_first_choice_was_right() -> None:
    """Without gradients the losses are the same bits, and right is where arg-max is the target."""
    stream, W_U, b_U, targets = inputs(13)
    targets[::3] = (stream @ W_U + b_U).argmax(-1)[::3]

    losses, right = chunked_grades(stream, W_U, b_U, targets)

    assert t.equal(losses, chunked_nats(stream, W_U, b_U, targets)[1])
    assert not losses.requires_grad
    assert t.equal(right, (stream @ W_U + b_U).argmax(-1) == targets)
    assert right[::3].all() and not right.all()


def test_among_equal_logits_the_first_is_the_choice() -> None:
    """A model that knows nothing is right about token 0 alone, not about every token."""
    _, right = chunked_grades(t.zeros(3, 2), t.zeros(2, 9), t.zeros(9), t.tensor([0, 4, 8]))

    assert right.tolist() == [True, False, False]


def test_a_second_derivative_is_refused() -> None:
    """Gradients that were left by the forward pass know nothing of how they came about."""
    stream, W_U, b_U, targets = inputs(3)
    nats, _ = chunked_nats(stream**2, W_U, b_U, targets)

    with pytest.raises(RuntimeError, match="no second derivative"):
        t.autograd.grad(nats, stream, create_graph=True)


def test_autocast_around_it_changes_no_bit() -> None:
    """The arithmetic is what is asked for here, not what somebody else set."""
    stream, W_U, b_U, targets = inputs(13, t.float32)
    nats, _ = chunked_nats(stream, W_U, b_U, targets)
    wanted = t.autograd.grad(nats, (stream, W_U))

    with t.autocast("cpu", t.bfloat16):
        nats, _ = chunked_nats(stream, W_U, b_U, targets)
        got = t.autograd.grad(nats, (stream, W_U))

    assert all(t.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_float16_shares_that_are_too_small_lose_nothing() -> None:
    """Losses of 10 to 17 nats, whose shares float16 holds badly or not at all."""
    gaps = t.tensor([[9.0], [11.0], [13.0], [15.0], [17.0]], dtype=t.float16)
    W_U = t.tensor([[1.0, 0.0]], dtype=t.float16)

    _, losses = chunked_nats(gaps, W_U, t.zeros(2, dtype=t.float16), t.ones(5, dtype=t.long))

    assert losses.tolist() == pytest.approx([9.0, 11.0, 13.0, 15.0, 17.0], abs=0.01)


def test_a_certain_targets_loss_is_no_minus_zero() -> None:
    """In bfloat16 a share of 0.9985 is 1: its loss is 0, told without a sign."""
    stream, W_U = t.eye(1), t.tensor([[6.5, 0.0]])
    _, losses = chunked_nats(stream, W_U, t.zeros(2), t.tensor([0]), t.bfloat16)
    assert losses.tolist() == [0.0]
    assert not losses.signbit().any()
