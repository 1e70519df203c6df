"""A whole induction circuit, written as weights."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

CIRCUIT_VOCAB, CIRCUIT_CTX = 29, 31
_SHARP = 200.0


@pytest.fixture(scope="session")
def circuit_text() -> Tensor:
    """Rows of random tokens behind BOS, which is 0."""
    rng = t.Generator().manual_seed(0)
    tokens = t.randint(1, CIRCUIT_VOCAB, (67, CIRCUIT_CTX), generator=rng)
    tokens[:, 0] = 0
    return tokens


@pytest.fixture(scope="session")
def make_circuit() -> Any:
    """Zero weights but for 0.1, a previous-token head, and 1.2, which continues repetitions.

    The stream has room for a token, its position, the token before, and what is said about the next
    one. `induction=False` leaves 1.2 out, `previous=False` leaves 0.1 out.
    """
    from pvml.config import Config
    from pvml.modules.transformer import Transformer

    def make(previous: bool = True, induction: bool = True, **changes: Any) -> Transformer:
        n, posn = CIRCUIT_VOCAB, CIRCUIT_CTX
        token, place = slice(0, n), slice(n, n + posn)
        before, said = slice(n + posn, 2 * n + posn), slice(2 * n + posn, 3 * n + posn)
        sizes = {"d_model": 3 * n + posn, "n_heads": 3, "d_head": posn, "n_layers": 2}
        shape = {"n_ctx": posn, "d_vocab": n, "attn_only": True, "normalization": "none"}
        model = Transformer(Config(**{**sizes, **shape, **changes}), seed=0).double()
        with t.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            model.embed.W_E[:, token] = t.eye(n)
            model.pos_embed.W_pos[:, place] = t.eye(posn)
            model.unembed.W_U[said] = 10 * t.eye(n)
            if previous:
                attn = model.blocks[0].attn
                attn.W_Q[1, place] = _SHARP * t.eye(posn).roll(-1, 1)
                attn.W_Q[1, n] = 0  # position 0 has nothing before it
                attn.W_K[1, place] = t.eye(posn)
                attn.W_V[1, token, :n] = t.eye(n)
                attn.W_O[1, :n, before] = t.eye(n)
            if induction:
                attn = model.blocks[1].attn
                attn.W_Q[2, token, :n] = _SHARP * t.eye(n)
                attn.W_K[2, before, :n] = t.eye(n)
                attn.W_V[2, token, :n] = t.eye(n)
                attn.W_O[2, :n, said] = t.eye(n)
        return model

    return make
