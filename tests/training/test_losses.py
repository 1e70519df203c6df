"""The loss: the right answer picked at every position, one prediction fewer than tokens."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.modules.unembedding import log_prob_of
from pvml.training import losses
from pvml.training.losses import get_log_probs

# By hand


def test_a_row_by_hand() -> None:
    """Position i is graded on token i + 1: logits ln 1, ln 2, ln 5 give it 1/8, 2/8 or 5/8."""
    logits = t.tensor([[[1.0, 2.0, 5.0], [1.0, 2.0, 5.0], [9.0, 9.0, 9.0]]]).log()
    tokens = t.tensor([[0, 2, 1]])

    assert get_log_probs(logits, tokens).exp().tolist() == [pytest.approx([5 / 8, 2 / 8])]


def test_uniform_guessing_costs_the_seeds_10_825_nats() -> None:
    """Equal logits over GPT-2's vocabulary cost ln 50257 = 10.825 nats a token."""
    log_probs = get_log_probs(t.zeros(1, 7, Config().d_vocab), t.arange(7)[None])

    assert log_probs.shape == (1, 6)
    assert -log_probs.mean().item() == pytest.approx(10.825, abs=5e-4)


def test_a_fresh_model_guesses_almost_uniformly() -> None:
    """A freshly drawn model's loss is about ln(d_vocab)."""
    model = Transformer(Config(d_model=32, n_heads=2, n_layers=2, n_ctx=13, d_vocab=997), seed=0)
    tokens = t.randint(0, 997, (5, 13), generator=t.Generator().manual_seed(1))

    assert -get_log_probs(model(tokens), tokens).mean().item() == pytest.approx(
        math.log(997), abs=0.05
    )


# Laws


def test_every_answer_sums_to_one() -> None:
    """At any place the probabilities of all targets sum to 1, whatever the logits."""
    logits = 30 * t.randn(3, 5, 11, dtype=t.float64)
    every = t.stack([log_prob_of(logits, t.full((3, 5), i)) for i in range(11)], -1)

    t.testing.assert_close(every.exp().sum(-1), t.ones(3, 5, dtype=t.float64))


def test_the_last_logits_and_the_first_token_do_not_matter() -> None:
    """Nothing grades the last position, and nothing predicts the first token."""
    logits, tokens = t.randn(2, 5, 7), t.randint(0, 7, (2, 5))
    before = get_log_probs(logits, tokens)
    logits[:, -1], tokens[:, 0] = 1e4, 6

    assert t.equal(get_log_probs(logits, tokens), before)


def test_half_types_are_graded_in_float32() -> None:
    """bfloat16 logits give float32 losses, as exact as their float32 copies'."""
    logits, tokens = t.randn(2, 5, 7).bfloat16(), t.randint(0, 7, (2, 5))

    assert t.equal(get_log_probs(logits, tokens), get_log_probs(logits.float(), tokens))


# Parity


def test_agrees_with_the_library_cross_entropy_and_its_gradient() -> None:
    """The mean loss and its gradient are PyTorch's cross entropy's, to 1e-12 in float64."""
    logits = t.randn(3, 5, 7, dtype=t.float64, requires_grad=True)
    tokens = t.randint(0, 7, (3, 5))
    theirs = t.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 7), tokens[:, 1:].reshape(-1))
    ours = -get_log_probs(logits, tokens).mean()

    t.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    (our_gradient,), (their_gradient,) = (t.autograd.grad(x, logits) for x in (ours, theirs))
    t.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-12)


# Contracts


@pytest.mark.parametrize(
    ("logits", "tokens", "message"),
    [
        ((2, 5, 7), (2, 4), r"logits \(2, 5, 7\) and tokens \(2, 4\) do not belong together"),
        ((2, 5, 7), (3, 5), r"logits \(2, 5, 7\) and tokens \(3, 5\) do not belong together"),
        ((2, 1, 7), (2, 1), r"\(2, 1\) leave nothing to grade"),
        ((2, 0, 7), (2, 0), r"\(2, 0\) leave nothing to grade"),
    ],
)
def test_ungradable_shapes_are_refused(
    logits: tuple[int, ...], tokens: tuple[int, ...], message: str
) -> None:
    """Shapes that disagree and rows of a single token are errors that show the shapes."""
    with pytest.raises(PvmlError, match=message):
        losses.require_gradable(t.zeros(logits), t.zeros(tokens, dtype=t.long))


def test_the_command_prints_the_seeds_table(root: Path) -> None:
    """`python -m pvml.training.losses` prints shapes, both cross entropies and six predictions."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pvml.training.losses"],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    lines = done.stdout.splitlines()

    assert "logits    (1, 7, 50257)" in lines
    assert "log_probs (1, 6)   # one per prediction, not per token" in lines
    assert "cross entropy, uniform guess : 10.825 nats" in lines
    predictions = [line.split()[:3] for line in lines if "logprob" in line]
    assert predictions == [
        ["<BOS>", "->", "The"],
        ["The", "->", "cat"],
        ["cat", "->", "sat"],
        ["sat", "->", "on"],
        ["on", "->", "the"],
        ["the", "->", "mat"],
    ]


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_id_without_a_logit_is_named(wrong: int) -> None:
    """An id outside the logits' vocabulary is an error that names it, never an index error."""
    with pytest.raises(PvmlError, match=f"token id {wrong} has no logit: ids run from 0 to 4"):
        get_log_probs(t.zeros(1, 3, 5), t.tensor([[0, wrong, 2]]))
