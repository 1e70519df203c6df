"""Embed and PosEmbed: rows of a table, and clear errors for ids and lengths it does not have."""

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.embedding import Embed, PosEmbed, check_tokens

CFG = Config(d_model=5, n_heads=1, n_ctx=7, d_vocab=11)


def test_a_token_becomes_its_row():
    """Each id is replaced by its row of W_E."""
    embed = Embed(CFG)

    assert t.equal(embed(t.tensor([[3, 0], [10, 3]])), embed.W_E[t.tensor([[3, 0], [10, 3]])])


def test_positions_are_the_first_rows_for_every_sequence():
    """Only the shape of the tokens matters: rows 0, 1, ... for each sequence."""
    pos = PosEmbed(CFG)
    out = pos(t.tensor([[3, 0, 1], [10, 3, 2]]))

    assert t.equal(out, pos.W_pos[:3].expand(2, 3, 5))


def test_positions_may_start_later_or_be_named():
    """A cached pass starts where the last one ended; padding names each token's own row."""
    pos = PosEmbed(CFG)
    tokens = t.zeros(1, 2, dtype=t.long)

    assert t.equal(pos(tokens, start=5), pos.W_pos[None, 5:7])
    assert t.equal(pos(tokens, places=t.tensor([[0, 0]])), pos.W_pos[None, [0, 0]])


@pytest.mark.parametrize("wrong", [-1, 11, 50256])
def test_an_id_outside_the_vocabulary_is_named(wrong):
    """An id that has no row is an error that names it and the range."""
    with pytest.raises(PvmlError, match=f"token id {wrong} is outside the vocabulary.*0 to 10"):
        Embed(CFG)(t.tensor([[1, wrong, 2]]))


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        (t.tensor([1, 2]), r"shape \(batch, posn\), got \(2,\): add a batch axis"),
        (t.tensor([[[1]]]), r"shape \(batch, posn\), got \(1, 1, 1\)"),
        (t.tensor([[1.0]]), "whole numbers .*got torch.float32"),
        (t.tensor([[True]]), "whole numbers .*got torch.bool"),
    ],
)
def test_tokens_must_be_ids_in_rows(tokens, complaint):
    """Another shape or dtype is an error that says what is expected."""
    with pytest.raises(PvmlError, match=complaint):
        check_tokens(tokens, CFG)


def test_positions_end_at_n_ctx():
    """A sequence past the last row is an error that names both numbers."""
    with pytest.raises(PvmlError, match="8 tokens are more than this model's n_ctx of 7"):
        PosEmbed(CFG)(t.zeros(1, 8, dtype=t.long))
    with pytest.raises(PvmlError, match="9 tokens are more than this model's n_ctx of 7"):
        PosEmbed(CFG)(t.zeros(1, 2, dtype=t.long), start=7)


@pytest.mark.parametrize("dtype", [t.int32, t.int16, t.int8])
def test_every_kind_of_whole_number_is_an_id(make_model, tokens, dtype):
    """Ids of 8, 16 and 32 bits give what ids of 64 bits give."""
    model = make_model()

    assert model(tokens.to(dtype)).equal(model(tokens))
