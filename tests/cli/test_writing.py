"""What `pvml sample` prints as it comes, and what is left after Ctrl-C."""

from collections.abc import Callable, Iterator

import pytest

from pvml.cli.writing import write
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.explain import Explanation
from pvml.sampling.sampler import Sampler
from pvml.sampling.settings import Settings

MakeModel = Callable[..., Transformer]
ARGS = SamplingArgs(seed=1, max_new_tokens=5)


@pytest.fixture
def sampler(make_model: MakeModel) -> Sampler:
    tokenizer = Tokenizer.train(["the cat sat on the mat and the dog sat on the rug"], 263)
    return Sampler(make_model(d_vocab=tokenizer.d_vocab), tokenizer)


def test_explained_text_comes_token_by_token(sampler: Sampler) -> None:
    """The pieces are `sample`'s text, one for each token, and the table comes after the last."""
    told = sampler.complete("the", ARGS, explain=True)
    pieces = list(write(sampler, "the", Settings(sampling=ARGS, explain=True)))

    assert len(pieces) == 5 + 2
    assert "".join(pieces[:5]) == "the" + told.text == sampler.sample("the", ARGS)
    assert [one.token for _, one in sampler.explained("the", ARGS)] == list(told.ids)
    assert pieces[5] == "\n\n" and "rank" in pieces[6]


@pytest.mark.parametrize("n_done", [0, 2])
def test_ctrl_c_leaves_what_had_come(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch, n_done: int
) -> None:
    """The text and a table of its tokens, then the interrupt goes on; nothing for no token."""
    explained = sampler.explained

    def stopped(prompt: str, args: SamplingArgs) -> Iterator[tuple[str, Explanation]]:
        for place, each in enumerate(explained(prompt, args)):
            if place == n_done:
                raise KeyboardInterrupt
            yield each

    monkeypatch.setattr(sampler, "explained", stopped)
    pieces = write(sampler, "the", Settings(sampling=ARGS, explain=True))
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen += [next(pieces)]
        while True:
            seen.append(next(pieces))

    assert len(seen) == (n_done + 2 if n_done else 0)
    if n_done:
        assert "".join(seen[:2]).startswith("the") and "rank" in seen[-1]
