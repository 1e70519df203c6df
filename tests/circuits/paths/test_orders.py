"""Losses by order: all orders are the model, the first ones are what paths add up to."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.held import hold
from pvml.circuits.paths.logit_paths import paths_into
from pvml.circuits.paths.orders import loss_by_order, streams_by_order
from pvml.errors import CheckFailed, PvmlError
from pvml.trace.tap import listen
from pvml.training.losses import get_log_probs


@pytest.mark.parametrize("changes", [{}, {"attn_only": True, "n_layers": 3}], ids=str)
@pytest.mark.parametrize("positions", ["standard", "shortformer", "none"])
def test_streams_are_sums_of_paths(
    make_model: Any, tokens: Tensor, changes: dict[str, Any], positions: str
) -> None:
    """At every position, the paths of each order add up to that order's stream."""
    model = make_model(positions=positions, **changes)
    held = hold(model, tokens[:1])
    streams = streams_by_order(held)
    for position in (0, 3, 6):
        sums = t.zeros_like(streams[:, 0])
        for path in paths_into(held, position, model.cfg.n_layers):
            sums[path.order] += path.stream
        t.testing.assert_close(streams[:, position], sums, rtol=0, atol=1e-12)


def test_the_last_loss_is_the_models(make_model: Any, tokens: Tensor) -> None:
    """And the gains lead to it from the uniform guess."""
    model = make_model(n_layers=3)
    found = loss_by_order(model, tokens)
    with t.no_grad():
        own = -get_log_probs(model(tokens), tokens).mean()

    assert len(found.losses) == 4
    assert found.losses[-1] == pytest.approx(float(own), rel=1e-12)
    assert found.uniform - sum(found.gains) == pytest.approx(float(own), rel=1e-12)


def test_without_heads_order_0_is_all(make_model: Any, tokens: Tensor) -> None:
    """A model whose heads write nothing loses nothing by order 0 alone."""
    model = make_model()
    for block in model.blocks:
        block.attn.W_O.data.zero_()
    found = loss_by_order(model, tokens)

    assert found.losses[1:] == (found.losses[0],) * 2
    assert len(loss_by_order(make_model(n_layers=0), tokens).losses) == 1


def test_what_cannot_be_asked(make_model: Any, tokens: Tensor) -> None:
    """Rows without a prediction; a model that somebody edits."""
    model = make_model()
    for rows in (tokens[:, :1], tokens[:0]):
        with pytest.raises(PvmlError, match="at least 2 tokens have predictions to grade, got"):
            loss_by_order(model, rows)
    with listen(model, "unembed.logits", lambda _, x: x * 2, edits=True):
        with pytest.raises(CheckFailed, match="do not add up to the logits"):
            loss_by_order(model, tokens)
