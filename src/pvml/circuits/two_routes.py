"""The worked example: three tables, and the weights of a real model whose circuits they are.

The tables are read to build the weights and for nothing else. What the model does is found by the
functions that serve a trained one, which `python -m pvml.circuits.two_routes` shows step by step.
Positions count from 0 here, from 1 in what it prints. Rows are what is read and columns what is
answered (row vectors, `x @ W`); the paper's matrices are the transposes.

Source of the tables: the post "Two Routes Through a Transformer". Of the method: Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits".
"""

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.config import Config
from pvml.modules.transformer import Transformer

VOCABULARY: tuple[str, ...] = ("the", "cat", "sat", "on", "mat", ".")
SEQUENCE: tuple[str, ...] = ("the", "cat", "sat", "on", "the", "mat", ".", "the", "cat")

BIGRAM: Float[Tensor, "d_vocab d_vocab"] = t.tensor(
    [
        [0.0, 3.7, 0.2, 0.1, 4.1, 0.0],
        [0.3, 0.0, 3.9, 0.4, 0.1, 1.2],
        [1.1, 0.1, 0.0, 4.2, 0.2, 0.9],
        [4.4, 0.2, 0.0, 0.0, 0.6, 0.1],
        [0.5, 0.1, 0.1, 0.2, 0.0, 3.8],
        [3.5, 0.2, 0.0, 0.1, 0.1, 0.0],
    ],
    dtype=t.float64,
)
"""Route 1. Row: the token at this position. Column: a candidate for the next."""

QK: Float[Tensor, "d_vocab d_vocab"] = t.tensor(
    [
        [0.4, 3.4, 0.7, 0.6, 2.3, 0.5],
        [0.5, 0.3, 0.6, 0.4, 0.8, 0.3],
        [0.6, 1.2, 0.3, 0.5, 0.8, 0.4],
        [0.7, 1.0, 0.5, 0.3, 0.9, 0.4],
        [0.5, 0.9, 0.4, 0.6, 0.3, 0.4],
        [0.4, 0.8, 0.5, 0.4, 0.9, 0.3],
    ],
    dtype=t.float64,
)
"""Route 2, where to look: the score of a source (column) for a destination (row), already scaled.

The post shows scores along its sentence only, which fixes 30 of these 36; `OURS` names the rest.
"""

OURS = frozenset(
    {("sat", "on"), ("sat", "mat"), ("sat", "."), ("on", "mat"), ("on", "."), ("mat", ".")}
)
"""(destination, source) pairs that no causal cell of the sentence shows: their scores are ours."""

OV: Float[Tensor, "d_vocab d_vocab"] = t.tensor(
    [
        [0.9, 0.1, 0.0, 0.1, 0.1, 0.0],
        [0.1, 5.0, 0.2, 0.0, 0.0, 0.0],
        [0.2, 0.1, 4.1, 0.1, 0.1, 0.0],
        [0.1, 0.0, 0.1, 3.4, 0.2, 0.0],
        [0.1, 0.2, 0.1, 0.0, 2.0, 0.1],
        [0.0, 0.1, 0.0, 0.0, 0.0, 1.8],
    ],
    dtype=t.float64,
)
"""Route 2, what looking does. Row: the token looked at. Column: the candidate it speaks for."""


def token_ids() -> Int[Tensor, " posn"]:
    """The sentence as indices into VOCABULARY."""
    return t.tensor([VOCABULARY.index(token) for token in SEQUENCE])


def as_model() -> Transformer:
    """A one-layer attention-only model (float64) whose three circuits are the tables.

    Half of the stream says which token it is, the other half what the head copied there; W_U reads
    BIGRAM off the first half and OV off the second, and W_Q holds QK. Then the stream is turned at
    random, which changes no circuit, so that only products of weights have a table's entries.
    """
    n = len(VOCABULARY)
    cfg = Config(
        d_model=2 * n,
        n_heads=1,
        d_head=n,
        n_layers=1,
        n_ctx=len(SEQUENCE),
        d_vocab=n,
        attn_only=True,
        positions="none",
        normalization="none",
    )
    model = Transformer(cfg, seed=0).double()
    weights = {name: t.zeros_like(value) for name, value in model.state_dict().items()}
    turn = t.nn.init.orthogonal_(
        t.empty(2 * n, 2 * n, dtype=t.float64), generator=t.Generator().manual_seed(0)
    )
    token, copied = turn[:n], turn[n:]
    weights["embed.W_E"][:] = token
    # attention divides by sqrt(d_head) again
    weights["blocks.0.attn.W_Q"][0] = token.T @ QK * n**0.5
    weights["blocks.0.attn.W_K"][0] = token.T
    weights["blocks.0.attn.W_V"][0] = token.T
    weights["blocks.0.attn.W_O"][0] = copied
    weights["unembed.W_U"][:] = token.T @ BIGRAM + copied.T @ OV
    model.load_state_dict(weights)
    return model


if __name__ == "__main__":
    from pvml.demos.two_routes_command import command

    command()
