"""What makes a sampler faster changes no text, or says which text it makes instead."""

from collections.abc import Sequence

import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.reader import window_of
from pvml.sampling.sampler import Sampler
from pvml.trace.tap import listen

N_CTX = 8
GREEDY = SamplingArgs(temperature=0.0, max_new_tokens=3 * N_CTX)
PROMPTS = ["a", "the cat sat on a mat", "dog", "", "the mat"]


pytestmark = pytest.mark.usefixtures("everything_is_packed")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat and the dog sat on the rug"], 263)


def model_of(tokenizer: Tokenizer, **other: object) -> Transformer:
    """A random float32 model that never ends a text."""
    sizes = {"d_model": 12, "n_heads": 3, "n_layers": 2, "n_ctx": N_CTX, "init_range": 0.7}
    model = Transformer(Config(**sizes, d_vocab=tokenizer.d_vocab, **other), seed=3)
    model.unembed.b_U.data[tokenizer.eos_token_id] = -1e9
    return model


def read_alone(model: Transformer, texts: Sequence[Sequence[int]]) -> Tensor:
    """The logits after each text's window, padded on the right."""
    windows = [window_of(ids, N_CTX, True) for ids in texts]
    rows = t.tensor([window + [0] * (N_CTX - len(window)) for window in windows])
    with t.no_grad():
        logits: Tensor = model(rows)
    return logits[range(len(rows)), [len(window) - 1 for window in windows]]


@pytest.mark.parametrize("positions", ["standard", "none", "shortformer"])
@pytest.mark.parametrize(("dtype", "most"), [(t.float32, 1e-5), (t.float64, 1e-11)], ids=str)
def test_cached_is_uncached(
    tokenizer: Tokenizer, positions: str, dtype: t.dtype, most: float
) -> None:
    """Case 36: ragged prompts, three windows long: the tokens and the logits of no cache.

    Each text's logits at each step, token by token, are also those of its window by itself.
    """
    model = model_of(tokenizer, positions=positions).to(dtype)
    model.unembed.W_U.data /= 10  # brings logits to order 1
    runs = [
        Sampler(model, tokenizer, use_cache=use_cache).complete_batch(PROMPTS, GREEDY, explain=True)
        for use_cache in (True, False)
    ]

    # without end-of-text's logit of -1e9, which is rounded to 1e-7
    kept = t.arange(tokenizer.d_vocab) != tokenizer.eos_token_id
    for cached, uncached in zip(*runs, strict=True):
        assert cached.ids == uncached.ids
        alone = read_alone(model, [one.history for one in cached.explanations])[:, kept]
        assert 0.5 < alone.abs().max() < 2
        found, without = (
            t.stack([one.logits[kept] for one in run.explanations]) for run in (cached, uncached)
        )
        t.testing.assert_close(found, without, rtol=0, atol=most)
        t.testing.assert_close(found, alone, rtol=0, atol=most)


def test_a_single_text_takes_packed_weights(tokenizer: Tokenizer) -> None:
    """Its tokens are those of the plain model; a later call notices that a weight was changed."""
    model = model_of(tokenizer)
    sampler = Sampler(model, tokenizer)
    assert sampler.packed is not None

    def plain() -> tuple[int, ...]:
        other = Sampler(model, tokenizer)
        other.packed = None
        return other.complete("the cat", GREEDY).ids

    before = sampler.complete("the cat", GREEDY).ids
    assert before == plain()
    model.blocks[1].attn.W_O.data[0] = 3.0
    after = sampler.complete("the cat", GREEDY).ids
    assert after == plain() != before


def test_blocks_see_the_windows_that_they_say(tokenizer: Tokenizer) -> None:
    """With `window="blocks"` each token is the likeliest after its window of 7 to 8 tokens."""
    model = model_of(tokenizer)
    sampler = Sampler(model, tokenizer, window="blocks")
    done = sampler.complete_batch(PROMPTS, GREEDY)
    for prompt, completion in zip(PROMPTS, done, strict=True):
        assert completion.ids == sampler.complete(prompt, GREEDY).ids
        ids = tokenizer.encode(prompt, prepend_bos=True)
        for token in completion.ids:
            window = window_of(ids, N_CTX, True, block=2)
            with t.no_grad():
                assert int(model(t.tensor([window]))[0, -1, : tokenizer.d_vocab].argmax()) == token
            ids.append(token)


def test_int8_is_a_model_of_its_own(tokenizer: Tokenizer) -> None:
    """One text or many: the same tokens; nobody's edit is ignored."""
    model = model_of(tokenizer)
    sampler = Sampler(model, tokenizer, weights="int8")
    done = [completion.ids for completion in sampler.complete_batch(PROMPTS, GREEDY)]
    assert done == [sampler.complete(prompt, GREEDY).ids for prompt in PROMPTS]
    with listen(model, "blocks.0.resid_post", lambda _, x: x * 0, edits=True):
        assert [c.ids for c in sampler.complete_batch(PROMPTS, GREEDY)] != done


def test_what_cannot_be_int8_is_refused(tokenizer: Tokenizer) -> None:
    """A model in float64, when the sampler is made or later."""
    model = model_of(tokenizer)
    with pytest.raises(PvmlError, match="in float32 on a CPU"):
        Sampler(model_of(tokenizer).double(), tokenizer, weights="int8")
    sampler = Sampler(model, tokenizer, weights="int8")
    model.double()
    with pytest.raises(PvmlError, match="int8 weights multiply float32"):
        sampler.sample("the", GREEDY)
