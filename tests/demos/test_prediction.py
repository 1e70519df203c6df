"""Which prediction the demo takes apart, and what it says of it."""

import pytest
import torch as t

from pvml.config import Config
from pvml.demos.prediction import most_helped
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen


def test_the_prediction_that_context_helped_most() -> None:
    """The one place where context makes the answer sure, and right, is picked."""
    cfg = Config(d_model=12, n_heads=2, n_layers=1, n_ctx=16, d_vocab=31, attn_only=True)
    model = Transformer(cfg, seed=0)
    rows = t.randint(31, (5, 16), generator=t.Generator().manual_seed(0))
    favourite = t.full((5, 16, 31), 0.0)
    favourite[3, 9, int(rows[3, 10])] = 9.0  # right there and nowhere else, in context only

    def answer(name: str, x: t.Tensor) -> t.Tensor:
        return favourite if x.shape == favourite.shape else t.zeros_like(x)

    with t.no_grad(), listen(model, "unembed.logits", answer, edits=True):
        pick = most_helped(model, rows)

    assert (pick.row, pick.position, pick.answer) == (3, 9, int(rows[3, 10]))
    assert pick.answer == pick.truth != pick.rival
    assert pick.answer_now > 0.99
    assert pick.answer_alone == pytest.approx(1 / 31)
    assert pick.rival_alone == pytest.approx(1 / 31)
