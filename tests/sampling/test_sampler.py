"""The sampler: what the model sees, when it stops, and what it leaves as it was."""

import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.trace.tap import listen

CORPUS = ["the cat sat on the mat and the dog sat on the rug", "é 日本 🙂"]
GREEDY = SamplingArgs(temperature=0.0, max_new_tokens=5)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(CORPUS, 263)


def small(tokenizer: Tokenizer, n_ctx: int = 7, seed: int = 0, **other: object) -> Transformer:
    """A random float64 model whose weights are large enough to make it prefer something."""
    sizes = {"d_model": 11, "n_heads": 3, "d_head": 5, "d_mlp": 13, "n_layers": 2}
    cfg = Config(**sizes, n_ctx=n_ctx, d_vocab=tokenizer.d_vocab, init_range=0.9, **other)
    return Transformer(cfg, seed=seed).double().eval()


def chain(tokenizer: Tokenizer, text: str, ends: bool = True) -> Transformer:
    """A bigram model that knows one text by heart: after BOS its first token, and so on."""
    ids = [tokenizer.bos_token_id, *tokenizer.encode(text)]
    assert len(set(ids)) == len(ids)
    size = tokenizer.d_vocab
    model = Transformer(
        Config(
            d_model=size,
            n_heads=1,
            n_layers=0,
            n_ctx=31,
            d_vocab=size,
            positions="none",
            normalization="none",
        )
    )
    table = t.zeros(size, size)
    for now, then in zip(ids, [*ids[1:], tokenizer.eos_token_id if ends else ids[1]], strict=True):
        table[now, then] = 50.0
    with t.no_grad():
        model.embed.W_E.copy_(t.eye(size))
        model.unembed.W_U.copy_(table)
    return model


def windows_seen(sampler: Sampler, ids: list[int], args: SamplingArgs) -> list[list[int]]:
    """What the model is given at each step."""
    seen: list[list[int]] = []

    def keep(_: str, tokens: Tensor) -> None:
        seen.append(tokens[0].tolist())

    with listen(sampler.model, "embed.in", keep):
        list(sampler.continue_ids(ids, args))
    return seen


def test_a_text_known_by_heart(tokenizer: Tokenizer) -> None:
    """From BOS alone the whole text comes, and end-of-text ends it unseen."""
    sampler = Sampler(chain(tokenizer, "dog é🙂"), tokenizer)

    assert sampler.sample("", SamplingArgs(temperature=0.0)) == "dog é🙂"
    assert sampler.sample("do", SamplingArgs(temperature=0.0)) == "dog é🙂"


def test_a_stream_is_the_sample_in_whole_characters(tokenizer: Tokenizer) -> None:
    """é and 🙂 are several tokens: each comes when it is whole, and all pieces are the text."""
    sampler = Sampler(chain(tokenizer, "dog é🙂"), tokenizer)

    assert list(sampler.stream("d", SamplingArgs(temperature=0.0))) == ["o", "g", " ", "é", "🙂"]


def test_a_character_that_never_ends(tokenizer: Tokenizer) -> None:
    """Cut within 🙂, a stream ends with the one mark that stands for it, as the sample does."""
    sampler = Sampler(chain(tokenizer, "dog é🙂"), tokenizer)
    args = SamplingArgs(temperature=0.0, max_new_tokens=7)

    assert list(sampler.stream("d", args)) == ["o", "g", " ", "é", "\ufffd"]
    assert sampler.sample("d", args) == "dog é\ufffd"


@pytest.mark.parametrize(
    ("stop", "pieces", "end"),
    [
        (("g é",), ["o"], "stop string"),
        (("g é!",), ["o", "g é🙂"], "end-of-text"),  # held back, then set free
        (("🙂", "x"), ["o", "g", " ", "é"], "stop string"),
        (("o",), [], "stop string"),
        (("d",), ["o", "g", " ", "é", "🙂"], "end-of-text"),  # the prompt's own is no stop
    ],
)
def test_stop_strings_end_a_text(
    tokenizer: Tokenizer, stop: tuple[str, ...], pieces: list[str], end: str
) -> None:
    """The text ends before a stop string, of which the stream never gives a part."""
    sampler = Sampler(chain(tokenizer, "dog é🙂"), tokenizer)
    args = SamplingArgs(temperature=0.0, stop=stop)

    completion = sampler.complete("d", args)

    assert list(sampler.stream("d", args)) == pieces
    assert sampler.sample("d", args) == "d" + "".join(pieces)
    assert (completion.text, completion.end) == ("".join(pieces), end)
    assert completion.ids == tuple(
        sampler.continue_ids(tokenizer.encode("d", prepend_bos=True), args)
    )


def test_max_new_tokens_is_exact(tokenizer: Tokenizer) -> None:
    """Without an end-of-text, exactly the number of tokens asked for is written."""
    sampler = Sampler(chain(tokenizer, "dog", ends=False), tokenizer)
    start = tokenizer.encode("", prepend_bos=True)

    written = list(sampler.continue_ids(start, SamplingArgs(temperature=0.0, max_new_tokens=29)))

    assert len(written) == 29
    assert tokenizer.decode(written).startswith("dogdogdog")


def test_room_is_not_taken_before_it_is_needed(tokenizer: Tokenizer) -> None:
    """However many tokens are allowed, a text takes the memory of what is written."""
    sampler = Sampler(chain(tokenizer, "dog é🙂"), tokenizer)

    assert sampler.sample("", SamplingArgs(temperature=0.0, max_new_tokens=10**12)) == "dog é🙂"


def test_end_of_text_is_the_last_id(tokenizer: Tokenizer) -> None:
    """continue_ids gives the end-of-text id itself, and nothing after it."""
    sampler = Sampler(chain(tokenizer, "dog"), tokenizer)

    written = list(sampler.continue_ids([tokenizer.bos_token_id], SamplingArgs(temperature=0.0)))

    assert written == [*tokenizer.encode("dog"), tokenizer.eos_token_id]


@pytest.mark.parametrize("n_ctx", [1, 2, 7])
def test_bos_stays_in_front(tokenizer: Tokenizer, n_ctx: int) -> None:
    """However far the text outgrows the window, the model sees BOS and the last n_ctx - 1."""
    model = small(tokenizer, n_ctx=n_ctx)
    model.unembed.b_U.data[tokenizer.eos_token_id] = -1e9  # never ends
    sampler = Sampler(model, tokenizer, use_cache=False)
    ids = tokenizer.encode("the cat sat on the mat", prepend_bos=True)
    args = SamplingArgs(temperature=0.0, max_new_tokens=11)
    whole = ids + list(sampler.continue_ids(ids, args))

    seen = windows_seen(sampler, ids, args)

    assert len(seen) == 11
    for step, window in enumerate(seen):
        so_far = whole[: len(ids) + step]
        assert window == [tokenizer.bos_token_id, *so_far[len(so_far) - n_ctx + 1 :]]


def test_without_bos_the_window_is_the_end(tokenizer: Tokenizer) -> None:
    """prepend_bos off: no BOS at all, and the window is the last n_ctx tokens."""
    sampler = Sampler(small(tokenizer), tokenizer)
    ids = tokenizer.encode("the cat sat on the mat")
    args = SamplingArgs(prepend_bos=False, max_new_tokens=1, seed=0)

    assert windows_seen(sampler, ids, args) == [ids[-7:]]


def test_bos_spelt_out_is_plain_text(tokenizer: Tokenizer) -> None:
    """A prompt that spells the BOS token is text: it comes back, and BOS is there only once."""
    sampler = Sampler(small(tokenizer, n_ctx=31), tokenizer)
    prompt = "<|endoftext|>the"
    ids = tokenizer.encode(prompt, prepend_bos=True)

    assert sampler.sample(prompt, GREEDY).startswith(prompt)
    assert ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    ("positions", "prepend_bos", "temperature"),
    [
        ("standard", True, 0.0),
        ("standard", False, 1.0),
        ("none", True, 1.0),
        ("shortformer", True, 0.0),
    ],
)
def test_the_cache_changes_no_token(
    tokenizer: Tokenizer, positions: str, prepend_bos: bool, temperature: float
) -> None:
    """Three windows' worth of tokens are the same with keys and values kept and recomputed."""
    model = small(tokenizer, n_ctx=5, positions=positions)
    model.unembed.b_U.data[tokenizer.eos_token_id] = -1e9
    ids = tokenizer.encode("the", prepend_bos=prepend_bos)[:3]
    args = SamplingArgs(temperature=temperature, max_new_tokens=15, seed=5, prepend_bos=prepend_bos)

    with_cache = list(Sampler(model, tokenizer).continue_ids(ids, args))
    without = list(Sampler(model, tokenizer, use_cache=False).continue_ids(ids, args))

    assert with_cache == without
    assert len(set(without)) > 2  # a model that repeats itself would prove little


def test_the_cache_spares_the_work(tokenizer: Tokenizer) -> None:
    """Until the window slides, each step reads one new token; afterwards, the whole window."""
    model = small(tokenizer, n_ctx=7)
    model.unembed.b_U.data[tokenizer.eos_token_id] = -1e9
    ids = tokenizer.encode("dog", prepend_bos=True)[:3]
    args = SamplingArgs(max_new_tokens=7, seed=0)

    seen = windows_seen(Sampler(model, tokenizer), ids, args)

    assert [len(tokens) for tokens in seen] == [3, 1, 1, 1, 1, 7, 7]


def test_cached_logits_agree(tokenizer: Tokenizer) -> None:
    """With and without cache the logits differ by rounding only (float64), sliding included."""
    model = small(tokenizer, n_ctx=5)
    model.unembed.b_U.data[tokenizer.eos_token_id] = -1e9
    ids = tokenizer.encode("the cat", prepend_bos=True)[:3]
    args = SamplingArgs(temperature=0.0, max_new_tokens=15)
    found: list[list[Tensor]] = [[], []]

    for kept, use_cache in zip(found, (True, False), strict=True):
        keep = kept.append
        with listen(model, "unembed.logits", lambda _, x, keep=keep: keep(x.clone())):
            list(Sampler(model, tokenizer, use_cache=use_cache).continue_ids(ids, args))

    t.testing.assert_close(t.cat(found[0]), t.cat(found[1]), rtol=0, atol=1e-11)


def test_one_seed_one_text(tokenizer: Tokenizer) -> None:
    """A seed fixes the text whatever torch's global state is; without one, texts differ."""
    sampler = Sampler(small(tokenizer, n_ctx=31), tokenizer)
    with t.random.fork_rng(devices=[]):
        t.manual_seed(1)
        one = sampler.sample("the", SamplingArgs(seed=3, max_new_tokens=7))
        t.manual_seed(2)
        same = sampler.sample("the", SamplingArgs(seed=3, max_new_tokens=7))
        t.manual_seed(2)
        free = {sampler.sample("the", SamplingArgs(max_new_tokens=7)) for _ in range(3)}

    assert one == same
    assert sampler.sample("the", SamplingArgs(seed=4, max_new_tokens=7)) != one
    assert len(free) == 3


def test_the_global_generator_is_left_alone(tokenizer: Tokenizer) -> None:
    """Sampling in the middle of training does not move the training's random stream."""
    sampler = Sampler(small(tokenizer), tokenizer)
    before = t.get_rng_state()

    sampler.sample("the", SamplingArgs(seed=0, max_new_tokens=3))
    sampler.sample("the", SamplingArgs(max_new_tokens=3))

    assert t.equal(t.get_rng_state(), before)


def test_every_modes_comes_back(tokenizer: Tokenizer) -> None:
    """Eval mode and no gradients while sampling; each part's own mode afterwards, come what may."""
    model = small(tokenizer).train()
    model.blocks[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    during: list[bool] = []

    def fail(_: str, x: Tensor) -> None:
        during.extend((model.training, t.is_grad_enabled()))
        raise IndexError("the listener's own mistake")

    with pytest.raises(IndexError), listen(model, "ln_final.out", fail):
        Sampler(model, tokenizer).sample("the", GREEDY)
    Sampler(model, tokenizer).sample("the", GREEDY)

    assert during == [False, False]
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert t.is_grad_enabled()


def test_training_between_two_tokens(tokenizer: Tokenizer) -> None:
    """A caller that stops between tokens finds the model in its own mode."""
    model = small(tokenizer).train()
    tokens = Sampler(model, tokenizer).continue_ids([tokenizer.bos_token_id], SamplingArgs(seed=0))

    next(tokens)

    assert model.training
    assert t.is_grad_enabled()


def test_edits_act_while_sampling(tokenizer: Tokenizer) -> None:
    """A listener that rewrites the logits decides what is written."""
    model = small(tokenizer, n_ctx=31)
    wanted = tokenizer.encode("d")[0]

    def only_d(_: str, logits: Tensor) -> Tensor:
        return t.full_like(logits, -9.0).index_fill(-1, t.tensor([wanted]), 9.0)

    with listen(model, "unembed.logits", only_d, edits=True):
        text = Sampler(model, tokenizer).sample("the ", GREEDY)

    assert text == "the ddddd"


def test_an_empty_prompt_needs_bos(tokenizer: Tokenizer) -> None:
    """With BOS an empty prompt writes from nothing; without, there is nothing to go on from."""
    sampler = Sampler(small(tokenizer), tokenizer)

    assert sampler.sample("", GREEDY)
    with pytest.raises(PvmlError, match="empty prompt .* keep prepend_bos"):
        sampler.sample("", SamplingArgs(prepend_bos=False))


def test_ids_without_a_text_are_not_drawn(tokenizer: Tokenizer) -> None:
    """A model whose vocabulary was padded never writes an id that the tokenizer does not have."""
    cfg = Config(d_model=11, n_heads=1, n_layers=0, n_ctx=31, d_vocab=tokenizer.d_vocab + 37)
    model = Transformer(cfg, seed=0)
    model.unembed.b_U.data[tokenizer.d_vocab :] = 1e4

    written = list(Sampler(model, tokenizer).continue_ids([0], SamplingArgs(seed=0)))

    assert max(written) < tokenizer.d_vocab


def test_a_larger_tokenizer_is_refused(tokenizer: Tokenizer) -> None:
    """A tokenizer with more ids than the model has rows is the wrong one: both sizes are named."""
    cfg = Config(d_model=11, n_heads=1, n_layers=0, n_ctx=31, d_vocab=7)

    with pytest.raises(PvmlError, match=rf"{tokenizer.d_vocab} ids .* d_vocab is 7"):
        Sampler(Transformer(cfg), tokenizer)


def test_a_broken_model_is_named(tokenizer: Tokenizer) -> None:
    """Weights that have become NaN end in an error, not in a text."""
    model = small(tokenizer)
    model.unembed.W_U.data[0, 0] = float("nan")

    with pytest.raises(PvmlError, match="NaN"):
        Sampler(model, tokenizer).sample("the", GREEDY)
