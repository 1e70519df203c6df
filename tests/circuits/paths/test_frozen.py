"""Freeze A: within it the logits are linear in the embeddings, without it they are not."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.paths.frozen import freeze
from pvml.errors import PvmlError
from pvml.trace.tap import listen

SETTINGS: list[dict[str, Any]] = [
    {},
    {"attn_only": True},
    {"normalization": "none", "attn_only": True, "positions": "none"},
    {"positions": "shortformer"},
    {"n_layers": 0},
]


def logits_with(model: Any, tokens: Tensor, embedded: Tensor) -> Tensor:
    with listen(model, "embed.out", lambda _, x: embedded, edits=True), t.no_grad():
        return model(tokens)


def bend(model: Any, tokens: Tensor) -> float:
    """How far from linear: the largest of |f(a + b) - f(a) - f(b) + f(0)|."""
    rng = t.Generator().manual_seed(0)
    a, b = (t.randn(*tokens.shape, 13, generator=rng, dtype=t.float64) for _ in range(2))
    parts = (a + b, a, b, t.zeros_like(a))
    both, one, other, none = (logits_with(model, tokens, x) for x in parts)
    return float((both - one - other + none).abs().max())


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_frozen_is_linear(make_model: Any, tokens: Tensor, changes: dict[str, Any]) -> None:
    """To rounding; the tokens' own logits are as they were; afterwards nothing is held."""
    model = make_model(**changes)
    with t.no_grad():
        before = model(tokens)
    with freeze(model, tokens) as held, t.no_grad():
        t.testing.assert_close(model(tokens), before, rtol=0, atol=1e-12)
        assert bend(model, tokens) < 1e-11
    if changes.get("n_layers", 2):
        assert "blocks.1.attn.attn_pattern" in held
        assert bend(model, tokens) > 1e-3
    with t.no_grad():
        assert t.equal(model(tokens), before)


def test_freezing_for_nothing_is_told(make_model: Any, tokens: Tensor) -> None:
    """A block in which the model is not run has frozen nothing."""
    with pytest.raises(PvmlError, match="attn_pattern"), freeze(make_model(), tokens):
        pass


def test_the_packages_name_is_the_function() -> None:
    """`from pvml.circuits import freeze` gives what freezes, not a module that is called so."""
    from pvml import circuits

    assert circuits.freeze is freeze
