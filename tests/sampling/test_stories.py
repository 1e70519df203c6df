"""Stories written seed by seed, and the figures of them."""

import pytest

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.sampling.stories import Story, figures, write_stories


@pytest.fixture
def sampler() -> Sampler:
    """A small random model that ends a text now and then."""
    tokenizer = Tokenizer.train(["the cat sat on the mat and the dog sat on the rug"], 263)
    cfg = Config(d_model=11, n_heads=1, n_layers=1, n_ctx=7, d_vocab=tokenizer.d_vocab)
    model = Transformer(cfg, seed=0)
    model.unembed.b_U.data[tokenizer.eos_token_id] = 3.0
    return Sampler(model, tokenizer)


def story(text: str, ids: int, ended: bool = True, seconds: float = 1.0) -> Story:
    return Story(prompt="p", seed=0, text=text, ids=tuple(range(ids)), ended=ended, seconds=seconds)


def test_each_story_is_the_samplers(sampler: Sampler) -> None:
    """Prompt by prompt and seed by seed, the text is what `Sampler.sample` gives for that seed."""
    args = SamplingArgs(seed=5, max_new_tokens=19, top_p=0.9)

    stories = list(write_stories(sampler, ["the", "dog"], args, 4))

    assert [(s.prompt, s.seed) for s in stories] == [
        (prompt, seed) for prompt in ("the", "dog") for seed in (5, 6, 7, 8)
    ]
    for one in stories:
        own = SamplingArgs(seed=one.seed, max_new_tokens=19, top_p=0.9)
        assert one.prompt + one.text == sampler.sample(one.prompt, own)
        assert sampler.tokenizer.eos_token_id not in one.ids
        assert one.ended == (len(one.ids) < 19)
    assert {s.ended for s in stories} == {True, False}


def test_figures_by_hand() -> None:
    """Two stories, 30 and 10 tokens with one end-of-text, in 2 s: 20.5 drawn a second."""
    loop = "go on " * 20

    found = figures([story(loop, 30, ended=False), story("é!", 10)])

    assert (found.stories, found.ended, found.stuck) == (2, 0.5, 0.5)
    assert found.repeated_4grams == pytest.approx((35 / 37 + 0) / 2)  # of 40 words, 2 differ
    assert (found.tokens, found.n_bytes) == (20, (120 + 3) / 2)
    assert found.tokens_per_second == pytest.approx(41 / 2)


def test_what_cannot_be_counted(sampler: Sampler) -> None:
    """No seed, no story at all: errors that say so."""
    with pytest.raises(PvmlError, match="give the first seed"):
        next(write_stories(sampler, ["the"], SamplingArgs(), 1))
    with pytest.raises(PvmlError, match="n_seeds must be .* got 0"):
        next(write_stories(sampler, ["the"], SamplingArgs(seed=0), 0))
    with pytest.raises(PvmlError, match="no stories"):
        figures([])
