"""A model that is given text: ids, padding and its mask, losses, and what is refused."""

import copy
import inspect

import pytest
import torch as t

from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.training.losses import get_log_probs

TEXTS = ["the cat sat", "the dog", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS * 20, 300)


@pytest.fixture
def model(make_model, tokenizer):
    """A random model with a tokenizer of its size."""
    made = make_model(d_vocab=tokenizer.d_vocab, n_ctx=40)
    made.tokenizer = tokenizer
    return made


def test_a_text_is_its_tokens_behind_bos(model, tokenizer):
    """`model(text)` and `model(tokens)` are the same bits; BOS is in front unless asked not."""
    text = TEXTS[0]
    tokens = model.to_tokens(text)

    assert tokens.tolist() == [tokenizer.encode(text, prepend_bos=True)]
    assert tokens[0, 0] == tokenizer.bos_token_id
    assert t.equal(model(text), model(tokens))
    bare = model.to_tokens(text, prepend_bos=False)
    assert t.equal(bare, tokens[:, 1:])
    assert t.equal(model(text, prepend_bos=False), model(bare))


def test_texts_go_back_and_forth(model):
    """Ids give their text back, one text for each row; each token's text, for each text."""
    tokens = model.to_tokens(TEXTS[2], prepend_bos=False)

    assert model.to_string(tokens[0]) == TEXTS[2]
    assert model.to_string(tokens) == [TEXTS[2]]
    assert "".join(model.to_str_tokens(TEXTS[2], prepend_bos=False)) == TEXTS[2]
    assert model.to_str_tokens(tokens) == model.to_str_tokens(TEXTS[2], prepend_bos=False)
    assert model.to_str_tokens(TEXTS[:2]) == [model.to_str_tokens(text) for text in TEXTS[:2]]
    one = int(tokens[0, 1])
    assert model.to_string(one) == model.to_single_str_token(one) == model.to_str_tokens(one)[0]


def test_a_single_token_is_told_from_several(model, tokenizer):
    """A text of one token has its id; another text is an error that shows the pieces."""
    assert model.to_single_token(" cat") == tokenizer.encode(" cat")[0]
    assert model.to_single_token("<|endoftext|>") == tokenizer.eos_token_id
    with pytest.raises(PvmlError, match=r"2 tokens, not 1: \[' cat', ' sat'\]"):
        model.to_single_token(" cat sat")
    with pytest.raises(PvmlError, match="0 tokens"):
        model.to_single_token("")


def test_a_token_is_found_in_a_text(model):
    """Its first or last position, counted from 0 with BOS; none is an error."""
    text = "the cat sat on the cat"
    strings = model.to_str_tokens(text)

    assert model.get_token_position(" cat", text) == strings.index(" cat")
    last = len(strings) - 1
    assert model.get_token_position(" cat", text, mode="last") == last
    assert model.get_token_position(" cat", text, mode="last", prepend_bos=False) == last - 1
    cat = model.to_single_token(" cat")
    assert model.get_token_position(cat, model.to_tokens(text)[0]) == strings.index(" cat")
    with pytest.raises(PvmlError, match="is not among"):
        model.get_token_position(" dog", text)
    with pytest.raises(PvmlError, match="one sequence"):
        model.get_token_position(cat, t.zeros(2, 3, dtype=t.long))


def test_ids_of_different_lengths_are_refused_without_a_mask(model):
    """Padding is end-of-text, which ids alone cannot tell from text: the message says what can."""
    with pytest.raises(PvmlError, match=r"3 to 7 tokens.*to_padded_tokens"):
        model.to_tokens(TEXTS)
    assert model.to_tokens([TEXTS[0], TEXTS[0]]).shape == (2, 4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_logit(model, side):
    """On either side, with the mask, every real position says what it says alone."""
    tokens, real = model.to_padded_tokens(TEXTS, padding_side=side)
    logits = model(tokens, real)

    assert real.sum(1).tolist() == [len(model.to_str_tokens(text)) for text in TEXTS]
    for row, text in enumerate(TEXTS):
        t.testing.assert_close(logits[row, real[row]], model(text)[0])


def test_a_call_with_texts_pads_them_and_grades_no_padding(model):
    """Several texts give each text's own logits, and the mean loss over real tokens."""
    both = model(TEXTS, return_type="both")
    alone = [model(text, return_type="loss", loss_per_token=True)[0] for text in TEXTS]

    t.testing.assert_close(both.logits[1, :3], model(TEXTS[1])[0])
    t.testing.assert_close(both.loss, t.cat(alone).mean())
    each = model(TEXTS, return_type="loss", loss_per_token=True)
    for row, losses in enumerate(alone):
        t.testing.assert_close(each[row, : len(losses)], losses)
        assert not each[row, len(losses) :].any()


def test_what_a_call_returns(make_model, tokens):
    """Logits, the loss in nats (as `get_log_probs` has it), both, or nothing."""
    model = make_model()
    logits = model(tokens)
    each = -get_log_probs(logits, tokens)

    t.testing.assert_close(model(tokens, return_type="loss"), each.mean())
    t.testing.assert_close(model(tokens, return_type="loss", loss_per_token=True), each)
    t.testing.assert_close(model.loss_fn(logits, tokens, per_token=True), each)
    got, loss = model(tokens=tokens, return_type="both")
    assert t.equal(got, logits)
    t.testing.assert_close(loss, each.mean())
    assert model(tokens, return_type=None) is None
    mask = t.ones_like(tokens)
    mask[1, 4:] = 0
    masked = model(tokens, mask, return_type="loss")
    t.testing.assert_close(masked, t.cat([each[0], each[1, :3]]).mean())


def test_a_pass_that_returns_nothing_is_a_pass(make_model, tokens):
    """With return_type=None hooks on the last tensor still run: a pass is never cut short."""
    heard = []
    made = make_model().run_with_hooks(
        tokens,
        return_type=None,
        fwd_hooks=[("unembed.logits", lambda x, hook: heard.append(hook.name))],
    )

    assert made is None
    assert heard == ["unembed.logits"]


def test_a_cache_of_a_text(model):
    """`run_with_cache` takes text and return_type as a call does."""
    loss, cache = model.run_with_cache(TEXTS[0], return_type="loss", remove_batch_dim=True)

    t.testing.assert_close(loss, model(TEXTS[0], return_type="loss"))
    assert cache["pattern", 0].shape == (3, 4, 4)


def test_long_texts_are_cut_only_when_asked(model):
    """More tokens than the model reads: the model refuses, unless they were cut on purpose."""
    text = "the cat " * 40

    assert model.to_tokens(text).shape[1] > 40
    assert model.to_tokens(text, truncate=True).shape == (1, 40)
    with pytest.raises(PvmlError, match="n_ctx of 40"):
        model(text)


def test_a_model_made_by_hand_says_how_it_gets_a_tokenizer(make_model):
    """Text without a tokenizer is an error with the line that sets one."""
    model = make_model()

    assert model.tokenizer is None
    for ask in (model, model.to_tokens, model.to_str_tokens, model.to_single_token):
        with pytest.raises(PvmlError, match=r"no tokenizer.*model.tokenizer = Tokenizer.gpt2\(\)"):
            ask("the cat")
    model.tokenizer = "gpt2"
    with pytest.raises(PvmlError, match="a str for a tokenizer"):
        model("the cat")


def test_copies_share_the_tokenizer(model):
    """A deep copy of a model keeps its tokenizer, which is the same one."""
    assert copy.deepcopy(model).tokenizer is model.tokenizer


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("the", {"loss_per_token": True}, "needs return_type loss"),
        ("the", {"attention_mask": t.ones(1, 2)}, "made here"),
        (t.zeros(1, 3, dtype=t.long), {"prepend_bos": True}, "prepend_bos is for text"),
        ("", {"return_type": "loss"}, "at least 2 tokens"),
    ],
)
def test_what_would_be_ignored_is_refused(model, given, options, message):
    """Options that could do nothing are errors, and so is a loss of a single token."""
    with pytest.raises(PvmlError, match=message):
        model(given, **options)


def test_no_text_at_all_is_refused(model):
    """An empty list holds no text."""
    with pytest.raises(PvmlError, match="expected a text"):
        model.to_tokens([])


def test_a_mask_that_leaves_nothing_to_grade_is_refused(model):
    """No row with 2 real tokens in a row: no mean, and no NaN in its place; each token's is 0."""
    tokens = t.tensor([[3, 5, 7], [2, 4, 6]])
    mask = t.tensor([[1, 0, 1], [0, 0, 1]])
    with pytest.raises(PvmlError, match="none of 2 rows has them"):
        model(tokens, return_type="loss", attention_mask=mask)
    each = model(tokens, return_type="loss", loss_per_token=True, attention_mask=mask)
    assert t.equal(each, t.zeros_like(each))


def test_ids_that_are_no_whole_numbers_are_refused(model):
    """Half an id is shown back."""
    for given in (t.tensor([1.5]), t.tensor([[2, 1.5]])):
        with pytest.raises(PvmlError, match="token ids are whole numbers, got .*1.5"):
            inspect.unwrap(type(model).to_str_tokens)(model, given)
