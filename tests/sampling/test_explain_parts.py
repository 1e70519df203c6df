"""The parts of a token's logit are told only where they add up to the logit that was used."""

from collections.abc import Callable

import pytest
from torch import Tensor

from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.trace.tap import listen

MakeModel = Callable[..., Transformer]
GREEDY = SamplingArgs(temperature=0.0, max_new_tokens=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat and the dog sat on the rug"], 263)


def test_an_edit_of_the_first_position(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    """With a cache it acts on the first of the new tokens, in the parts' own pass on BOS."""
    model = make_model(d_vocab=tokenizer.d_vocab, attn_only=True)
    sampler = Sampler(model, tokenizer)

    def first_is_large(_: str, z: Tensor) -> Tensor:
        z = z.clone()
        z[:, 0] += 5
        return z

    with listen(model, "blocks.0.attn.z", first_is_large, edits=True):
        told = sampler.complete("the cat", GREEDY, explain=True).explanations

    assert told[0].contributions is not None  # the prompt is read whole, as the parts are
    for one in told[1:]:
        assert one.contributions is None
        used = f"the logit that was used is {float(one.logits[one.token]):.3f}"
        assert used in one.no_contributions


@pytest.mark.usefixtures("everything_is_packed")
def test_int8_weights(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    """The parts come from the model's own weights, and the logits do not; with float32 both do."""
    model = make_model(d_vocab=tokenizer.d_vocab, attn_only=True).float()
    rounded = Sampler(model, tokenizer, weights="int8").complete("the", GREEDY, explain=True)
    exact = Sampler(model, tokenizer).complete("the", GREEDY, explain=True)

    assert all("int8 weights" in one.no_contributions for one in rounded.explanations)
    assert all(one.contributions for one in exact.explanations)
