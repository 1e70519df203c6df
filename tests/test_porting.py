"""A notebook written for TransformerLens runs on a small model: the steps of ARENA 1.1 and 1.2."""

from functools import partial

import pytest
import torch as t

import pvml
from pvml.circuits import FactoredMap, copying_score, ov, ov_eigenvalues, qk
from pvml.trace.act_names import get_act_name

SEQ_LEN, BATCH = 50, 4


@pytest.fixture(scope="module")
def model():
    """Two layers of attention only, shortformer positions, with an induction circuit."""
    return pvml.load("attn-2l", device="cpu").model.requires_grad_(False)


@pytest.fixture(scope="module")
def repeated(model):
    """BOS and random tokens, repeated once."""
    rng = t.Generator().manual_seed(0)
    half = t.randint(256, model.cfg.d_vocab, (BATCH, SEQ_LEN), generator=rng)
    bos = t.full((BATCH, 1), model.tokenizer.bos_token_id)
    return t.cat([bos, half, half], dim=1)


def test_text_goes_in_and_comes_back(model):
    """Loss of a text, its tokens as text and back, the accuracy of its predictions."""
    text = "Once upon a time there was a little cat. The little cat"
    tokens = model.to_tokens(text)
    logits = model(text, return_type="logits")
    prediction = logits.argmax(-1).squeeze()[:-1]
    right = prediction == tokens.squeeze()[1:]

    assert model.to_str_tokens(text)[0] == model.to_single_str_token(model.tokenizer.bos_token_id)
    assert "".join(model.to_str_tokens(text)[1:]) == text
    assert model.to_string(tokens[0, 1:]) == text
    assert right.float().mean() > 0.3
    assert all(isinstance(word, str) for word in model.to_str_tokens(prediction[right]))
    loss = model(text, return_type="loss")
    by_hand = logits[0, :-1].log_softmax(-1).gather(-1, tokens[0, 1:, None]).mean()
    t.testing.assert_close(loss, -by_hand)


def test_greedy_text_one_token_at_a_time(model):
    """The loop of the first chapter: argmax, append, again; as the sampler writes it."""
    tokens = model.to_tokens("Once upon a time")
    for _ in range(5):
        next_token = model(tokens)[0, -1].argmax(dim=-1)
        tokens = t.cat([tokens, next_token[None, None]], dim=-1)
    sampler = pvml.Sampler(model, model.tokenizer)
    args = pvml.SamplingArgs(temperature=0.0, max_new_tokens=5)

    assert model.to_string(tokens[0, 1:]) == sampler.sample("Once upon a time", args)


def test_attention_by_hand(model):
    """The pattern of a layer, from its q and k, is the cached one; one text, no batch axis."""
    _, cache = model.run_with_cache("Tom saw a red ball.", remove_batch_dim=True)
    q, k = cache["q", 0], cache["k", 0]
    scores = t.einsum("qhd,khd->hqk", q, k)
    scores.masked_fill_(t.ones_like(scores[0]).triu(1).bool(), -1e9)

    pattern = (scores / model.cfg.d_head**0.5).softmax(-1)
    t.testing.assert_close(pattern, cache["pattern", 0])
    t.testing.assert_close(pattern, cache["blocks.0.attn.hook_pattern"])


def test_heads_are_found_by_their_diagonals(model, repeated):
    """A previous-token head below, and above it heads that read one past the last occurrence."""
    _, cache = model.run_with_cache(repeated)
    score = t.zeros(model.cfg.n_layers, model.cfg.n_heads)

    def induction_score(pattern, hook):
        stripe = pattern.diagonal(dim1=-2, dim2=-1, offset=1 - SEQ_LEN)
        score[hook.layer()] = stripe.mean((0, -1))

    model.run_with_hooks(
        repeated,
        return_type=None,
        fwd_hooks=[(lambda name: name.endswith("pattern"), induction_score)],
    )
    for layer in range(2):
        by_cache = cache["pattern", layer].diagonal(1 - SEQ_LEN, -2, -1).mean((0, -1))
        t.testing.assert_close(score[layer], by_cache)
    previous = cache["pattern", 0].diagonal(-1, -2, -1).mean((0, -1))
    assert previous.max() > 0.4
    assert score[1].max() > 0.25 > 4 * score[0].max()


def test_repeats_are_cheaper_the_second_time(model, repeated):
    """Loss per token, first half and second."""
    loss = model(repeated, return_type="loss", loss_per_token=True)

    assert loss.shape == (BATCH, 2 * SEQ_LEN)
    assert loss[:, SEQ_LEN + 1 :].mean() < loss[:, :SEQ_LEN].mean() - 1


def test_the_head_that_matters_is_found_by_ablation(model, repeated):
    """Of all heads, one with an induction stripe or below it costs most when its v is zeroed."""

    def silence(v, hook, head):
        v[:, :, head, :] = 0.0
        return v

    def second_half(logits):
        return model.loss_fn(logits[:, -SEQ_LEN - 1 :], repeated[:, -SEQ_LEN - 1 :])

    model.reset_hooks()
    whole = second_half(model(repeated, return_type="logits"))
    cost = t.zeros(2, model.cfg.n_heads)
    for layer in range(2):
        for head in range(model.cfg.n_heads):
            hooks = [(get_act_name("v", layer), partial(silence, head=head))]
            cost[layer, head] = second_half(model.run_with_hooks(repeated, fwd_hooks=hooks)) - whole
    _, cache = model.run_with_cache(repeated)
    previous = cache["pattern", 0].diagonal(-1, -2, -1).mean((0, -1))

    assert cost[0].argmax() == previous.argmax()
    assert cost.max() > 1


def test_every_logit_is_taken_apart(model, repeated):
    """Embedding, heads, b_O and constants add up to each correct token's logit."""
    logits, cache = model.run_with_cache(repeated[:1], remove_batch_dim=True)
    tokens = repeated[0]
    heads, labels = cache.stack_head_results(return_labels=True, pos_slice=(-1,))
    parts = t.cat(
        [cache["embed"][None, :-1], heads, model.b_O[:, None].expand(-1, len(tokens) - 1, -1)]
    )
    attributed = cache.logit_attrs(parts, tokens[1:], pos_slice=(-1,)).sum(0)
    constant = model.ln_final.b @ model.W_U[:, tokens[1:]] + model.b_U[tokens[1:]]
    own = logits[0, t.arange(len(tokens) - 1), tokens[1:]]

    assert labels[-1] == "L1H3"
    t.testing.assert_close(attributed + constant, own, atol=1e-4, rtol=0)
    t.testing.assert_close(heads[5], cache["result", 1][:-1, 1])


def test_queries_are_taken_apart(model, repeated):
    """What layer 1 asks is the sum over embedding, positions, heads and biases below."""
    _, cache = model.run_with_cache(repeated[:1], remove_batch_dim=True)
    below = cache.decompose_resid(1, apply_ln=True)
    read = below.sum(0) + model.blocks[1].ln1.b + cache["pos_embed"]

    q = read @ model.W_Q[1, 2] + model.b_Q[1, 2]
    t.testing.assert_close(q, cache["q", 1][:, 2], atol=1e-4, rtol=1e-4)


def test_copying_by_eigenvalues(model):
    """The OV circuit by hand is `ov`'s, its eigenvalues `ov_eigenvalues`'; a head copies."""
    for head in range(model.cfg.n_heads):
        by_hand = model.W_E @ FactoredMap(model.W_V[1, head], model.W_O[1, head]) @ model.W_U
        same = ov(model, (1, head), norms="ignored").map
        assert by_hand.shape == (4096, 4096)
        ids = t.tensor([5, 4000])
        t.testing.assert_close(by_hand.rows(ids), same.rows(ids), atol=1e-4, rtol=1e-4)
        ours = ov_eigenvalues(model, norms="ignored")[1, head]
        score = copying_score(by_hand.eigenvalues())
        assert float(score) == pytest.approx(float(copying_score(ours)), abs=1e-3)
    copies = copying_score(ov_eigenvalues(model, norms="ignored"))[1]
    assert copies.max() > 0.5


def test_positions_and_composition(model):
    """The previous-token circuit of positions, and K-composition scores, from stacked weights."""
    W_QK = model.W_Q @ model.W_K.transpose(-1, -2)
    W_OV = model.W_V @ model.W_O
    assert W_QK.shape == W_OV.shape == (2, 4, 128, 128)
    few = model.W_pos[:20]
    scores = few @ W_QK[0, 1] @ few.T
    same = qk(model, (0, 1), queries="positions", keys="positions", norms="ignored").map
    t.testing.assert_close(scores, same.rows(range(20))[:, :20], atol=1e-4, rtol=1e-4)

    product = W_OV[0][:, None] @ W_QK[1].mT
    sizes = W_OV[0].norm(dim=(-2, -1))[:, None] * W_QK[1].norm(dim=(-2, -1))
    composed = product.norm(dim=(-2, -1)) / sizes
    assert composed.amax(1).argmax() == 2  # head 0.2 writes what stood before
    assert composed.max() > 1.5 * composed.median()


def test_the_pass_is_left_and_entered_between_layers(model, repeated):
    """For stop_at_layer the cached stream; for start_at_layer a hook that puts a stream in."""
    name = get_act_name("resid_pre", 1)
    stopped = model.run_with_cache(repeated, names_filter=name)[1]["resid_pre", 1]
    other, positions = repeated.flip(0), model.W_pos[:101].expand(BATCH, -1, -1)
    started = model.run_with_hooks(other, fwd_hooks=[(name, lambda x, hook: stopped)])

    t.testing.assert_close(model.blocks[0](model.embed(repeated), positions), stopped)
    t.testing.assert_close(started, model(repeated))


def test_what_stands_for_a_name_that_is_not_there(model):
    """The table's lines for the tokenizer, generate, folding, hook_dict, mod_dict and a cache."""
    text = "Tom saw a red ball."
    tokenizer = model.tokenizer
    assert tokenizer.encode(text) == model.to_tokens(text)[0, 1:].tolist()
    vocabulary = [model.to_single_str_token(i) for i in range(model.cfg.d_vocab)]
    assert len(vocabulary) == tokenizer.d_vocab and vocabulary[526] == " ball"
    args = pvml.SamplingArgs(max_new_tokens=5)
    written = pvml.Sampler(model, tokenizer).sample(text, args)
    assert written.startswith(text) and len(written) > len(text)
    _, cache = model.run_with_cache(text, device="cpu")
    names = {place.lens for place in pvml.trace.tap.places(model)}
    assert get_act_name("pattern", 1) in names and "hook_embed" in names
    assert dict(model.named_modules())["blocks.0.attn"] is model.blocks[0].attn
    assert t.equal(dict(cache)["blocks.1.attn.attn_pattern"], cache["pattern", 1])
    with pytest.raises(AttributeError):
        model.blocks[0].attn.hook_pattern  # noqa: B018


def test_norms_are_folded_into_a_new_model(model):
    """`process` and `fold_layer_norm` for fold_ln; beside shortformer positions it is refused."""
    sizes = {"d_model": 12, "n_heads": 3, "n_layers": 1, "n_ctx": 11, "d_vocab": 29}
    plain = pvml.Transformer(pvml.Config(**sizes), seed=0).requires_grad_(False)
    plain.ln_final.w.mul_(2)
    for folded in (pvml.processing.process(plain), pvml.processing.fold_layer_norm(plain)):
        assert (folded.model.ln_final.w == 1).all() and (plain.ln_final.w == 2).all()

    with pytest.raises(pvml.errors.PvmlError, match="positions are added behind ln1"):
        pvml.processing.fold_layer_norm(model)


def test_composition_scores_by_kind(model):
    """A list of every pair, whose numbers are the notebook's where norms are ignored."""
    W_OV, W_QK = model.W_V @ model.W_O, model.W_Q @ model.W_K.mT
    product = W_OV[0, 2] @ W_QK[1, 3].mT
    by_hand = product.norm() / (W_OV[0, 2].norm() * W_QK[1, 3].norm())
    scores = pvml.circuits.composition_scores(model, norms="ignored", n_null=100)
    (found,) = (s for s in scores if (s.kind, s.writer, s.reader) == ("K", (0, 2), (1, 3)))

    assert len(scores) == 3 * 4 * 4
    assert found.score == pytest.approx(float(by_hand), rel=1e-4)


def test_activations_are_patched(model):
    """`patch_activations` for the functions of `patching`: by hand, one cell of each."""
    clean = model.to_tokens(" apple door king rain ball apple door king")
    corrupted = model.to_tokens(" apple door king ball rain apple door king")
    right, wrong = (model.to_single_token(word) for word in (" rain", " ball"))
    _, cache = model.run_with_cache(clean)

    def metric(logits):
        return (logits[:, -1, right] - logits[:, -1, wrong]).mean()

    def put(x, hook, at):
        x[at] = cache[hook.name][at]
        return x

    def by_hand(name, *at):
        hooks = [(get_act_name(name, 1), partial(put, at=at))]
        return metric(model.run_with_hooks(corrupted, fwd_hooks=hooks))

    every = slice(None)
    wanted = {
        ("resid_pre", False, (1, 4)): by_hand("resid_pre", every, 4),
        ("attn_out", False, (1, 8)): by_hand("attn_out", every, 8),
        ("z", False, (1, 3)): by_hand("z", every, every, 3),
        ("z", True, (1, 3, 8)): by_hand("z", every, 8, 3),
        ("pattern", False, (1, 3)): by_hand("pattern", every, 3),
    }
    for (over, by_position, cell), value in wanted.items():
        found = pvml.patching.patch_activations(
            model, clean, corrupted, metric, over=over, by_position=by_position
        )
        t.testing.assert_close(found.values[cell], value, check_dtype=False, atol=1e-4, rtol=1e-4)


def test_added_hooks_are_reset(model, repeated):
    """`add_hook` stays, `reset_hooks` ends it: the notebook's next cell is as before."""
    plain = model(repeated[:1])
    model.add_hook(get_act_name("pattern", 1), lambda pattern, hook: pattern * 0)
    hooked = model(repeated[:1])
    model.reset_hooks()

    assert not t.equal(hooked, plain)
    assert t.equal(model(repeated[:1]), plain)
