"""Packed weights: the same products, whatever happens to the weights meanwhile."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch as t
from torch import Tensor

from pvml.errors import PvmlError
from pvml.modules import packed
from pvml.modules.cache import KVCache
from pvml.modules.matmul_route import fastest_float32
from pvml.modules.packed import PackedWeights, can_pack, packed_for
from pvml.modules.product import product, products
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen

MakeModel = Callable[..., Transformer]
KINDS = ["float32", "int8"]


@pytest.fixture(autouse=True)
def for_writing(everything_is_packed: None) -> Iterator[None]:
    with t.no_grad():
        yield


def random(*shape: int) -> Tensor:
    return t.randn(shape, generator=t.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("wide", "out"), [(1, 1), (5, 3), (7, 384), (6, 385), (3, 1000)])
def test_a_row_by_hand(wide: int, out: int) -> None:
    """One row times a matrix of any width is float64's product, to float32's rounding."""
    x, W, b = random(1, 1, wide), random(wide, out), random(out)
    weights = PackedWeights()
    with weights.used():
        y = product(x, W, b)

    assert len(weights._matrices) == 1
    t.testing.assert_close(y.double(), x.double() @ W.double() + b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [(1, 1), (2, 1), (1, 4), (3, 3), (0, 1), (1, 0)], ids=str)
def test_several_matrices_and_rows(kind: packed.Kind, rows: tuple[int, int]) -> None:
    """Three matrices at once, for any number of rows: float32 exactly, int8 to half a step."""
    x, Ws, bs = random(*rows, 40), random(3, 40, 50).unbind(), random(3, 50).unbind()
    with PackedWeights(kind).used():
        ys = products(x, Ws, bs)

    for y, W, b in zip(ys, Ws, bs, strict=True):
        step = (W.amax(1) - W.amin(1)).clamp(min=1e-9) / 255
        allowed = x.abs() @ step[:, None] * 0.51 + 0.01 if kind == "int8" else t.tensor(1e-5)
        assert bool(((y - (x @ W + b)).abs() <= allowed).all())


@pytest.mark.parametrize("positions", ["standard", "shortformer"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_writes_the_same(make_model: MakeModel, positions: str, tied: bool) -> None:
    """With packed weights a model's logits, token by token, are its own to float32's rounding."""
    model = make_model(positions=positions, tie_embeddings=tied).float()
    tokens = t.randint(0, 29, (1, 9), generator=t.Generator().manual_seed(0))
    cache, weights = KVCache(model.cfg), PackedWeights()
    with weights.used():
        pieces = t.cat([model(one, cache=cache) for one in tokens.split(1, dim=1)], 1)

    whole = model(tokens)
    assert len(weights._matrices) == 2 * (5 if positions == "shortformer" else 4) + 1
    t.testing.assert_close(pieces, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))


def test_int8_is_one_model(make_model: MakeModel) -> None:
    """One row, a few and many are multiplied by the same rounded numbers."""
    model = make_model().float()
    tokens = t.randint(0, 29, (1, 9), generator=t.Generator().manual_seed(0))
    with PackedWeights("int8").used():
        whole = model(tokens)
        for length in (1, 3):
            cache = KVCache(model.cfg)
            pieces = t.cat([model(some, cache=cache) for some in tokens.split(length, dim=1)], 1)
            t.testing.assert_close(pieces, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))

    assert not t.allclose(whole, model(tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_edits_act(make_model: MakeModel, kind: packed.Kind) -> None:
    """Who listens hears what is multiplied, and an edit of it counts."""
    model = make_model().float()
    token = t.tensor([[3]])
    with PackedWeights(kind).used():
        before = model(token)
        with listen(model, "blocks.1.mlp.post", lambda _, x: 0 * x, edits=True):
            edited = model(token)
        model.blocks[1].mlp.W_out.zero_()
        without = model(token)

    assert not t.allclose(before, edited, atol=1e-3)
    t.testing.assert_close(edited, without, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_torch_counts_is_seen_at_once(kind: packed.Kind) -> None:
    """An optimizer's step, or any other change in place, of a matrix or a bias."""
    x, W, b = random(1, 1, 4), random(4, 8), random(8)
    with PackedWeights(kind).used():
        product(x, W, b)
        W.mul_(2)
        b.add_(1)
        y = product(x, W, b)

    t.testing.assert_close(y, x @ W + b, rtol=0, atol=1e-5 if kind == "float32" else 0.1)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["W", "b"])
def test_refresh_sees_every_change(kind: packed.Kind, which: str, rows: int) -> None:
    """Also one through `.data`, of which PyTorch knows nothing."""
    x, W, b = random(1, rows, 4), random(4, 8), random(8)
    weights = PackedWeights(kind)
    with weights.used():
        product(x, W, b)
        weights.refresh()
        assert len(weights._matrices) == 1
        product(x, W, b)
        {"W": W, "b": b}[which].data.view(-1)[5] += 7
        weights.refresh()
        assert not weights._matrices
        y = product(x, W, b)

    t.testing.assert_close(y, x @ W + b, rtol=0, atol=1e-5 if kind == "float32" else 0.1)


@pytest.mark.parametrize("dtype", [t.float32, t.bfloat16], ids=str)
@pytest.mark.parametrize("wide", [5, 300])
@pytest.mark.parametrize(
    ("one", "other"), [((2, 3), (3, 3)), ((2, 3), (2, 4)), ((0, 0), (4, 1))], ids=str
)
def test_numbers_that_change_places_are_seen(
    dtype: t.dtype, wide: int, one: tuple[int, int], other: tuple[int, int]
) -> None:
    """Within a row, within a column or across: no sum of all would tell."""
    W = random(wide, 7).to(dtype)
    before = packed._telling_sums(W)
    W[one], W[other] = W[other].clone(), W[one].clone()
    assert not all(map(t.equal, before, packed._telling_sums(W)))
    W[one], W[other] = W[other].clone(), W[one].clone()
    assert all(map(t.equal, before, packed._telling_sums(W)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2])
def test_what_has_not_changed_is_kept(kind: packed.Kind, rows: int) -> None:
    """Whichever route products took when the copy was made: it is not made again."""
    x, W, b = random(1, rows, 300), random(300, 700), random(700)
    weights = PackedWeights(kind)
    with weights.used(), fastest_float32(W.device, W.dtype):
        product(x, W, b)
    (copy,) = weights._matrices.values()
    weights.refresh()

    assert [*weights._matrices.values()] == [copy]


def test_what_is_no_longer_read_is_forgotten() -> None:
    """A copy that nothing was multiplied by between two refreshes costs no memory any more."""
    weights = PackedWeights()
    with weights.used():
        product(random(1, 1, 4), random(4, 8), random(8))
    weights.refresh()
    weights.refresh()

    assert not weights._matrices


def test_other_types_take_the_usual_product() -> None:
    """Float64 and gradients are left alone, and int8 refuses what it would have to ignore."""
    x, W, b = random(1, 1, 4).double(), random(4, 8).double(), random(8).double()
    weights = PackedWeights()
    with weights.used():
        assert t.equal(product(x, W, b), t.nn.functional.linear(x, W.T, b))
        with t.enable_grad():
            product(x.float(), W.float().requires_grad_(), b.float()).sum().backward()
    assert not weights._matrices
    with PackedWeights("int8").used(), pytest.raises(PvmlError, match="float64 on cpu"):
        product(x, W, b)


def test_small_matrices_are_not_worth_it(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are multiplied as usual; int8 weights for a model of nothing else are an error."""
    monkeypatch.setattr(packed, "SMALLEST", 1 << 17)
    monkeypatch.setattr(packed, "SMALLEST_FOR_A_ROW", 1 << 13)
    model = make_model().float()
    weights = PackedWeights()
    with weights.used():
        model(t.tensor([[3]]))
    assert not weights._matrices
    with pytest.raises(PvmlError, match="at least 131,072 numbers"):
        packed_for(model, "int8")


def test_one_row_is_packed_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix between the two sizes: packed for one float32 row, not for several, nor as int8."""
    monkeypatch.setattr(packed, "SMALLEST", 301)
    monkeypatch.setattr(packed, "SMALLEST_FOR_A_ROW", 300)
    W, b = random(20, 15), random(15)
    for n_rows, kind, n_packed in [(1, "float32", 1), (2, "float32", 0), (1, "int8", 0)]:
        weights = PackedWeights(kind)
        with weights.used():
            product(random(1, n_rows, 20), W, b)
        assert len(weights._matrices) == n_packed


def test_who_gets_packed_weights(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 and bfloat16 on a CPU, where the kernels are; for others int8 is an error."""
    monkeypatch.setattr(packed, "can_pack", lambda dtype: dtype in (t.float32, t.bfloat16))
    monkeypatch.setattr(packed, "has_fast_sums", lambda: False)
    assert packed_for(make_model(), "float32") is None
    assert isinstance(packed_for(make_model().float(), "float32"), PackedWeights)
    assert isinstance(packed_for(make_model().bfloat16(), "float32"), PackedWeights)
    monkeypatch.setattr(packed, "can_pack", lambda dtype: False)
    assert packed_for(make_model().float(), "float32") is None
    assert isinstance(packed_for(make_model().float(), "int8"), PackedWeights)
    for other in (make_model(), make_model().bfloat16()):
        with pytest.raises(PvmlError, match="in float32 on a CPU"):
            packed_for(other, "int8")


def test_a_model_has_one_of_each_kind(make_model: MakeModel) -> None:
    """All who write with a model share its copies, and they go when it goes."""
    model = make_model().float()
    one = packed_for(model, "int8")
    assert packed_for(model, "int8") is one is not packed_for(make_model().float(), "int8")
    gone = weakref.ref(one)
    del one, model
    gc.collect()
    assert gone() is None


def test_bfloat16_by_hand() -> None:
    """The product of bfloat16's own numbers, to its rounding, whether packed or not."""
    x, W, b = (random(*shape).bfloat16() for shape in ((1, 3, 40), (40, 50), (50,)))
    with PackedWeights().used():
        y = product(x, W, b)

    truth = x.double() @ W.double() + b.double()
    assert y.dtype == t.bfloat16
    t.testing.assert_close(y.double(), truth, rtol=0, atol=2**-7 * float(truth.abs().max()))


@pytest.mark.parametrize("fault", ["missing", "wrong"])
def test_kernels_that_fail_are_not_taken(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Without the operators, or if they multiply wrongly, products are done the usual way."""

    def multiplied(x: Tensor, reordered: Tensor, b: Tensor) -> Tensor:
        if fault == "missing":
            raise AttributeError
        return 1.001 * (x @ reordered + b)

    monkeypatch.setattr(packed, "_in_its_order", lambda W: W)
    monkeypatch.setattr(packed, "_multiplied", multiplied)
    can_pack.cache_clear()
    try:
        assert not can_pack(t.float32) and not can_pack(t.float64)
        weights = PackedWeights()
        with weights.used():
            product(random(1, 2, 4), random(4, 8), random(8))
        assert not weights._matrices
    finally:
        can_pack.cache_clear()
