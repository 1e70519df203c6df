"""Beams and the window: keys and values follow the beams, and past n_ctx all is read anew."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beams import Beams, search
from pvml.sampling.penalties import ban_repeated_ngrams
from pvml.trace.tap import listen


@pytest.mark.parametrize(
    ("positions", "prepend_bos"),
    [("standard", True), ("standard", False), ("none", True), ("shortformer", True)],
)
def test_the_cache_changes_nothing(make_model: Any, positions: str, prepend_bos: bool) -> None:
    """Three windows' worth of tokens and sums are those of whole windows, recomputed (float64)."""
    model = make_model(n_ctx=5, positions=positions)
    ids = [28, 1, 2]
    # without the ban the same few tokens come in another order, and rounding decides between equals
    args = BeamArgs(num_beams=4, max_new_tokens=15, no_repeat_ngram_size=2, prepend_bos=prepend_bos)
    searched = search(model, ids, args)

    beams = Beams.start(ids)
    for step in searched.steps:
        windows = beams.tokens[:, -5:].clone()
        if prepend_bos:
            windows[:, 0] = ids[0]
        with t.no_grad():
            logprobs = model(windows)[:, -1].log_softmax(-1)
        candidates = beams.generate(4, ban_repeated_ngrams(beams.tokens, logprobs, 2))
        assert candidates.tokens[:, 3:].tolist() == [list(candidate.ids) for candidate in step]
        sums = [candidate.logprob_sum for candidate in step]
        assert candidates.logprob_sums.tolist() == pytest.approx(sums, abs=1e-11)
        beams, _ = candidates.filter(4)
    assert len(searched.steps) == 15


def test_a_window_of_one_is_bos(make_model: Any) -> None:
    """With n_ctx 1 the model sees BOS alone, so that every step has the same distribution."""
    model = make_model(n_ctx=1)
    best = search(model, [28, 1, 2], BeamArgs(num_beams=2, max_new_tokens=3)).results[0]
    with t.no_grad():
        logprobs = model(t.tensor([[28]]))[0, -1].log_softmax(-1)

    assert best.ids == (int(logprobs.argmax()),) * 3
    assert best.logprob_sum == pytest.approx(3 * float(logprobs.max()), abs=1e-12)


def test_the_cache_spares_the_work(make_model: Any) -> None:
    """Until the window slides each step reads one token a beam; then BOS and the last n_ctx - 1."""
    model = make_model(n_ctx=7)
    seen: list[Tensor] = []

    with listen(model, "embed.in", lambda _, tokens: seen.append(tokens.clone())):
        search(model, [28, 1, 2], BeamArgs(num_beams=3, max_new_tokens=7))

    shapes = [tuple(tokens.shape) for tokens in seen]
    assert shapes == [(1, 3), (3, 1), (3, 1), (3, 1), (3, 1), (3, 7), (3, 7)]
    assert all((tokens[:, 0] == 28).all() for tokens in seen[-2:])
