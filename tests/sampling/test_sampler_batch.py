"""Several sequences at once: each is the one that it would be alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.trace.tap import listen

PROMPTS = ["the cat", "", "the cat sat on the mat and the dog sat on the rug", "é", "dog", "dog"]
MakeModel = Callable[..., Transformer]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat and the dog sat on the rug", "é 🙂"], 263)


@pytest.fixture
def sampler(make_model: MakeModel, tokenizer: Tokenizer) -> Sampler:
    """A float64 model that sees seven tokens, and ends a text now and then."""
    model = make_model(n_ctx=7, d_vocab=tokenizer.d_vocab)
    model.unembed.b_U.data[tokenizer.eos_token_id] = 2.5
    return Sampler(model, tokenizer)


@pytest.mark.parametrize(
    ("changes", "use_cache"),
    [
        ({"seed": 2**63 - 2}, True),
        ({"temperature": 0.0, "frequency_penalty": 0.5}, True),
        ({"temperature": 0.7, "top_p": 0.9, "no_repeat_ngram_size": 2}, False),
        ({"top_k": 9, "repetition_penalty": 1.3, "stop": ("a", "t")}, True),
    ],
)
def test_a_sequence_is_the_same_alone(
    sampler: Sampler, changes: dict[str, Any], use_cache: bool
) -> None:
    """Text i of a batch is `sample`'s with seed + i, three windows long, however it ends."""
    args = SamplingArgs(**{"seed": 4, "max_new_tokens": 21, **changes})
    assert args.seed is not None
    sampler.use_cache = use_cache

    together = sampler.complete_batch(PROMPTS, args)

    for i, (prompt, found) in enumerate(zip(PROMPTS, together, strict=True)):
        alone = sampler.complete(prompt, replace(args, seed=(args.seed + i) % 2**63))
        assert (found.prompt, found.text, found.ids, found.end) == (
            prompt,
            alone.text,
            alone.ids,
            alone.end,
        )
    assert sampler.sample_batch(PROMPTS, args) == [one.prompt + one.text for one in together]
    assert len({len(one.ids) for one in together}) > 1 or args.temperature == 0


def test_without_bos_too(sampler: Sampler) -> None:
    """The same without BOS; an empty prompt then has nothing to go on from, and is named."""
    args = SamplingArgs(seed=1, prepend_bos=False, max_new_tokens=21)
    prompts = [prompt for prompt in PROMPTS if prompt]

    together = sampler.sample_batch(prompts, args)

    assert together == [
        sampler.sample(prompt, replace(args, seed=1 + i)) for i, prompt in enumerate(prompts)
    ]
    with pytest.raises(PvmlError, match="text 1 of 6: an empty prompt leaves"):
        sampler.sample_batch(PROMPTS, args)


def test_several_texts_for_a_prompt(sampler: Sampler) -> None:
    """n texts stand together, and differ from the first token on; text j has seed + j."""
    args = SamplingArgs(seed=7, max_new_tokens=5)

    found = sampler.complete_batch(["the", "dog"], args, n=12)

    assert [one.prompt for one in found] == ["the"] * 12 + ["dog"] * 12
    assert len({one.ids[0] for one in found[:12]}) > 6
    for j, one in enumerate(found):
        assert one.ids == sampler.complete(one.prompt, replace(args, seed=7 + j)).ids


def test_without_a_seed_all_differ(sampler: Sampler) -> None:
    """No seed: each text of a batch is a new one, and torch's global generator is not moved."""
    before = t.get_rng_state()

    texts = sampler.sample_batch(["the"] * 6, SamplingArgs(max_new_tokens=12))
    list(sampler.stream("the", SamplingArgs(max_new_tokens=3)))

    assert len(set(texts)) > 3
    assert t.equal(t.get_rng_state(), before)


def test_edits_act_on_a_batch(sampler: Sampler) -> None:
    """A listener hears all sequences that go on, and what it answers decides what they write."""
    wanted = sampler.tokenizer.encode("d")[0]
    n_heard = []

    def only_d(_: str, logits: Tensor) -> Tensor:
        n_heard.append(len(logits))
        return t.full_like(logits, -9.0).index_fill(-1, t.tensor([wanted]), 9.0)

    with listen(sampler.model, "unembed.logits", only_d, edits=True):
        texts = sampler.sample_batch(["", "the "], SamplingArgs(temperature=0.0, max_new_tokens=3))

    assert texts == ["ddd", "the ddd"]
    assert n_heard == [2, 2, 2]


def test_what_is_no_batch(sampler: Sampler) -> None:
    """No prompt gives no text; one text instead of a list, and n below 1, are errors."""
    assert sampler.sample_batch([]) == []
    with pytest.raises(PvmlError, match="list of texts"):
        sampler.sample_batch("the")
    with pytest.raises(PvmlError, match="^n must be .*, got 0$"):
        sampler.sample_batch(["the"], n=0)


def test_the_text_that_cannot_go_on_is_named(sampler: Sampler) -> None:
    """By its place among all that were asked for, whichever rows have ended by then."""
    tokenizer = sampler.tokenizer
    sampler.model.unembed.b_U.data[tokenizer.eos_token_id] = -1e4
    cat, dog = tokenizer.encode(" cat"), tokenizer.encode(" dog")
    allowed = {*cat, *dog}
    others = tuple(i for i in range(tokenizer.d_vocab) if i not in allowed)
    args = SamplingArgs(
        temperature=0.0, no_repeat_ngram_size=1, banned_tokens=others, max_new_tokens=1
    )
    with pytest.raises(PvmlError, match="^text 1 of 2: row 0 of the logits after the n-gram ban"):
        sampler.sample_batch(["the", " cat dog"], args)


def test_the_penalty_counts_what_the_model_no_longer_sees(sampler: Sampler) -> None:
    """With a large penalty, greedy never repeats a token, though its window is seven tokens."""
    args = SamplingArgs(temperature=0.0, frequency_penalty=1e6, max_new_tokens=40)

    ids = sampler.complete("dog", args).ids

    given = sampler.tokenizer.encode("dog", prepend_bos=True)
    assert len({*ids, *given}) == len(ids) + len(given) == 40 + len(given)
