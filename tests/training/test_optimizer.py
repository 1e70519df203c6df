"""AdamW and Muon move every trainable weight as the formulae say, and decay matrices only."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as t
from torch.distributed.fsdp import fully_shard

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.block import TransformerBlock
from pvml.modules.transformer import Transformer
from pvml.training.args import TrainingArgs
from pvml.training.losses import get_log_probs
from pvml.training.optimizer import Optimizers, decay_groups, make_optimizer

MUONS = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_out")


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


def batches(n: int) -> list[t.Tensor]:
    generator = t.Generator().manual_seed(5)
    return [t.randint(0, 29, (5, 11), generator=generator) for _ in range(n)]


def take_steps(model: Transformer, optimizer: Optimizers, tokens: list[t.Tensor]) -> None:
    for batch in tokens:
        (-get_log_probs(model(batch), batch).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def same_bits(one: Transformer, other: Transformer) -> bool:
    there = dict(other.named_parameters())
    return all(t.equal(p, there[name]) for name, p in one.named_parameters())


def test_adamw_is_pytorchs_own(model: Transformer) -> None:
    """Three steps equal torch.optim.AdamW's with the same groups bit for bit."""
    other = deepcopy(model)
    decay, without = decay_groups(other)
    plain = t.optim.AdamW(
        [{"params": decay, "weight_decay": 0.3}, {"params": without, "weight_decay": 0.0}],
        lr=0.01,
        fused=True,
    )
    for batch in batches(3):
        (-get_log_probs(other(batch), batch).mean()).backward()
        plain.step()
        plain.zero_grad()
    take_steps(model, make_optimizer(model, TrainingArgs(lr=0.01, weight_decay=0.3)), batches(3))

    assert same_bits(model, other)


def orthogonalised(g: np.ndarray) -> np.ndarray:
    """Five rounds of x <- a x + b (x x') x + c (x x')^2 x, from x = g / |g|."""
    x = g / np.linalg.norm(g)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
    return x


def test_muon_by_the_formula(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps equal momentum, Newton-Schulz and scale written out, heads side by side.

    PyTorch orthogonalises in bfloat16, whose rounding is up to a tenth of the way: it is taken out.
    """
    monkeypatch.setattr(t.Tensor, "bfloat16", t.Tensor.clone)
    args = TrainingArgs(lr=0.01, weight_decay=0.3, optimizer="muon")
    optimizer = make_optimizer(model, args)
    named = {n: p for n, p in model.named_parameters() if n.rpartition(".")[2] in MUONS}
    expected = {name: p.detach().double().numpy().copy() for name, p in named.items()}
    before = deepcopy(expected)
    momentum = {name: np.zeros_like(x) for name, x in expected.items()}
    for batch in batches(2):
        (-get_log_probs(model(batch), batch).mean()).backward()
        for name, p in named.items():
            assert p.grad is not None
            g = p.grad.double().numpy()
            momentum[name] = 0.95 * momentum[name] + 0.05 * g
            ahead = 0.95 * momentum[name] + 0.05 * g
            last = name.rpartition(".")[2]
            if last in ("W_Q", "W_K", "W_V"):
                matrix = np.concatenate(list(ahead), axis=1)
                assert matrix.shape == (13, 15)
                moved = np.stack(np.split(orthogonalised(matrix), 3, axis=1))
            else:
                matrix = np.concatenate(list(ahead)) if last == "W_O" else ahead
                moved = orthogonalised(matrix).reshape(ahead.shape)
            scale = 0.2 * max(matrix.shape) ** 0.5
            expected[name] = expected[name] * (1 - 0.01 * 0.3) - 0.01 * scale * moved
        optimizer.step()
        optimizer.zero_grad()

    assert len(named) == 12
    for name, p in named.items():
        off = np.linalg.norm(p.detach().double().numpy() - expected[name])
        assert off < 1e-4 * np.linalg.norm(expected[name] - before[name]), name


def test_muon_leaves_tables_and_biases_to_adamw(model: Transformer) -> None:
    """With Muon beside it AdamW moves the first step's tables, biases and LayerNorms as alone."""
    other = deepcopy(model)
    take_steps(model, make_optimizer(model, TrainingArgs(optimizer="muon")), batches(1))
    take_steps(other, make_optimizer(other, TrainingArgs()), batches(1))

    alone = dict(other.named_parameters())
    for name, p in model.named_parameters():
        assert t.equal(p, alone[name]) == (name.rpartition(".")[2] not in MUONS), name


@pytest.mark.parametrize("changes", [{"n_layers": 0}, {"attn_only": True}, {"n_heads": 1}])
def test_muon_with_few_matrices(changes: dict[str, Any]) -> None:
    """No blocks, no MLPs or a single head: every trainable parameter moves."""
    sizes: dict[str, Any] = {"d_model": 12, "n_heads": 3, "n_layers": 1, "n_ctx": 11, "d_vocab": 29}
    model = Transformer(Config(**{**sizes, **changes}), seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    take_steps(model, make_optimizer(model, TrainingArgs(optimizer="muon")), batches(1))

    for name, p in model.named_parameters():
        # a softmax ignores b_K: its gradient is zero but for rounding
        if p.requires_grad and not name.endswith("b_K"):
            assert not t.equal(p, before[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_loaded_state_goes_on_to_the_bit(
    model: Transformer, optimizer: str, tmp_path: Path
) -> None:
    """Saved after 3 steps and loaded elsewhere, in another layout, 3 more end in the same bits."""
    args = TrainingArgs.from_dict({"optimizer": optimizer, "lr": 0.01})
    live = make_optimizer(model, args)
    take_steps(model, live, batches(3))
    contiguous = {
        name: {key: x.contiguous() for key, x in kept.items()}
        for name, kept in live.state_dict().items()
    }
    t.save({"optimizer": contiguous, "model": model.state_dict()}, tmp_path / "state.pt")
    saved = t.load(tmp_path / "state.pt", weights_only=True)
    again = Transformer(model.cfg, seed=9)
    again.load_state_dict(saved["model"])
    loaded = make_optimizer(again, args)
    loaded.load_state_dict(saved["optimizer"])
    take_steps(model, live, batches(6)[3:])
    take_steps(again, loaded, batches(6)[3:])

    assert same_bits(model, again)


def test_the_state_is_by_name_and_shape(model: Transformer) -> None:
    """An entry a trainable parameter, of its shape: Muon's momentum or AdamW's averages."""
    state = make_optimizer(model, TrainingArgs(optimizer="muon")).state_dict()

    assert set(state) == {name for name, p in model.named_parameters() if p.requires_grad}
    assert {key: x.shape for key, x in state["blocks.1.attn.W_Q"].items()} == {
        "momentum_buffer": (3, 13, 5)
    }
    assert {key: x.shape for key, x in state["embed.W_E"].items()} == {
        "step": (),
        "exp_avg": (29, 13),
        "exp_avg_sq": (29, 13),
    }


def test_a_state_that_does_not_fit_is_told_whole(model: Transformer) -> None:
    """Renamed, missing, misshapen and foreign entries are listed together; nothing is loaded."""
    optimizer = make_optimizer(model, TrainingArgs())
    take_steps(model, optimizer, batches(1))
    state = {n: {k: x + 1 for k, x in kept.items()} for n, kept in optimizer.state_dict().items()}
    state["embed.W_X"] = state.pop("embed.W_E")
    state["blocks.0.attn.b_O"]["exp_avg"] = t.zeros(14)
    state["blocks.0.attn.b_Q"]["exp_avg_sq"] = t.zeros(3, 5, dtype=t.float64)
    state["blocks.1.attn.W_Q"] = {"momentum_buffer": t.zeros(3, 13, 5)}
    before = deepcopy(optimizer.state_dict())

    with pytest.raises(PvmlError) as refused:
        optimizer.load_state_dict(state)

    for complaint in (
        "embed.W_E is missing",
        "embed.W_X is no trainable parameter",
        "blocks.0.attn.b_O.exp_avg is (14,) float32 instead of (13,) float32",
        "blocks.0.attn.b_Q.exp_avg_sq is (3, 5) float64 instead of (3, 5) float32",
        "blocks.1.attn.W_Q has momentum_buffer instead of exp_avg, exp_avg_sq, step",
    ):
        assert complaint in str(refused.value)
    for name, kept in optimizer.state_dict().items():
        assert all(t.equal(x, before[name][key]) for key, x in kept.items())


@pytest.mark.parametrize("state", [None, [1], {}])
def test_what_is_no_state_is_refused(model: Transformer, state: Any) -> None:
    """Nothing, a list or an empty dictionary is an error, not a silent start from zero."""
    with pytest.raises(PvmlError, match="optimizer"):
        make_optimizer(model, TrainingArgs()).load_state_dict(state)


def test_muon_refuses_heads_that_lie_apart(model: Transformer) -> None:
    """A W_Q stored head by head has no 2-D view: an error names it. AdamW takes it."""
    attn = model.blocks[0].attn
    attn.W_Q = t.nn.Parameter(attn.W_Q.detach().contiguous())

    with pytest.raises(PvmlError, match=r"Muon cannot move blocks\.0\.attn\.W_Q: its heads do not"):
        make_optimizer(model, TrainingArgs(optimizer="muon"))
    take_steps(model, make_optimizer(model, TrainingArgs()), batches(1))


def test_muon_refuses_a_model_that_was_moved(model: Transformer) -> None:
    """Weights that got other memory after the optimizer was made are not silently left behind."""
    optimizer = make_optimizer(model, TrainingArgs(optimizer="muon"))
    model.blocks[1].mlp.W_in.data = model.blocks[1].mlp.W_in.data.clone()

    with pytest.raises(PvmlError, match=r"blocks\.1\.mlp\.W_in: it was moved"):
        take_steps(model, optimizer, batches(1))


def test_a_gradient_in_another_layout_moves_the_same(model: Transformer) -> None:
    """The fused kernel ignores strides: a contiguous gradient of the strided W_Q is laid out."""
    other = deepcopy(model)
    for one in (model, other):
        optimizer = make_optimizer(one, TrainingArgs(lr=0.01))
        (-get_log_probs(one(batches(1)[0]), batches(1)[0]).mean()).backward()
        if one is other:
            for p in one.parameters():
                p.grad = None if p.grad is None else p.grad.contiguous()
        optimizer.step()

    assert other.blocks[0].attn.W_Q.stride() != other.blocks[0].attn.W_Q.contiguous().stride()
    assert same_bits(model, other)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_rate_can_be_set(model: Transformer, optimizer: str) -> None:
    """At a rate of 0 nothing moves, the decay included; every group obeys."""
    before = deepcopy(model)
    moving = make_optimizer(model, TrainingArgs.from_dict({"optimizer": optimizer}))
    moving.set_lr(0.0)
    take_steps(model, moving, batches(2))
    assert same_bits(model, before)

    moving.set_lr(0.01)
    take_steps(model, moving, batches(1))
    assert not any(
        t.equal(p, was)
        for (name, p), was in zip(model.named_parameters(), before.parameters(), strict=True)
        if p.requires_grad
    )


def test_a_sharded_state_is_saved_whole(tmp_path: Path) -> None:
    """Under FSDP the state is of whole tensors; it goes on without FSDP, and the reverse."""
    x = t.randn(3, 4, 5)

    def step(one: TransformerBlock, before: Any = None) -> dict[str, dict[str, t.Tensor]]:
        optimizer = make_optimizer(one, TrainingArgs(lr=0.01))
        if before is not None:
            optimizer.load_state_dict(before)
        one(x).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return deepcopy(optimizer.state_dict())

    store = t.distributed.FileStore(str(tmp_path / "store"), 1)
    t.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        plain, sharded = (TransformerBlock(Config(d_model=5, n_heads=1, d_mlp=7)) for _ in "ab")
        sharded.load_state_dict(plain.state_dict())
        fully_shard(sharded, mesh=t.distributed.init_device_mesh("cpu", (1,)))
        of_plain, of_sharded = step(plain), step(sharded)
        of_plain, of_sharded = step(plain, of_sharded), step(sharded, of_plain)
    finally:
        t.distributed.destroy_process_group()

    for name, kept in of_plain.items():
        assert kept["step"] == 2
        for key, value in kept.items():
            assert type(of_sharded[name][key]) is t.Tensor
            assert t.equal(value, of_sharded[name][key])
