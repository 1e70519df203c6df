"""One step: pieces, clipping, schedule, precision, and what it says when numbers go wrong."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.training import step as step_module
from pvml.training.args import TrainingArgs
from pvml.training.losses import get_log_probs
from pvml.training.nonfinite import NonFiniteError, first_non_finite
from pvml.training.schedules import lr_at
from pvml.training.step import TrainingStep

CFG = Config(d_model=12, n_heads=3, n_layers=2, n_ctx=10, d_vocab=67, init_range=0.2)


def model() -> Transformer:
    return Transformer(CFG, seed=3)


def tokens(rows: int = 6, seed: int = 1) -> t.Tensor:
    return t.randint(67, (rows, 10), generator=t.Generator().manual_seed(seed))


def args(**changes: object) -> TrainingArgs:
    return TrainingArgs(batch_size=6, **changes)  # type: ignore[arg-type]


def test_a_step_is_the_librarys_on_the_seeds_loss() -> None:
    """Three steps move the weights as torch's AdamW does on `-get_log_probs(...).mean()`."""
    theirs = model().double()  # b_K's gradient is 0 but for rounding, which AdamW would blow up
    decay = [p for n, p in theirs.named_parameters() if ".W_" in n]
    rest = [p for n, p in theirs.named_parameters() if ".W_" not in n and p.requires_grad]
    optimizer = t.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2
    )
    ours = TrainingStep(model().double(), args(lr=1e-2, weight_decay=0.1), 3)
    for step in range(3):
        loss = -get_log_probs(theirs(tokens(seed=step)), tokens(seed=step)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report = ours.take(step, tokens(seed=step))

        assert report.loss == pytest.approx(float(loss.detach()), rel=1e-12)
        assert report.lr == 1e-2

    for name, p in theirs.named_parameters():
        if not name.endswith("b_K"):
            assert t.allclose(ours.model.get_parameter(name), p, rtol=1e-8, atol=1e-9), name


@pytest.mark.parametrize("accumulate", [2, 4, 6])
def test_pieces_change_nothing_but_rounding(accumulate: int) -> None:
    """A batch in 2, in 4 uneven and in 6 pieces has the loss and the gradients of the whole."""
    whole = TrainingStep(model().double(), args(), 5)
    pieces = TrainingStep(model().double(), args(accumulate=accumulate), 5)

    assert pieces.gradients(tokens()) == pytest.approx(whole.gradients(tokens()), rel=1e-12)
    for name, p in whole.model.named_parameters():
        if p.grad is not None:
            other = pieces.model.get_parameter(name).grad
            assert other is not None
            assert t.allclose(other, p.grad, rtol=1e-10, atol=1e-13), name


def test_unset_pieces_hold_about_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 rows of 10 tokens at about 20 a piece make 3 pieces; at 4,096 they stay together."""
    seen: list[tuple[int, ...]] = []
    for most in (20, 4096, 1):
        monkeypatch.setattr(step_module, "_TOKENS_PER_PIECE", most)
        step = TrainingStep(model(), args(), 5)
        step.loss.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
        step.gradients(tokens())

    assert seen == [(2, 10)] * 3 + [(6, 10)] + [(1, 10)] * 6


def test_gradients_are_clipped_to_the_norm_that_is_reported_before() -> None:
    """The report has the norm before clipping; the gradients that move have the limit."""
    free = TrainingStep(model(), args(), 5)
    free.gradients(tokens())
    squares = [float(p.grad.square().sum()) for p in free.model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(squares))
    clipped = TrainingStep(model(), args(grad_clip=norm / 3), 5)
    seen: list[float] = []
    move = clipped.optimizer.step

    def look() -> None:
        squares = [
            float(p.grad.square().sum()) for p in clipped.model.parameters() if p.grad is not None
        ]
        seen.append(math.sqrt(sum(squares)))
        move()

    clipped.optimizer.step = look  # type: ignore[method-assign]
    report = clipped.take(0, tokens())

    assert report.grad_norm == pytest.approx(norm, rel=1e-4)
    assert report.to_dict().keys() == {"loss", "lr", "grad_norm"}
    assert seen == [pytest.approx(norm / 3, rel=1e-4)]


def test_each_step_moves_at_its_own_rate() -> None:
    """The reports' rates are the schedule's, and a step at rate near 0 hardly moves."""
    recipe = args(lr=1e-2, schedule="linear", warmup_steps=2)
    step = TrainingStep(model(), recipe, 6)
    rates = [step.take(i, tokens(seed=i)).lr for i in range(6)]

    assert rates == [lr_at(i, 6, recipe) for i in range(6)]
    assert rates[0] == pytest.approx(5e-3)


def test_bfloat16_moves_float32_weights() -> None:
    """Half arithmetic gives almost the same loss, and every weight stays float32."""
    exact = TrainingStep(model(), args(), 5)
    half = TrainingStep(model(), args(precision="bfloat16"), 5)

    assert half.take(0, tokens()).loss == pytest.approx(exact.take(0, tokens()).loss, abs=0.02)
    assert {p.dtype for p in half.model.parameters()} == {t.float32}


def test_a_loss_that_is_not_finite_names_the_weight_and_moves_nothing() -> None:
    """Step, rate and the first broken tensor are in the message; the weights are what they were."""
    step = TrainingStep(model(), args(lr=0.5), 5)
    with t.no_grad():
        step.model.blocks[1].mlp.W_in[0, 0] = math.nan
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}

    with pytest.raises(
        NonFiniteError, match=r"loss of step 4 is nan, at lr 0\.5; .* finite: blocks\.1\.mlp\.W_in$"
    ):
        step.take(3, tokens())

    for name, p in step.model.named_parameters():
        assert p.equal(before[name]) or name == "blocks.1.mlp.W_in"
        assert p.grad is None


def test_the_first_tensor_of_the_pass_is_named_where_the_weights_are_finite() -> None:
    """Weights whose product overflows: the tensor that overflowed, not those after it."""
    broken = model()
    with t.no_grad():
        broken.blocks[0].mlp.W_in.fill_(3e38)

    assert first_non_finite(broken, tokens()) == "blocks.0.mlp.pre"
    assert first_non_finite(model(), tokens()) is None


def test_a_gradient_that_is_not_finite_is_named_where_gradients_are_clipped() -> None:
    """The norm is checked before anything moves."""
    step = TrainingStep(model(), args(grad_clip=1.0), 5)
    step.model.blocks[0].attn.W_O.register_hook(lambda gradient: gradient * math.inf)
    before = step.model.embed.W_E.detach().clone()

    with pytest.raises(NonFiniteError, match=r"gradients of step 1 .*blocks\.0\.attn\.W_O"):
        step.take(0, tokens())

    assert step.model.embed.W_E.equal(before)


def test_a_schedule_that_does_not_fit_is_refused_at_once() -> None:
    """A warm-up longer than the run is an error before the first step."""
    with pytest.raises(PvmlError, match="warmup_steps"):
        TrainingStep(model(), args(schedule="cosine", warmup_steps=9), 5)


def test_another_number_of_rows_is_refused() -> None:
    """A batch that is not batch_size rows would be scaled wrongly."""
    step = TrainingStep(model(), args(), 5)

    with pytest.raises(PvmlError, match="4 rows came, and .* batch_size 6 is 6"):
        step.take(0, tokens(rows=4))


@pytest.mark.parametrize("n_ctx", [10, 513])
def test_short_rows_take_the_faster_route_both_ways(
    monkeypatch: pytest.MonkeyPatch, n_ctx: int
) -> None:
    """Forward and backward pass lie within it, and not where attention's kernel takes the rows."""
    entered: list[str] = []

    @contextmanager
    def route(device: t.device, dtype: t.dtype) -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    monkeypatch.setattr(step_module, "fastest_float32", route)
    cfg = Config(d_model=6, n_heads=1, n_layers=1, n_ctx=n_ctx, d_vocab=67)
    step = TrainingStep(Transformer(cfg, seed=0), TrainingArgs(batch_size=1), n_steps=9)
    for p in step.model.parameters():
        if p.requires_grad:
            p.register_hook(lambda g: entered.append("gradient"))
    step.gradients(t.zeros(1, n_ctx, dtype=t.long))

    inside = [entered[0], entered[-1]] == ["in", "out"] and "gradient" in entered[1:-1]
    assert inside == (n_ctx <= 512)
    assert ("in" in entered) == (n_ctx <= 512)
