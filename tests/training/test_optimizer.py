"""AdamW moves every trainable weight as the formula says, and decays matrices only."""

import pytest
import torch as t

from pvml.config import Config
from pvml.modules.transformer import Transformer
from pvml.training.args import TrainingArgs
from pvml.training.losses import get_log_probs
from pvml.training.optimizer import decay_groups, make_optimizer


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def model(request: pytest.FixtureRequest) -> Transformer:
    sizes = {"d_model": 13, "n_heads": 3, "d_head": 5, "d_mlp": 17, "n_layers": 2, "n_ctx": 11}
    cfg = Config(**sizes, d_vocab=29, tie_embeddings=request.param)  # type: ignore[arg-type]
    model = Transformer(cfg, seed=0)
    with t.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * t.randn_like(parameter))
    return model


def test_matrices_decay_and_nothing_else(model: Transformer) -> None:
    """W_* decay; biases (b_Q with its two axes too), LayerNorm's w and b, frozen b_U do not."""
    names = {id(p): name for name, p in model.named_parameters()}
    decay, without = ({names[id(p)] for p in group} for group in decay_groups(model))

    assert {name.rpartition(".")[2] for name in decay} <= {
        *("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "W_U"),
    }
    assert {name.rpartition(".")[2] for name in without} == {
        *("w", "b", "b_Q", "b_K", "b_V", "b_O", "b_in", "b_out"),
    }
    assert decay | without | {"unembed.b_U"} == {*names.values(), "unembed.b_U"}


def test_two_steps_by_the_formula(model: Transformer) -> None:
    """Two steps equal AdamW written out in float64, strided W_Q included, decay on matrices."""
    args = TrainingArgs(lr=0.01, weight_decay=0.3)
    optimizer = make_optimizer(model, args)
    expected = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    first = {name: t.zeros_like(x) for name, x in expected.items()}
    second = {name: t.zeros_like(x) for name, x in expected.items()}
    for step in (1, 2):
        tokens = t.randint(0, 29, (5, 11))
        (-get_log_probs(model(tokens), tokens).mean()).backward()
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            g, x = p.grad.double(), expected[name]
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            m, v = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
            decay = 0.3 if name.rpartition(".")[2].startswith("W_") else 0.0
            expected[name] = x - 0.01 * decay * x - 0.01 * m / (v.sqrt() + 1e-8)
        optimizer.step()
        optimizer.zero_grad()

    for name, p in model.named_parameters():
        # b_K has no true gradient (a softmax ignores a constant): its float noise is not compared
        if not name.endswith("b_K"):
            t.testing.assert_close(p.double(), expected[name], rtol=1e-4, atol=2e-6, msg=name)


def test_a_step_leaves_a_tied_table_one_tensor() -> None:
    """After a step the unembedding still reads the embedding's own numbers (case 11)."""
    cfg = Config(d_model=13, n_heads=1, n_layers=1, n_ctx=7, d_vocab=29, tie_embeddings=True)
    model = Transformer(cfg, seed=0)
    before = model.embed.W_E.detach().clone()
    optimizer = make_optimizer(model, TrainingArgs())
    model(t.randint(0, 29, (2, 7))).logsumexp(-1).mean().backward()
    optimizer.step()

    assert not t.equal(model.embed.W_E, before)
    assert model.unembed.W_U.data_ptr() == model.embed.W_E.data_ptr()
