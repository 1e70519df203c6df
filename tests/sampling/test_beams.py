"""Beam search: rounds by hand, what ends and when, texts, and what is left as it was."""

import math
from itertools import product

import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beam_record import Search
from pvml.sampling.beams import Beams, beam_search, search, search_from, texts
from pvml.sampling.sampler import Sampler
from pvml.trace.tap import listen

P, A, B, E = range(4)
NAMES = "PABE"
CASE_37 = [[0, 0.48, 0.50, 0.02], [0, 0.05, 0.05, 0.90], [0, 0.05, 0.90, 0.05], [1, 0, 0, 0]]
"""Row: the last token. Column: the probability of the next."""


def table_model(table: list[list[float]], n_ctx: int = 16) -> Transformer:
    """A model that knows nothing but which token follows which, with these probabilities."""
    probabilities = t.tensor(table, dtype=t.float64)
    size = len(table)
    cfg = Config(
        d_model=size,
        n_heads=1,
        n_layers=0,
        n_ctx=n_ctx,
        d_vocab=size,
        positions="none",
        normalization="none",
    )
    model = Transformer(cfg).double()
    with t.no_grad():
        model.embed.W_E.copy_(t.eye(size))
        model.unembed.W_U.copy_(probabilities.log().clamp(min=-99))
    return model


def found(searched: Search) -> dict[str, float]:
    """The complete texts and their scores, rounded as the case prints them."""
    return {
        "".join(NAMES[token] for token in text.ids): round(searched.score(text), 4)
        for text in searched.complete
    }


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat and the dog sat on the rug"], 263)


def small(tokenizer: Tokenizer, n_ctx: int = 7, seed: int = 0) -> Transformer:
    """A random float64 model whose weights are large enough to make it prefer something."""
    sizes = {"d_model": 11, "n_heads": 3, "d_head": 5, "d_mlp": 13, "n_layers": 2}
    cfg = Config(**sizes, n_ctx=n_ctx, d_vocab=tokenizer.d_vocab, init_range=0.9)
    return Transformer(cfg, seed=seed).double().eval()


def exhaustive(
    model: Transformer, start: list[int], args: BeamArgs, eos: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Every complete text, by trying all, with its score; best first."""
    complete = []
    with t.no_grad():
        for ids in product(range(model.cfg.d_vocab), repeat=args.max_new_tokens):
            n = ids.index(eos) + 1 if eos in ids else len(ids)
            logprobs = model(t.tensor([start + list(ids)]))[0].log_softmax(-1)
            total = sum(float(logprobs[len(start) - 1 + i, ids[i]]) for i in range(n))
            complete.append((total / n**args.length_penalty, ids[:n]))
    return sorted(set(complete), reverse=True)


def test_two_rounds_by_hand() -> None:
    """Sums, tokens and parents of both rounds at k = 2, the filter, and the extra for an end."""
    logprobs = t.tensor(CASE_37, dtype=t.float64).log()

    start = Beams.start([P])
    first = start.generate(2, logprobs[[P]], eos_token_id=E)
    kept, ended = first.filter(2, E)
    second = kept.generate(2, logprobs[kept.tokens[:, -1]], eos_token_id=E)
    kept_too, ended_too = second.filter(2, E)

    assert first.tokens.tolist() == [[P, B], [P, A]]
    assert first.logprob_sums.exp().tolist() == pytest.approx([0.50, 0.48])
    assert len(ended) == 0
    # B's two best are B and, of its equals A and E, the lower id; A's are E and A, and one more
    assert second.tokens.tolist() == [[P, B, B], [P, A, E], [P, B, A], [P, A, A], [P, A, B]]
    assert second.logprob_sums.exp().tolist() == pytest.approx([0.45, 0.432, 0.025, 0.024, 0.024])
    assert second.parents.tolist() == [0, 1, 0, 1, 1]
    assert kept_too.tokens.tolist() == [[P, B, B], [P, B, A]]
    assert ended_too.tokens.tolist() == [[P, A, E]]


def test_the_shapes_at_three_beams() -> None:
    """Start (1,) and (1, 4); generate (3,) and (3, 5); filter (3, 5); generate (9,) and (9, 6)."""
    draw = t.Generator().manual_seed(0)

    def logprobs(n: int) -> Tensor:
        return t.randn(n, 29, generator=draw, dtype=t.float64).log_softmax(-1)

    start = Beams.start([28, 1, 2, 3])
    first = start.generate(3, logprobs(1))
    kept, ended = first.filter(3)
    second = kept.generate(3, logprobs(3))

    shapes = [(tuple(b.logprob_sums.shape), tuple(b.tokens.shape)) for b in (start, first, second)]
    assert shapes == [((1,), (1, 4)), ((3,), (3, 5)), ((9,), (9, 6))]
    assert (tuple(kept.tokens.shape), tuple(ended.tokens.shape)) == ((3, 5), (0, 5))


def test_equals_are_taken_in_order() -> None:
    """Among equal sums earlier beams come first, and in a beam lower ids, however many are."""
    logprobs = t.full((2, 301), -math.log(301), dtype=t.float64)
    two = Beams(t.zeros(2, dtype=t.float64), t.tensor([[7], [8]]), t.tensor([0, 0]))

    assert two.generate(2, logprobs).tokens.tolist() == [[7, 0], [7, 1], [8, 0], [8, 1]]


def test_the_impossible_is_no_candidate() -> None:
    """Tokens at -inf give no beam, even where fewer than k are possible."""
    logprobs = t.tensor([[-t.inf, 0.0, -t.inf]], dtype=t.float64)

    assert Beams.start([0]).generate(2, logprobs).tokens.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("length_penalty", "expected"),
    [
        (1.0, {"BBBB": -0.2523, "AE": -0.4197}),
        (0.0, {"AE": -0.8393, "BBBB": -1.0092}),
    ],
)
def test_the_case_of_two_beams(length_penalty: float, expected: dict[str, float]) -> None:
    """P to A .48, B .50; A to E .90; B to B .90: by the mean BBBB is best, by the sum A E."""
    args = BeamArgs(num_beams=2, max_new_tokens=4, length_penalty=length_penalty)

    scores = found(search(table_model(CASE_37), [P], args, eos_token_id=E))

    assert list(scores.items()) == list(expected.items())


def test_when_it_stops() -> None:
    """True stops at num_beams complete texts; False and "never" differ in what could still come.

    P to A .5, E .4, B .1; A to E .45, A .55; B to E. Two beams, and score = sum / length: after two
    steps E (-0.916) and A E (-0.746) are complete. False sees A A at (-1.291) / 2 = -0.646 and goes
    on, and at three A A A at -0.630 beats both.
    """
    table = [[0, 0.5, 0.1, 0.4], [0, 0.55, 0, 0.45], [0, 0, 0, 1.0], [1, 0, 0, 0]]
    model = table_model(table)

    def steps(early_stopping: object, length_penalty: float, max_new_tokens: int = 6) -> int:
        args = BeamArgs(
            num_beams=2,
            max_new_tokens=max_new_tokens,
            early_stopping=early_stopping,
            length_penalty=length_penalty,
        )
        return len(search(model, [P], args, eos_token_id=E).steps)

    assert steps(True, 1.0) == 2
    assert steps(False, 1.0) == steps("never", 1.0) == 6
    # by sums: at two steps A A has -1.291, which is above A E's -1.492; at three it is behind
    assert steps(False, 0.0) == steps("never", 0.0) == 3


def test_never_waits_for_what_length_may_bring() -> None:
    """The present score of what still runs is too low, but its score at full length is not."""
    table = [[0, 0.05, 0.45, 0.50], [0, 1.0, 0, 0], [0, 0, 0.2, 0.8], [1, 0, 0, 0]]
    model = table_model(table)

    def best(early_stopping: object) -> list[str]:
        args = BeamArgs(
            num_beams=2, max_new_tokens=9, early_stopping=early_stopping, length_penalty=1.0
        )
        return list(found(search(model, [P], args, eos_token_id=E)))

    # A A A ... has -2.996 in all: over 2 tokens worse than E's -0.693, over 9 better
    assert best(False) == ["BE", "E"]
    assert best("never") == ["AAAAAAAAA", "BE"]


def test_beams_never_go_on_past_the_end() -> None:
    """End-of-text is only ever the last new token, and no text is found twice."""
    args = BeamArgs(num_beams=7, max_new_tokens=6)
    searched = search(table_model(CASE_37), [P], args, eos_token_id=E)
    ids = [text.ids for text in searched.complete]

    assert len(ids) == 7 == len(set(ids))
    assert all(E not in text[:-1] for text in ids)
    assert all((text.fate == "ended") == (text.ids[-1] == E) for text in searched.complete)
    assert {"ended", "cut"} == {text.fate for text in searched.complete}


def test_an_end_in_the_prompt_is_history() -> None:
    """A prompt may end in the end-of-text token, as BOS is that token, too."""
    searched = search(table_model(CASE_37), [E], BeamArgs(num_beams=2), eos_token_id=E)

    assert "PAE" in found(searched)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_wide_enough_it_finds_the_best(length_penalty: float) -> None:
    """With a beam for every text, the best of all complete texts come, in order."""
    cfg = Config(d_model=5, n_heads=1, n_layers=1, n_ctx=8, d_vocab=4, init_range=0.9)
    model = Transformer(cfg, seed=3).double()
    args = BeamArgs(
        num_beams=64, max_new_tokens=3, length_penalty=length_penalty, early_stopping="never"
    )
    truth = exhaustive(model, [0, 1], args, eos=2)

    searched = search(model, [0, 1], args, eos_token_id=2)

    assert [text.ids for text in searched.complete] == [ids for _, ids in truth]
    scores = [searched.score(text) for text in searched.complete]
    assert scores == pytest.approx([score for score, _ in truth], abs=1e-12)


@pytest.mark.parametrize("early_stopping", [False, "never"])
@pytest.mark.parametrize("seed", range(3))
def test_one_beam_is_greedy(tokenizer: Tokenizer, seed: int, early_stopping: object) -> None:
    """num_beams 1 writes what greedy search writes, whatever length and stopping say."""
    model = small(tokenizer, seed=seed)
    args = BeamArgs(
        num_beams=1, max_new_tokens=9, length_penalty=2.0, early_stopping=early_stopping
    )
    greedy = SamplingArgs(temperature=0.0, max_new_tokens=9)

    (only,) = beam_search(model, tokenizer, "the cat", args)

    assert only.text == Sampler(model, tokenizer).sample("the cat", greedy)
    never = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": early_stopping}
    ends_soon = table_model([[0, 0.3, 0, 0.7], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]])
    searched = search(ends_soon, [P], BeamArgs(max_new_tokens=9, **never), eos_token_id=E)
    assert list(found(searched)) == ["E"]


def test_an_edit_is_heeded_while_searching(tokenizer: Tokenizer) -> None:
    """A tap that edits the logits decides the text."""
    model = small(tokenizer, n_ctx=31)
    x = tokenizer.encode("x")[0]

    def prefer(_: str, logits: Tensor) -> Tensor:
        return logits + 99 * (t.arange(logits.shape[-1]) == x)

    with listen(model, "unembed.logits", prefer, edits=True):
        best = beam_search(model, tokenizer, "", BeamArgs(num_beams=2, max_new_tokens=3))[0]

    assert best.text == "xxx"


def test_an_edit_of_a_position_needs_the_whole_text(tokenizer: Tokenizer) -> None:
    """Without the cache every step hears the whole text; and finds the same texts."""
    model, args = small(tokenizer, n_ctx=31), BeamArgs(max_new_tokens=4)
    lengths: list[int] = []
    with listen(model, "embed.out", lambda _, x: lengths.append(x.shape[1])):
        whole = beam_search(model, tokenizer, "the cat", args, use_cache=False)
    n_prompt = len(tokenizer.encode("the cat")) + 1

    assert lengths == [n_prompt + i for i in range(4)]
    assert [text.ids for text in whole] == [
        text.ids for text in beam_search(model, tokenizer, "the cat", args)
    ]


def test_the_ngram_ban_holds_for_every_text(tokenizer: Tokenizer) -> None:
    """No pair of tokens comes twice in any text, and a text that repeats nothing loses nothing."""
    model = small(tokenizer, n_ctx=31, seed=1)
    plain = search(model, [0, 1], BeamArgs(num_beams=5, max_new_tokens=12))
    args = BeamArgs(num_beams=5, max_new_tokens=12, no_repeat_ngram_size=2)
    searched = search(model, [0, 1], args)

    def repeats(ids: tuple[int, ...]) -> bool:
        pairs = list(zip((0, 1, *ids), (1, *ids), strict=False))
        return len(set(pairs)) < len(pairs)

    assert any(repeats(text.ids) for text in plain.complete)
    assert not any(repeats(text.ids) for text in searched.complete)
    with t.no_grad():
        for text in searched.complete:
            logprobs = model(t.tensor([[0, 1, *text.ids]]))[0].log_softmax(-1)
            own = [float(logprobs[1 + i, token]) for i, token in enumerate(text.ids)]
            assert text.logprob_sum == pytest.approx(sum(own), abs=1e-11)
            assert [c.logprob for c in text.line] == pytest.approx(own, abs=1e-11)


def test_a_ban_on_everything_is_an_error() -> None:
    """Where no token is left, the ban is named; where a text is complete, it is given."""
    model = table_model(CASE_37)
    once = BeamArgs(num_beams=2, max_new_tokens=9, no_repeat_ngram_size=1)

    with pytest.raises(PvmlError, match="after 4 new tokens .* no_repeat_ngram_size 1 bans all"):
        search(model, [P], once)
    assert "AE" in found(search(model, [P], once, eos_token_id=E))


def test_the_record_is_whole() -> None:
    """Each step's candidates go on from kept ones, and each has one fate that is so."""
    args = BeamArgs(num_beams=2, max_new_tokens=4, early_stopping="never")
    searched = search(table_model(CASE_37), [P], args, eos_token_id=E)

    before: list[object] = [None]
    for number, step in enumerate(searched.steps, start=1):
        assert all(candidate.parent in before for candidate in step)
        assert all(candidate.length == number for candidate in step)
        sums = [candidate.logprob_sum for candidate in step]
        assert sums == sorted(sums, reverse=True)
        before = [candidate for candidate in step if candidate.fate == "kept"]
        assert len(before) == (2 if number < 4 else 0)
    fates = [[candidate.fate for candidate in step] for step in searched.steps]
    assert fates[:2] == [["kept"] * 2, ["kept", "ended", "kept", "dropped", "dropped"]]
    assert fates[3][:2] == ["cut", "cut"]


def test_texts_and_what_they_hold(tokenizer: Tokenizer) -> None:
    """Texts come best first, as many as asked for, with the prompt and without BOS and the end."""
    model = small(tokenizer, n_ctx=31)
    model.unembed.b_U.data[tokenizer.eos_token_id] = 4.0
    args = BeamArgs(num_beams=5, num_return_sequences=4, max_new_tokens=6, length_penalty=1.0)

    results = beam_search(model, tokenizer, "the cat", args)

    assert len(results) == 4
    assert [r.score for r in results] == sorted((r.score for r in results), reverse=True)
    assert {r.ended for r in results} == {True, False}  # or the test would prove little
    for r in results:
        new = r.ids[:-1] if r.ended else r.ids
        assert r.ended == (r.ids[-1] == tokenizer.eos_token_id)
        assert r.text == tokenizer.decode([*tokenizer.encode("the cat"), *new])
        assert r.score == pytest.approx(r.logprob_sum / len(r.ids))
    assert results == texts(search_from(model, tokenizer, "the cat", args), tokenizer)


def test_what_is_left_as_it_was(tokenizer: Tokenizer) -> None:
    """Neither torch's random state nor the model's mode is moved, and a search repeats itself."""
    model = small(tokenizer).train()
    before = t.random.get_rng_state()

    first = beam_search(model, tokenizer, "the")

    assert first == beam_search(model, tokenizer, "the")
    assert t.equal(t.random.get_rng_state(), before)
    assert model.training


def test_what_cannot_be_searched(tokenizer: Tokenizer) -> None:
    """An empty prompt without BOS, a tokenizer of another model, and NaN are named."""
    model = small(tokenizer)
    with pytest.raises(PvmlError, match="empty prompt.*prepend_bos"):
        beam_search(model, tokenizer, "", BeamArgs(prepend_bos=False))
    with pytest.raises(PvmlError, match="has 263 ids and the model's d_vocab is 4"):
        beam_search(table_model(CASE_37), tokenizer, "the")
    model.unembed.b_U.data[5] = t.nan
    with pytest.raises(
        PvmlError, match="row 0 of the logits of the beams after 3 tokens holds NaN"
    ):
        search(model, [0, 1, 2], BeamArgs())


def test_only_ids_that_the_tokenizer_has(tokenizer: Tokenizer) -> None:
    """Ids past the tokenizer's are never chosen, and take no probability."""
    wide = Transformer(
        Config(d_model=11, n_heads=1, n_layers=1, n_ctx=31, d_vocab=300), seed=0
    ).double()
    wide.unembed.b_U.data[tokenizer.d_vocab :] = 99.0

    results = beam_search(wide, tokenizer, "the", BeamArgs(max_new_tokens=2))

    assert all(token < tokenizer.d_vocab for r in results for token in r.ids)
    assert results[0].logprob_sum > -2 * math.log(300)
