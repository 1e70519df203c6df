"""Rows: tokens conserved, BOS first; batches: each row once a pass, a pure function of the step."""

import hashlib
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch as t
from torch.utils.data import DataLoader

from pvml.data.args import Packing
from pvml.data.rows import Batches, Rows, pack
from pvml.data.stream import TokenStream, token_stream
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

BOS = 9


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Each word of "one two six" is one token, so a document of case 24 has 3."""
    return Tokenizer.train(["one two six"] * 5, 307)


def rows_of(n_tokens: int, n_ctx: int) -> Rows:
    return Rows(np.arange(n_tokens, dtype=np.uint16) + 10, n_ctx, BOS)


# By hand


def test_rows_by_hand() -> None:
    """Seven tokens in rows of 4: two rows of BOS and three tokens, one token left over."""
    rows = rows_of(7, n_ctx=4)

    assert [row.tolist() for row in (rows[0]["tokens"], rows[1]["tokens"])] == [
        [BOS, 10, 11, 12],
        [BOS, 13, 14, 15],
    ]
    assert (len(rows), rows.remainder, rows.tail.tolist()) == (2, 1, [16])
    assert rows[0]["tokens"].dtype == t.long


def test_rows_at_documents_by_hand() -> None:
    """Documents of 1, 4, 0, 1 and 1 tokens in rows of 4.

    The second does not fit behind the first, and begins the next row; it is longer than a row, and
    what is left of it is in none. The last ends with the stream, but would begin no full row.
    """
    ids = [1, BOS, 2, 3, 4, 5, BOS, BOS, 6, BOS, 7, BOS]
    rows = Rows(np.array(ids, np.uint16), 4, BOS, "document")

    assert rows.batch([0, 1, 2]).tolist() == [[BOS, 1, BOS, 2], [BOS, 2, 3, 4], [BOS, BOS, 6, BOS]]
    assert rows.starts().tolist() == [0, 2, 7]
    assert (rows.repeated, rows.cut_off, rows.remainder) == (1, 2, 2)
    assert rows.tail.tolist() == [7, BOS]


def test_case_24_by_hand(tokenizer: Tokenizer) -> None:
    """2,500 documents of 3 tokens and n_ctx 128: 10,000 tokens, 78 rows, remainder 94 (case 24)."""
    assert len(tokenizer.encode("one two six")) == 3
    rows = pack(tokenizer, ["one two six"] * 2500, 128)

    assert (len(rows.stream), len(rows), rows.remainder) == (10_000, 78, 94)
    assert int((rows.stream.ids() == tokenizer.eos_token_id).sum()) == 2500


def test_batches_by_hand() -> None:
    """Five rows in twos: the third batch takes the pass's last row and the next pass's first."""
    batches = Batches(5, 2, seed=0)
    rows = [row for step in range(5) for row in batches(step)]

    assert sorted(rows[:5]) == sorted(rows[5:]) == [0, 1, 2, 3, 4]
    assert len(batches) == 3


# Laws


@pytest.mark.parametrize("n_ctx", [2, 3, 11, 128])
def test_tokens_are_conserved(tokenizer: Tokenizer, n_ctx: int) -> None:
    """Rows without BOS, joined with the remainder, are the documents' tokens, each once."""
    documents = [f"one two{' six' * (n % 13)}" for n in range(101)]
    rows = pack(tokenizer, documents, n_ctx)
    joined = [token for row in range(len(rows)) for token in rows[row]["tokens"][1:].tolist()]

    expected = [i for text in documents for i in [*tokenizer.encode(text), tokenizer.eos_token_id]]
    assert joined + rows.tail.tolist() == expected
    assert all(rows[row]["tokens"][0] == tokenizer.bos_token_id for row in range(len(rows)))
    assert len(rows.tail) == rows.remainder < n_ctx - 1
    assert max(joined) < tokenizer.d_vocab


@pytest.mark.parametrize("n_ctx", [2, 3, 11, 29, 128])
@pytest.mark.parametrize("seed", range(3))
def test_rows_at_documents_conserve_tokens(n_ctx: int, seed: int) -> None:
    """A row starts with the document that the last row does not hold to its end; each token is in
    a row or two, or between two rows, or in the remainder."""
    dice = np.random.RandomState(seed)
    ids = np.where(dice.rand(1009) < 0.07, BOS, dice.randint(10, 99, 1009)).astype(np.uint16)
    rows = Rows(ids, n_ctx, BOS, "document")
    edges = [0, *(np.flatnonzero(ids == BOS) + 1).tolist(), len(ids)]
    expected: list[int] = []
    for start, end in pairwise(edges):
        held = bool(expected) and end <= expected[-1] + n_ctx - 1
        if start < end and not held and start + n_ctx - 1 <= len(ids):
            expected.append(start)

    assert rows.starts().tolist() == expected
    for row, start in enumerate(expected):
        assert rows[row]["tokens"].tolist() == [BOS, *ids[start : start + n_ctx - 1]]
    times = np.zeros(len(ids), int)
    for start in expected:
        times[start : start + n_ctx - 1] += 1
    assert times.max() <= 2
    assert ((times == 2).sum(), (times == 0).sum()) == (
        rows.repeated,
        rows.cut_off + rows.remainder,
    )
    assert rows.tail.tolist() == ids[len(ids) - rows.remainder :].tolist()


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_parts_change_nothing(tokenizer: Tokenizer, packing: Packing) -> None:
    """A stream that lies in parts gives the rows, the remainder and the identity of the whole."""
    documents = [f"one two{' six' * (n % 13)}" for n in range(101)]
    whole = token_stream(tokenizer, documents)
    parts = np.split(whole.ids(), [1, 2, 50, 333])
    cut = TokenStream(parts, whole.starts, whole.n_bytes)
    one, two = (Rows(stream, 11, tokenizer.bos_token_id, packing) for stream in (whole, cut))

    assert t.equal(one.batch(range(len(one))), two.batch(range(len(two))))
    assert one.tail.tolist() == two.tail.tolist()
    assert one.identity == two.identity


def test_the_identity_is_kept_for_good() -> None:
    """Older runs stored this line; the other packing of the same ids has another."""
    ids = np.arange(7, dtype=np.uint16)
    digest = hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()

    assert Rows(ids, 4, 0).identity == f"2 rows of 4, tokens {digest}"
    assert Rows(ids, 4, 9, "document").identity == (
        f"1 rows of 4, each with a document that did not fit, tokens {digest}"
    )


def test_a_batch_is_its_rows() -> None:
    """Rows taken together equal rows taken one by one, and own their memory."""
    rows = rows_of(53, n_ctx=6)
    batch = rows.batch([7, 0, 3])

    assert t.equal(batch, t.stack([rows[row]["tokens"] for row in (7, 0, 3)]))
    batch.zero_()
    assert rows[7]["tokens"].tolist() == [BOS, *range(45, 50)]


@pytest.mark.parametrize(("n_rows", "batch_size"), [(7, 3), (13, 13), (3, 7), (11, 1), (101, 17)])
def test_each_pass_visits_every_row_once(n_rows: int, batch_size: int) -> None:
    """Cut anywhere into batches, the sequence is one permutation after another."""
    batches = Batches(n_rows, batch_size, seed=5)
    taken = [batches(step) for step in range(3 * n_rows)]
    rows = [row for batch in taken for row in batch]

    assert all(len(batch) == batch_size for batch in taken)
    passes = [rows[start : start + n_rows] for start in range(0, len(rows), n_rows)]
    assert all(sorted(one) == list(range(n_rows)) for one in passes)
    assert n_rows < 7 or passes[0] != passes[1]


def test_a_step_is_a_pure_function_of_the_seed() -> None:
    """Steps asked for in any order, by any sampler of that seed, are the same; other seeds not."""
    straight, jumping, other = Batches(101, 7, 3), Batches(101, 7, 3), Batches(101, 7, 4)
    steps = [40, 0, 17, 3, 40, 14]
    later = {step: jumping(step) for step in steps}

    assert all(straight(step) == later[step] for step in range(41) if step in later)
    assert other(0) != straight(0)


def test_iteration_goes_on_where_it_stopped() -> None:
    """Epochs capped at 2 of 5 steps see steps 0 to 1, then 2 to 3; an epoch is ceil(rows/size)."""
    batches = Batches(23, 5, seed=1)
    first = [batch for batch, _ in zip(batches, range(2), strict=False)]
    batches.next_step = 2
    second = [batch for batch, _ in zip(batches, range(2), strict=False)]

    assert first + second == [batches(step) for step in range(4)]
    assert len(list(Batches(23, 5, seed=1))) == len(batches) == 5


def test_the_order_is_kept_for_good() -> None:
    """The permutation comes from a generator whose numbers never change: these ids are fixed."""
    assert Batches(11, 11, seed=0)(0) == [4, 6, 7, 3, 8, 1, 0, 2, 10, 5, 9]


# Contracts


def test_a_dataloader_takes_rows_and_batches() -> None:
    """As dataset and batch_sampler they give {"tokens": (batch, n_ctx)}, and random state stays."""
    rows, state = rows_of(53, n_ctx=6), np.random.get_state()[1].tolist()
    loader = DataLoader(rows, batch_sampler=Batches(len(rows), 3, seed=0))
    batches = list(loader)

    assert len(loader) == len(batches) == 4
    assert [batch["tokens"].shape for batch in batches] == [(3, 6)] * 4
    assert t.equal(batches[1]["tokens"], rows.batch(Batches(len(rows), 3, seed=0)(1)))
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize("length", [7, 8, 9])
def test_a_document_about_as_long_as_a_row(tokenizer: Tokenizer, length: int) -> None:
    """A document of n_ctx - 1, n_ctx or n_ctx + 1 tokens fills one row and leaves the rest over."""
    rows = pack(tokenizer, ["one" + " two" * (length - 1)], 8)

    assert (len(rows), rows.remainder) == (1, length + 1 - 7)


def test_too_little_text_tells_the_numbers(tokenizer: Tokenizer) -> None:
    """One short document and n_ctx 8: the error says how many tokens there are and what fits."""
    with pytest.raises(PvmlError, match=r"2 tokens do not fill one row: n_ctx 8 takes 7.*most 3"):
        pack(tokenizer, ["one"], 8)
    assert len(pack(tokenizer, ["one"], 3)) == 1


@pytest.mark.parametrize("documents", [[], ["", "", ""]])
def test_no_text_at_all_is_refused(tokenizer: Tokenizer, documents: list[str]) -> None:
    """No documents, or only empty ones: the error says which (case 25)."""
    cause = "all of the 3 documents are empty" if documents else "there are no documents"
    with pytest.raises(PvmlError, match=cause):
        pack(tokenizer, documents, 3)


def test_packing_leaves_the_tokenizer_as_it_was(tokenizer: Tokenizer) -> None:
    """The caller's tokenizer encodes after packing as before (case 25)."""
    before = tokenizer.to_json(), tokenizer.encode("one <|endoftext|>")
    pack(tokenizer, ["one two"] * 7, 5)

    assert (tokenizer.to_json(), tokenizer.encode("one <|endoftext|>")) == before


@pytest.mark.parametrize("n_ctx", [-1, 0, 1])
def test_a_row_needs_room_for_a_token(n_ctx: int) -> None:
    """With n_ctx 1 a row is BOS alone: refused, naming n_ctx."""
    with pytest.raises(PvmlError, match=f"n_ctx must be at least 2 to cut rows, got {n_ctx}"):
        rows_of(53, n_ctx)


def test_a_row_outside_is_an_index_error() -> None:
    """Asking for a row past the last is an error, so that a plain loop over rows ends."""
    rows = rows_of(53, n_ctx=6)
    with pytest.raises(IndexError):
        rows[len(rows)]
    assert len([row["tokens"] for row in rows]) == 10


def test_impossible_batches_are_refused() -> None:
    """No rows, an empty batch, a seed or step out of range: the error tells the value."""
    for n_rows, batch_size in ((0, 3), (3, 0)):
        with pytest.raises(PvmlError, match=f"got {n_rows} rows and batch_size {batch_size}"):
            Batches(n_rows, batch_size, seed=0)
    for seed in (-1, 1 << 32):
        with pytest.raises(PvmlError, match=f"seed must lie between 0 and .*, got {seed}"):
            Batches(3, 3, seed)
    with pytest.raises(PvmlError, match="steps count from 0, got -1"):
        Batches(3, 3, 0)(-1)
    with pytest.raises(PvmlError, match="step 1,000,000,000,000 lies beyond .* 10,737,418,239: "):
        Batches(5, 2, 0)(10**12)
    assert sorted(Batches(1, 1, 0)((1 << 32) - 1)) == [0]


def test_what_is_no_row_and_no_id_is_refused() -> None:
    """Where nothing checks annotations, each wrong value is an error that names it, never used."""
    wrong = {
        "Rows(ids, 4, 9, 'x')": "packing must be one of stream, document, got 'x'",
        "Rows(ids, 4.0, 9)": "n_ctx must be a whole number, got 4.0",
        "Rows(ids + 0.5, 4, 9)": "token ids must be one array of whole numbers, got float64 of "
        "shape (30,)",
        "Rows(ids.reshape(2, 15), 4, 9)": "token ids must be one array of whole numbers, got int64 "
        "of shape (2, 15)",
        "Rows(ids - 2, 4, 9)": "token ids count from 0, got -2 among them",
        "TokenStream([ids, ids - 3], ids[:1])": "token ids count from 0, got -3 among them",
        "Rows(ids, 4, 9).batch([1.7])": "row ids must be whole numbers, got float64: [1.7]",
        "Rows(ids, 4, 9)[True]": "row ids must be whole numbers, got bool: [True]",
        "Rows(ids, 4, 9).starts(['1'])": "row ids must be whole numbers, got <U1: ['1']",
        "Batches(5.0, 2, 0)": "n_rows must be a whole number, got 5.0",
        "Batches(5, 2.5, 0)": "batch_size must be a whole number, got 2.5",
        "Batches(5, 2, True)": "seed must be a whole number, got True",
        "Batches(5, 2, 0)(1.5)": "step must be a whole number, got 1.5",
    }
    code = f"""
import numpy as np
from pvml.data.rows import Batches, Rows
from pvml.data.stream import TokenStream
from pvml.errors import PvmlError
ids = np.arange(30)
for wrong in {list(wrong)!r}:
    try:
        print("accepted", eval(wrong))
    except PvmlError as refusal:
        print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == list(wrong.values())
    assert len(rows_of(53, n_ctx=6).batch([])) == 0
