"""The reader: what the model sees of sequences that grow, and that the cache changes no number."""

from collections.abc import Callable

import pytest
import torch as t
from torch import Tensor

from pvml.modules.packed import PackedWeights
from pvml.modules.transformer import Transformer
from pvml.sampling.reader import Reader, block_of, dropped, window_of
from pvml.trace.tap import listen

MakeModel = Callable[..., Transformer]


def test_the_window_by_hand() -> None:
    """n_ctx 8, BOS 0, prompt 1 to 12: BOS and the last seven; n_ctx 1: BOS alone."""
    ids = list(range(13))

    assert window_of(ids, 8, keep_first=True) == [0, 6, 7, 8, 9, 10, 11, 12]
    assert window_of(ids, 8, keep_first=False) == [5, 6, 7, 8, 9, 10, 11, 12]
    assert window_of(ids, 1, keep_first=True) == [0]
    assert window_of(ids, 1, keep_first=False) == [12]
    assert window_of(ids, 13, keep_first=True) == ids


def growing(lengths: list[int], steps: int, ended: dict[int, int]) -> list[dict[int, list[int]]]:
    """Random sequences over 29 ids, a token longer at each step; some end after so many steps."""
    rng = t.Generator().manual_seed(2)
    whole = [t.randint(0, 29, (n + steps,), generator=rng).tolist() for n in lengths]
    return [
        {i: whole[i][: n + step] for i, n in enumerate(lengths) if step < ended.get(i, steps)}
        for step in range(steps)
    ]


@pytest.mark.parametrize(
    ("positions", "keep_first", "dtype", "most"),
    [
        ("standard", True, t.float64, 1e-11),
        ("standard", False, t.float32, 1e-5),
        ("none", False, t.float64, 1e-11),
        ("shortformer", True, t.float64, 1e-11),
    ],
)
def test_the_logits_are_those_of_each_window_alone(
    make_model: MakeModel, positions: str, keep_first: bool, dtype: t.dtype, most: float
) -> None:
    """Ragged sequences, three windows long, ending at different times: the logits of one pass."""
    model = make_model(n_ctx=7, positions=positions).to(dtype)
    reader = Reader(model, keep_first, longest=26)
    for sequences in growing([1, 5, 3, 3, 9], 21, ended={2: 2, 0: 9, 4: 12}):
        with t.no_grad():
            found = reader.logits_after(sequences)
            for row, ids in zip(found, sequences.values(), strict=True):
                alone = model(t.tensor([window_of(ids, 7, keep_first)]))[0, -1]
                scale = float(alone.abs().max()) if dtype == t.float32 else 1.0
                t.testing.assert_close(row, alone, rtol=0, atol=most * max(scale, 1.0))


@pytest.mark.parametrize("n_ctx", [1, 2])
def test_the_smallest_windows(make_model: MakeModel, n_ctx: int) -> None:
    """A window of one token or two, with and without cache, is read as any other."""
    model = make_model(n_ctx=n_ctx)
    for use_cache in (True, False):
        reader = Reader(model, True, longest=9, use_cache=use_cache)
        for sequences in growing([1, 3], 6, ended={}):
            with t.no_grad():
                found = reader.logits_after(sequences)
                for row, ids in zip(found, sequences.values(), strict=True):
                    alone = model(t.tensor([window_of(ids, n_ctx, True)]))[0, -1]
                    t.testing.assert_close(row, alone, rtol=0, atol=1e-11)


def test_the_cache_spares_a_batch_the_work(make_model: MakeModel) -> None:
    """A step reads one token a sequence; who ends leaves; who slides is read whole, not the rest.

    Lengths 2 and 4 in a window of 6: the longer one slides after three steps, and then the shorter
    one is read once more, without the padding.
    """
    shapes: list[tuple[int, ...]] = []

    def keep(_: str, tokens: Tensor) -> None:
        shapes.append(tuple(tokens.shape))

    model = make_model(n_ctx=6)
    reader = Reader(model, True, longest=12)
    with listen(model, "embed.in", keep), t.no_grad():
        for sequences in growing([2, 4, 4], 6, ended={2: 2}):
            reader.logits_after(sequences)

    assert shapes == [(3, 4), (3, 1), (2, 1), (1, 5), (1, 6), (1, 1), (1, 6), (2, 6)]


def test_blocks_by_hand() -> None:
    """n_ctx 8 in blocks of 2: of 9 and 10 tokens two are dropped, of 11 and 12 four; BOS stays."""
    assert [dropped(length, 8, 2) for length in range(7, 14)] == [0, 0, 2, 2, 4, 4, 6]
    assert [dropped(length, 8) for length in range(7, 14)] == [0, 0, 1, 2, 3, 4, 5]
    assert window_of(list(range(9)), 8, True, 2) == [0, 3, 4, 5, 6, 7, 8]
    assert window_of(list(range(9)), 8, False, 2) == [2, 3, 4, 5, 6, 7, 8]
    assert [block_of("blocks", n_ctx) for n_ctx in (1, 7, 8, 128)] == [1, 1, 2, 32]


@pytest.mark.parametrize("positions", ["standard", "none", "shortformer"])
@pytest.mark.parametrize("keep_first", [True, False])
def test_blocks_give_the_logits_of_their_windows(
    make_model: MakeModel, positions: str, keep_first: bool
) -> None:
    """Each sequence's window depends on its own length alone, and is read as if it stood alone."""
    model = make_model(n_ctx=9, positions=positions)
    reader = Reader(model, keep_first, longest=40, window="blocks")
    for sequences in growing([1, 5, 3, 3, 12], 28, ended={2: 2, 0: 9, 4: 12}):
        with t.no_grad():
            found = reader.logits_after(sequences)
            for row, ids in zip(found, sequences.values(), strict=True):
                alone = model(t.tensor([window_of(ids, 9, keep_first, 2)]))[0, -1]
                t.testing.assert_close(row, alone, rtol=0, atol=1e-11)


def test_blocks_use_the_cache_past_the_window(make_model: MakeModel) -> None:
    """n_ctx 8: past it seven tokens are read, then one, and so on; each length on its own."""
    shapes: list[tuple[int, ...]] = []
    model = make_model(n_ctx=8)
    reader = Reader(model, True, longest=30, window="blocks")
    watch = listen(model, "embed.in", lambda _, tokens: shapes.append(tuple(tokens.shape)))
    with watch, t.no_grad():
        for sequences in growing([7, 7, 8], 6, ended={1: 3, 2: 3}):
            reader.logits_after(sequences)

    both_lengths = [(3, 8), (2, 8), (1, 7), (1, 1), (2, 7)]
    assert shapes == [*both_lengths, (1, 1), (1, 7), (1, 1)]


def test_one_row_by_packed_weights(make_model: MakeModel, everything_is_packed: None) -> None:
    """Float32, one sequence, three windows long, with packed weights: the logits of each window."""
    model = make_model(n_ctx=7).float()
    weights = PackedWeights()
    reader = Reader(model, True, longest=22, packed=weights)
    for sequences in growing([1], 21, ended={}):
        with t.no_grad():
            found = reader.logits_after(sequences)
            alone = model(t.tensor([window_of(sequences[0], 7, True)]))[0, -1]
            t.testing.assert_close(found[0], alone, rtol=0, atol=1e-5 * float(alone.abs().max()))

    assert weights._matrices


@pytest.mark.parametrize("weights", [None, PackedWeights()], ids=["plain", "packed"])
def test_watching_changes_no_bit(
    make_model: MakeModel, everything_is_packed: None, weights: PackedWeights | None
) -> None:
    """Every named tensor watched, prompts and single tokens, in float32: the same logits."""
    model = make_model(n_ctx=12).float()
    seen: list[str] = []
    for lengths in ([9], [4, 9, 1]):
        silent = Reader(model, True, longest=16, packed=weights)
        watched = Reader(model, True, longest=16, packed=weights)
        for sequences in growing(lengths, 7, ended={1: 3}):
            with t.no_grad():
                expected = silent.logits_after(sequences)
                with listen(model, "*", lambda name, _: seen.append(name)):
                    found = watched.logits_after(sequences)
            assert t.equal(found, expected)

    assert {"blocks.1.attn.attn_pattern", "blocks.1.mlp.post", "ln_final.out"} <= set(seen)
