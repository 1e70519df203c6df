"""The loss of a model: what is graded, what is shown to listeners, and what it is equal to."""

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.trace.capture import capture
from pvml.trace.tap import listen
from pvml.training.losses import NextTokenLoss, get_log_probs, next_token_losses

CFG = Config(d_model=12, n_heads=3, n_layers=2, n_ctx=16, d_vocab=67, init_range=0.3)


@pytest.fixture
def model() -> Transformer:
    return Transformer(CFG, seed=3).double()


@pytest.fixture
def tokens() -> t.Tensor:
    return t.randint(67, (3, 9), generator=t.Generator().manual_seed(1))


def gradients(model: Transformer, loss: t.Tensor) -> dict[str, t.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "changed", [{}, {"tie_embeddings": True}, {"n_layers": 0}, {"normalization": "none"}]
)
def test_the_same_as_get_log_probs(changed: dict[str, object], tokens: t.Tensor) -> None:
    """Losses and every parameter's gradient agree with the seeds' formula to 1e-12."""
    model = Transformer(Config(**{**CFG.to_dict(), **changed}), seed=3).double()
    plain = -get_log_probs(model(tokens), tokens)
    wanted = gradients(model, plain.mean())

    losses = next_token_losses(model, tokens)
    got = gradients(model, losses.mean)

    assert losses.n_tokens == 24
    assert t.allclose(losses.each, plain, rtol=1e-12, atol=1e-12)
    assert got.keys() == wanted.keys()
    assert max(float((got[k] - wanted[k]).abs().max()) for k in wanted) < 1e-12


def test_left_padding_is_neither_graded_nor_felt(model: Transformer) -> None:
    """[pad, pad, 1, 2, 3, 4] has the three losses of [1, 2, 3, 4], whatever the padding's ids."""
    bare = next_token_losses(model, t.tensor([[1, 2, 3, 4]]))
    mask = t.tensor([[0, 0, 1, 1, 1, 1]]).bool()

    for pad in (0, 5):
        padded = next_token_losses(model, t.tensor([[pad, pad, 1, 2, 3, 4]]), mask)

        assert padded.n_tokens == 3
        assert padded.each[0, :2].tolist() == [0, 0]
        assert t.allclose(padded.each[0, 2:], bare.each[0], rtol=0, atol=1e-12)
        assert float(padded.mean.detach()) == pytest.approx(float(bare.mean.detach()), abs=1e-12)


def test_ignored_tokens_are_read_but_not_graded(model: Transformer, tokens: t.Tensor) -> None:
    """Leaving tokens out of the grading changes no other token's loss."""
    everything = next_token_losses(model, tokens)
    graded = t.ones_like(tokens, dtype=t.bool)
    graded[0, 4:] = False

    some = next_token_losses(model, tokens, graded=graded)

    assert some.n_tokens == 24 - 5
    assert t.allclose(some.each[1:], everything.each[1:], rtol=0, atol=1e-12)
    assert some.each[0, 3:].tolist() == [0] * 5
    assert float(some.nats.detach()) == pytest.approx(
        float(everything.each.sum() - everything.each[0, 3:].sum()), abs=1e-10
    )


def test_means_by_position_and_by_token(model: Transformer) -> None:
    """A loss stands at the position and under the id of the token that it is about."""
    tokens = t.tensor([[1, 2, 2], [1, 5, 2]])
    graded = t.tensor([[True, True, True], [True, True, False]])
    losses = next_token_losses(model, tokens, graded=graded)
    a, b, c = losses.each[0, 0], losses.each[0, 1], losses.each[1, 0]

    assert losses.by_position().tolist() == pytest.approx([float(a + c) / 2, float(b)])
    by_token = losses.by_token(67)
    assert float(by_token[2]) == pytest.approx(float(a + b) / 2)
    assert float(by_token[5]) == pytest.approx(float(c))
    assert by_token.isnan().sum() == 65


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_listener_on_the_logits_sees_them_and_changes_nothing(
    precision: str, tokens: t.Tensor
) -> None:
    """Watching logits is announced with its price; loss and gradients keep every bit."""
    model = Transformer(CFG, seed=3)
    loss = NextTokenLoss(model, precision)  # type: ignore[arg-type]
    nats, _, _ = loss(tokens)
    wanted = gradients(model, nats)
    seen = []

    with listen(model, "unembed.logits", lambda name, x: seen.append(x.detach().clone())):
        with pytest.warns(UserWarning, match=r"writes all of them out: 0\.0 MB"):
            watched, each, _ = loss(tokens)
    got = gradients(model, watched)

    assert seen[0].shape == (3, 9, 67)
    assert t.allclose(-get_log_probs(seen[0], tokens), each, rtol=0.02, atol=0.05)
    assert t.equal(watched, nats)
    assert all(t.equal(got[name], wanted[name]) for name in wanted)


def test_an_edit_of_the_logits_is_graded(model: Transformer, tokens: t.Tensor) -> None:
    """The loss is that of the logits as they were edited."""
    with listen(model, "unembed.logits", lambda name, x: x * 0, edits=True):
        with pytest.warns(UserWarning, match="as much again for their gradient"):
            losses = next_token_losses(model, tokens)

    assert t.allclose(losses.each, t.full_like(losses.each, 67).log())


def test_an_edit_of_what_the_unembedding_reads_is_graded(
    model: Transformer, tokens: t.Tensor
) -> None:
    """`normalized_resid_final` is on the way of the chunked loss too."""
    with listen(model, "unembed.normalized_resid_final", lambda name, x: x * 0, edits=True):
        losses = next_token_losses(model, tokens)

    assert t.allclose(losses.each, t.full_like(losses.each, 67).log())


def test_the_gradient_of_the_logits_can_be_kept(model: Transformer, tokens: t.Tensor) -> None:
    """Asked for, it is there: softmax minus one at the target, 0 at the last position."""
    with capture(model, "unembed.logits", grads=True) as cache:
        with pytest.warns(UserWarning, match="unembed.logits"):
            losses = next_token_losses(model, tokens)
        losses.nats.backward()
    wanted = cache["unembed.logits"].softmax(-1)[:, :-1]
    wanted -= t.nn.functional.one_hot(tokens[:, 1:], 67)

    gradient = cache.grads["unembed.logits"]

    assert t.allclose(gradient[:, :-1], wanted, atol=1e-12)
    assert not gradient[:, -1].any()


def test_bfloat16_is_close_and_leaves_float32_weights(tokens: t.Tensor) -> None:
    """Half arithmetic moves losses by a percent at most; weights and gradients stay float32."""
    model = Transformer(CFG, seed=3)
    exact = next_token_losses(model, tokens)
    half = next_token_losses(model, tokens, precision="bfloat16")
    got = gradients(model, half.mean)

    assert not t.equal(half.each, exact.each)
    assert t.allclose(half.each, exact.each, rtol=0.02, atol=0.05)
    assert {g.dtype for g in got.values()} == {t.float32}


def test_pieces_of_3_and_97_tokens_make_the_gradient_of_100(model: Transformer) -> None:
    """Each piece's sum over the whole's number of tokens: the same gradient as in one batch."""
    model = Transformer(Config(**{**CFG.to_dict(), "n_ctx": 98}), seed=3).double()
    tokens = t.randint(67, (2, 98), generator=t.Generator().manual_seed(2))
    graded = t.ones_like(tokens, dtype=t.bool)
    graded[0, 4:] = False
    loss = NextTokenLoss(model)
    nats, _, kept = loss(tokens, graded=graded)
    wanted = gradients(model, nats / kept.sum())

    model.zero_grad()
    counts = []
    for row in (0, 1):
        nats, _, kept = loss(tokens[row : row + 1], graded=graded[row : row + 1])
        (nats / 100).backward()
        counts.append(int(kept.sum()))

    assert counts == [3, 97]
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert t.allclose(p.grad, wanted[name], rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize(("shape", "message"), [((2, 1), "leave nothing"), ((1, 17), "n_ctx")])
def test_what_cannot_be_graded_is_refused(
    model: Transformer, shape: tuple[int, int], message: str
) -> None:
    """Rows that are too short or too long are named, not computed."""
    with pytest.raises(PvmlError, match=message):
        next_token_losses(model, t.zeros(shape, dtype=t.long))


def test_the_grid_is_shown_as_the_kernel_has_it_under_bfloat16(tokens: t.Tensor) -> None:
    """Scores and shares are shown in the type in which they are multiplied."""
    model = Transformer(CFG, seed=3)
    seen = {}
    with listen(model, "blocks.0.attn.*", lambda name, x: seen.update({name: x.dtype})):
        next_token_losses(model, tokens, precision="bfloat16")

    assert seen["blocks.0.attn.attn_scores"] == t.bfloat16
    assert seen["blocks.0.attn.attn_pattern"] == t.bfloat16


def test_a_precision_that_is_none_is_refused(model: Transformer) -> None:
    """A word that is not known is an error, not float32."""
    with pytest.raises((PvmlError, TypeError), match=r"precision|bf16"):
        NextTokenLoss(model, "bf16")  # type: ignore[arg-type]


def test_masks_may_be_zeros_and_ones(model: Transformer, tokens: t.Tensor) -> None:
    """Hugging Face's whole-number mask means the same as ours; other numbers are refused."""
    mask = t.ones_like(tokens)
    mask[0, 7:] = 0
    ours = next_token_losses(model, tokens, mask.bool(), graded=mask)

    assert t.equal(next_token_losses(model, tokens, mask).each, ours.each)
    with pytest.raises(PvmlError, match="graded must hold 1"):
        next_token_losses(model, tokens, graded=mask * 2)
