"""Grades: averaged over tokens, each document alone, the same whatever the batch."""

import math

import numpy as np
import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.data.rows import Rows
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen
from pvml.training import evaluation
from pvml.training.evaluation import (
    bits_per_byte,
    document_windows,
    grade,
    grade_documents,
    grade_held_out,
)

STORIES = [
    "The cat sat.",
    "A dog ran to the big tree and sat there until night. 🙂",
    "No",
    "Oh no!",
]


def bigram(table: Tensor) -> Transformer:
    """A model whose logits are the row of `table` that the current token names."""
    d_vocab = len(table)
    sizes = {"d_model": d_vocab, "n_heads": 1, "n_layers": 0, "n_ctx": 5, "d_vocab": d_vocab}
    model = Transformer(Config(**sizes, positions="none", normalization="none"))  # type: ignore[arg-type]
    with t.no_grad():
        model.embed.W_E.copy_(t.eye(d_vocab))
        model.unembed.W_U.copy_(table)
    return model


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(STORIES * 3, 269)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    sizes = {"d_model": 13, "n_heads": 3, "d_head": 5, "d_mlp": 17, "n_layers": 2, "n_ctx": 11}
    return Transformer(Config(**sizes, d_vocab=tokenizer.d_vocab, init_range=0.5), seed=1)  # type: ignore[arg-type]


# By hand


def test_losses_are_averaged_over_tokens_not_over_batches() -> None:
    """Five rows with losses 1, 1, 1, 1, 5 in batches of 4 average to 1.8, not to 3; so hits."""
    likely, rare = math.exp(-1), math.exp(-5)
    others = (1 - likely - rare) / 5
    after_bos = t.tensor([likely, rare, *[others] * 5]).log()
    rows = Rows(np.array([0, 0, 0, 0, 1]), n_ctx=2, bos_token_id=6)
    held_out = grade_held_out(bigram(after_bos.expand(7, 7)), rows, 4)

    assert held_out.loss == pytest.approx(1.8, abs=1e-6)
    assert held_out.accuracy == 4 / 5
    assert held_out.tokens == 5


def test_losses_by_position_by_hand() -> None:
    """Position 1 is the first predicted token: its loss is that of what follows BOS, over rows."""
    seen = t.tensor([0.5, 0.25, 0.25]).log()  # a bigram that prefers 0 whatever came before
    rows = Rows(np.array([0, 1, 2, 0, 0, 1, 0, 1]), n_ctx=5, bos_token_id=2)
    held_out = grade_held_out(bigram(seen.expand(3, 3)), rows, 1)
    once, twice = math.log(2), math.log(4)

    assert held_out.loss_by_position == pytest.approx(
        [once, twice, (once + twice) / 2, (once + twice) / 2], abs=1e-6
    )
    assert held_out.tokens == 8


def test_a_uniform_model_needs_known_bits(tokenizer: Tokenizer) -> None:
    """A uniform model needs log2(d_vocab) bits a token, end-of-texts too, over bytes of text."""
    uniform = bigram(t.zeros(tokenizer.d_vocab, tokenizer.d_vocab))
    n_tokens = sum(len(tokenizer.encode(story)) + 1 for story in STORIES)
    n_bytes = sum(len(story.encode()) for story in STORIES)

    assert bits_per_byte(uniform, tokenizer, STORIES) == pytest.approx(
        n_tokens * math.log2(tokenizer.d_vocab) / n_bytes
    )


def test_windows_by_hand(tokenizer: Tokenizer) -> None:
    """A document and its end-of-text are cut every n_ctx - 1 tokens, each window behind BOS."""
    ids = tokenizer.encode("The cat sat.")
    everything = [*ids, tokenizer.eos_token_id]
    windows = document_windows(tokenizer, ["The cat sat.", "No"], n_ctx=3)
    of_first = windows[: math.ceil(len(everything) / 2)]

    assert all(window[0] == tokenizer.bos_token_id for window in windows)
    assert [i for window in of_first for i in window[1:]] == everything
    assert {len(window) for window in of_first[:-1]} == {3}


def test_documents_by_position_and_token_by_hand() -> None:
    """A bigram that knows p(a) = 1/2, p(b) = 1/4, p(end) = 1/4: each sum is a sum of logarithms."""
    tokenizer = Tokenizer.train(["ab"], 257)
    a, b = tokenizer.encode("ab")
    end = tokenizer.eos_token_id
    probs = t.full((257,), 1e-30)
    probs[[a, b, end]] = t.tensor([0.5, 0.25, 0.25])
    once, twice = math.log(2), math.log(4)
    grades = grade_documents(bigram(probs.log().expand(257, 257)), tokenizer, ["aba", "aaaab", "b"])

    # windows of 5: a b a end | a a a a, b end | b end
    assert grades.nats_by_position.tolist() == pytest.approx(
        [2 * once + 2 * twice, once + 3 * twice, 2 * once, once + twice], abs=1e-6
    )
    assert grades.count_by_position.tolist() == [4, 4, 2, 2]
    assert grades.count_by_token[[a, b, end]].tolist() == [6, 3, 3]
    assert grades.nats_by_token[[a, b, end]].tolist() == pytest.approx(
        [6 * once, 3 * twice, 3 * twice], abs=1e-6
    )
    assert (grades.documents, grades.n_bytes, grades.tokens, grades.hits) == (3, 9, 12, 6)
    assert grades.loss == pytest.approx((6 * once + 6 * twice) / 12, abs=1e-6)
    assert grades.accuracy == 0.5
    assert grades.bits_per_byte == pytest.approx(18 / 9, abs=1e-6)


# Laws


def test_few_at_a_time_change_no_grade(
    model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many documents are held at once, and from an iterator too, the grades are the same.

    Bits per byte is one of them.
    """
    whole = grade_documents(model, tokenizer, STORIES)
    assert whole.bits_per_byte == bits_per_byte(model, tokenizer, STORIES)
    for name, most in (("_DOCUMENTS", 3), ("_CHARACTERS", 5)):
        monkeypatch.setattr(evaluation, name, most)
        parts = grade_documents(model, tokenizer, iter(STORIES), 2)
        assert t.equal(parts.count_by_position, whole.count_by_position)
        assert t.equal(parts.count_by_token, whole.count_by_token)
        assert (parts.documents, parts.n_bytes, parts.hits) == (4, whole.n_bytes, whole.hits)
        t.testing.assert_close(parts.nats_by_token, whole.nats_by_token, rtol=1e-5, atol=1e-9)
    assert float(whole.nats_by_token.sum()) == pytest.approx(whole.nats)


def test_shorter_windows_are_cut_shorter(model: Transformer, tokenizer: Tokenizer) -> None:
    """With n_ctx 5 no token stands behind position 4, and every token is still predicted once."""
    short, long = (grade_documents(model, tokenizer, STORIES, n_ctx=n) for n in (5, None))

    assert (len(short.count_by_position), len(long.count_by_position)) == (4, 10)
    assert short.tokens == long.tokens
    assert t.equal(short.count_by_token, long.count_by_token)
    assert short.nats != long.nats


def test_batches_change_no_grade(model: Transformer, tokenizer: Tokenizer) -> None:
    """Bits per byte are the same for batches of 1, 2, 3 and 32 padded windows."""
    alone = bits_per_byte(model, tokenizer, STORIES, 1)

    for size in (2, 3, 32):
        assert bits_per_byte(model, tokenizer, STORIES, size) == pytest.approx(alone, rel=1e-6)


def test_documents_stand_alone(model: Transformer, tokenizer: Tokenizer) -> None:
    """The bits of several documents are the sum of each one's own, in any order."""
    bits = [bits_per_byte(model, tokenizer, [story]) * len(story.encode()) for story in STORIES]
    n_bytes = sum(len(story.encode()) for story in STORIES)

    for order in (STORIES, STORIES[::-1]):
        assert bits_per_byte(model, tokenizer, order) == pytest.approx(
            sum(bits) / n_bytes, rel=1e-6
        )


# Parity


def test_bits_per_byte_agree_with_the_definition_written_out(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    """One window at a time, every prediction's -log2 p summed by plain indexing: the same bits."""
    bits = 0.0
    for story in STORIES:
        rest = [*tokenizer.encode(story), tokenizer.eos_token_id]
        while rest:
            window, rest = [tokenizer.bos_token_id, *rest[:10]], rest[10:]
            with t.no_grad():
                probs = model(t.tensor([window]))[0].double().softmax(-1)
            for place, answer in enumerate(window[1:]):
                bits -= math.log2(probs[place, answer].item())
    n_bytes = sum(len(story.encode()) for story in STORIES)

    assert bits_per_byte(model, tokenizer, STORIES) == pytest.approx(bits / n_bytes, rel=1e-6)


def test_held_out_loss_agrees_with_the_library(model: Transformer) -> None:
    """Loss and accuracy over rows are PyTorch's cross entropy and arg-max over all predictions."""
    stream = np.random.RandomState(0).randint(0, model.cfg.d_vocab, 7 * 10 + 3)
    rows = Rows(stream, 11, 0)
    held_out = grade_held_out(model, rows, 3)
    every = rows.batch(range(len(rows)))
    with t.no_grad():
        logits = model(every)[:, :-1].reshape(-1, model.cfg.d_vocab)
    answers = every[:, 1:].reshape(-1)

    assert held_out.loss == pytest.approx(
        t.nn.functional.cross_entropy(logits, answers).item(), rel=1e-6
    )
    assert held_out.accuracy == (logits.argmax(-1) == answers).double().mean().item()


def test_positions_average_to_the_loss(model: Transformer) -> None:
    """All rows are of one length, so the mean over positions is the mean over tokens."""
    stream = np.random.RandomState(1).randint(0, model.cfg.d_vocab, 5 * 10)
    held_out = grade_held_out(model, Rows(stream, 11, 0), 2)

    assert len(held_out.loss_by_position) == 10
    assert np.mean(held_out.loss_by_position) == pytest.approx(held_out.loss)


def test_many_positions_are_unembedded_in_parts(model: Transformer) -> None:
    """A batch of more positions than are unembedded at once is graded whole, each in its place."""
    tokens = t.randint(0, model.cfg.d_vocab, (211, 11))
    with t.no_grad():
        losses, right = grade(model, tokens)
        halves = [grade(model, half) for half in (tokens[:100], tokens[100:])]

    assert losses.shape == (211, 10)
    t.testing.assert_close(losses, t.cat([losses for losses, _ in halves]))
    assert t.equal(right, t.cat([right for _, right in halves]))


def test_padding_is_not_graded(model: Transformer) -> None:
    """At padding the loss is 0 and nothing is right; a real token's grade is what it is alone."""
    tokens = t.randint(0, model.cfg.d_vocab, (2, 7), generator=t.Generator().manual_seed(5))
    real = t.tensor([[True] * 7, [True] * 4 + [False] * 3])
    with t.no_grad():
        losses, right = grade(model, tokens, real)
        alone, _ = grade(model, tokens[1:, :4])

    assert losses[1, 3:].tolist() == [0.0] * 3 and not right[1, 3:].any()
    t.testing.assert_close(losses[1:, :3], alone)


# Contracts


def test_nothing_to_grade_is_refused(model: Transformer, tokenizer: Tokenizer) -> None:
    """No text, and an n_ctx with no room behind BOS, are errors that say so."""
    for documents in ([], ["", ""]):
        with pytest.raises(PvmlError, match="no bits per byte"):
            bits_per_byte(model, tokenizer, documents)
    with pytest.raises(PvmlError, match="n_ctx 1 leaves no room"):
        document_windows(tokenizer, STORIES, 1)
    with pytest.raises(PvmlError, match="n_ctx 1 leaves no room"):
        grade_documents(model, tokenizer, STORIES, n_ctx=1)
    with pytest.raises(PvmlError, match="n_ctx 12 is longer than the model can read: at most 11"):
        grade_documents(model, tokenizer, STORIES, n_ctx=12)


def test_listeners_hear_the_logits_and_an_edit_is_graded(model: Transformer) -> None:
    """Somebody on `unembed.logits`: watching changes no grade but for rounding, editing does."""
    tokens = t.randint(model.cfg.d_vocab, (3, 5), generator=t.Generator().manual_seed(0))
    heard: list[int] = []
    with t.no_grad():
        losses, right = grade(model, tokens)
        with listen(model, "unembed.logits", lambda name, x: heard.append(x.shape[1])):
            watched, seen_right = grade(model, tokens)
        with listen(model, "unembed.logits", lambda name, x: x * 0, edits=True):
            edited, _ = grade(model, tokens)

    assert sum(heard) == 12
    assert t.allclose(watched, losses, atol=1e-5)
    assert t.equal(seen_right, right)
    assert t.allclose(edited, t.full_like(edited, model.cfg.d_vocab).log())


def test_one_text_is_not_many_documents(model: Transformer, tokenizer: Tokenizer) -> None:
    """A text in place of a list would be graded letter by letter."""
    with pytest.raises(PvmlError, match=r"give a list"):
        bits_per_byte(model, tokenizer, "Once upon a time")
