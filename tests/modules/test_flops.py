"""The count of operations: by hand, against the parameters, and against PyTorch's own counter."""

from typing import Any

import pytest
import torch as t
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.flops import Flops, forward_flops, training_flops
from pvml.training.losses import get_log_probs


def test_a_model_by_hand() -> None:
    """d_model 4, 2 heads of 3, d_mlp 5, 2 layers, 7 ids, rows of 6: each part is added up."""
    cfg = Config(d_model=4, n_heads=2, d_head=3, d_mlp=5, n_layers=2, n_ctx=6, d_vocab=7)

    # 24 weights in each of W_Q, W_K, W_V, W_O; 20 in W_in, W_out; 28 in W_U; two layers
    assert forward_flops(cfg) == Flops(
        projections=2 * 4 * 24 * 2,
        grid=2 * (6 * 6 + 6 * 6) * 2,  # 6 keys of width 6 scored, 6 values of width 6 mixed
        mlp=2 * 2 * 20 * 2,
        unembedding=2 * 28,
    )
    assert forward_flops(cfg).total == 384 + 288 + 160 + 56


def test_gpt2_small() -> None:
    """GPT-2 small costs 285 million operations a token at 1,024 tokens, and 854 in training."""
    assert forward_flops(Config()) == Flops(
        projections=56_623_104, grid=37_748_736, mlp=113_246_208, unembedding=77_194_752
    )
    assert training_flops(Config()).total == 3 * 284_812_800


def test_only_the_grid_grows_with_the_row() -> None:
    """Half as long a row halves the grid's cost per token and leaves the rest."""
    whole, half = forward_flops(Config()), forward_flops(Config(), 512)

    assert half == Flops(
        projections=whole.projections,
        grid=whole.grid // 2,
        mlp=whole.mlp,
        unembedding=whole.unembedding,
    )


def test_a_bigram_model_only_unembeds() -> None:
    """Without layers everything is in the unembedding; without MLPs they cost nothing."""
    bigram = forward_flops(Config(n_layers=0))

    assert bigram.total == bigram.unembedding == 2 * 768 * 50257
    assert forward_flops(Config(attn_only=True)).mlp == 0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attn_only": True},
        {"positions": "shortformer"},
        {"tie_embeddings": True},
        {"n_layers": 0},
    ],
)
def test_the_count_is_pytorchs(make_model: Any, changes: dict[str, Any]) -> None:
    """PyTorch's counter sees as many operations in the products of a forward and of a step."""
    model = make_model(**changes)
    rows = t.randint(0, 29, (2, 7))
    # the math kernel: the fused one computes the scores a second time in its backward pass
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            logits = model(rows)
        with FlopCounterMode(display=False) as backward:
            get_log_probs(logits, rows).mean().backward()

    assert forward.get_total_flops() == rows.numel() * forward_flops(model.cfg, 7).total
    assert backward.get_total_flops() == 2 * forward.get_total_flops()
    assert training_flops(model.cfg, 7).total == 3 * forward_flops(model.cfg, 7).total


@pytest.mark.parametrize("n_ctx", [0, 1025])
def test_a_row_that_the_model_cannot_read_is_refused(n_ctx: int) -> None:
    """An n_ctx outside the model's is an error that names both."""
    with pytest.raises(PvmlError, match=f"1024, got {n_ctx}"):
        forward_flops(Config(), n_ctx)
