"""The worked example: a model of one head, written as three tables, and all that follows from them.

Only the tables are given; every other number is arithmetic on them. Positions count from 0 here,
from 1 in what `python -m pvml.circuits.two_routes` prints. Rows are what is read and columns what
is answered (row vectors, `x @ W`); the paper's matrices are the transposes.

Source of the tables: the post "Two Routes Through a Transformer". Of the method: Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits".
"""

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
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


def one_hot() -> Float[Tensor, "posn d_vocab"]:
    """The sentence as the formula's input t: one row a position, a 1 at its token."""
    return t.eye(len(VOCABULARY), dtype=t.float64)[token_ids()]


def scores(masked: bool = True) -> Float[Tensor, "posn_q posn_k"]:
    """The QK table read off along the sentence; -inf in the future unless `masked` is False."""
    seen = one_hot() @ QK @ one_hot().T
    future = t.ones_like(seen, dtype=t.bool).triu(1)
    return seen.masked_fill(future, -t.inf) if masked else seen


def attention(masked: bool = True) -> Float[Tensor, "posn_q posn_k"]:
    """The pattern A: each row of scores through a softmax, so that it shares out 1."""
    return scores(masked).softmax(-1)


def route_1() -> Float[Tensor, "posn d_vocab"]:
    """What each position's own token says about the next: its row of the bigram table."""
    return BIGRAM[token_ids()]


def route_2() -> Float[Tensor, "posn d_vocab"]:
    """What the head adds at each position: its attention row times the OV rows of what it reads."""
    return attention() @ OV[token_ids()]


def logits() -> Float[Tensor, "posn d_vocab"]:
    """Both routes together: the model's answer at every position."""
    return route_1() + route_2()


def at(position: int) -> tuple[dict[str, float], dict[str, float]]:
    """Route 1 and route 2 at one position (counted from 0), by candidate token.

    Raises: PvmlError for a position outside the sentence.
    """
    if not 0 <= position < len(SEQUENCE):
        raise PvmlError(
            f"the sentence has positions 0 to {len(SEQUENCE) - 1} (counted from 0), got {position}"
        )
    direct, head = (
        dict(zip(VOCABULARY, route[position].tolist(), strict=True))
        for route in (route_1(), route_2())
    )
    return direct, head


def glue(
    across_positions: Float[Tensor, "posn posn"],
    across_vocabulary: Float[Tensor, "d_vocab d_vocab"],
    tokens: Float[Tensor, "posn d_vocab"],
) -> Float[Tensor, "posn d_vocab"]:
    """`(A x B) t`, x the tensor product: A t B^T, for tokens t as one-hot rows.

    B is the paper's: [n_vocab out, n_vocab in], the transpose of a table here.
    """
    return across_positions @ tokens @ across_vocabulary.T


def formula() -> Float[Tensor, "posn d_vocab"]:
    """`T t` with T = Id x W_U W_E + A x W_U W_OV W_E, x the tensor product: the logits again."""
    t_ = one_hot()
    here = t.eye(len(SEQUENCE), dtype=t.float64)
    return glue(here, BIGRAM.T, t_) + glue(attention(), OV.T, t_)


def as_model() -> Transformer:
    """The tables as the weights of a real one-layer model, in float64.

    The stream has a half for tokens, which the bigram table unembeds, and a half for what the head
    copies, which the OV table unembeds. W_E and W_V only say which token it is.
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
    weights["embed.W_E"][:, :n] = t.eye(n)
    weights["blocks.0.attn.W_Q"][0, :n] = QK * n**0.5  # attention divides by sqrt(d_head) again
    weights["blocks.0.attn.W_K"][0, :n] = t.eye(n)
    weights["blocks.0.attn.W_V"][0, :n] = t.eye(n)
    weights["blocks.0.attn.W_O"][0, :, n:] = t.eye(n)
    weights["unembed.W_U"][:n] = BIGRAM
    weights["unembed.W_U"][n:] = OV
    model.load_state_dict(weights)
    return model


if __name__ == "__main__":
    from pvml.demos.two_routes import main

    main()
