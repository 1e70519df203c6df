"""Weights rewritten: the predictions stay, the model given stays, and what is wrong is refused."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.attribution import logit_lens
from pvml.circuits.weights.maps import ov, qk
from pvml.data.tokenizer import Tokenizer
from pvml.errors import CheckFailed, PvmlError
from pvml.modules.transformer import Transformer
from pvml.processing.centring import centre_writing
from pvml.processing.changes import CHANGES, described
from pvml.processing.folding import fold_norms
from pvml.processing.rewrite import (
    Processed,
    centre_unembedding,
    centre_writing_weights,
    fold_layer_norm,
    fold_value_biases,
    process,
)
from pvml.reference.numpy_forward import forward
from pvml.runs.format import RunDir
from pvml.trace.edit import ablate

ONE_BY_ONE: list[Callable[..., Processed]] = [
    fold_layer_norm,
    centre_writing_weights,
    centre_unembedding,
    fold_value_biases,
]
SHAPES: list[dict[str, Any]] = [
    {},
    {"attn_only": True},
    {"positions": "none"},
    {"tie_embeddings": True},
    {"n_layers": 0},
    {"n_layers": 1, "n_ctx": 7, "d_mlp": 3},
]


@pytest.fixture
def moved(make_model: Any) -> Callable[..., Transformer]:
    """The small random model, whose frozen b_U is off zero too."""

    def make(**changes: Any) -> Transformer:
        model: Transformer = make_model(**changes).requires_grad_(False)
        model.unembed.b_U += t.linspace(-1, 1, len(model.unembed.b_U), dtype=t.float64)
        return model

    return make


def numbers(model: Transformer) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def test_one_weight_by_hand(moved: Any) -> None:
    """Head 2's queries: w scales W_Q's rows, the columns lose their mean, b_Q takes ln1.b W_Q."""
    model = moved()
    block = model.blocks[0]
    W, b = block.attn.W_Q[2], block.attn.b_Q[2]
    rows = [[float(block.ln1.w[i] * W[i, j]) for j in range(5)] for i in range(13)]
    means = [sum(row[j] for row in rows) / 13 for j in range(5)]
    wanted = t.tensor([[row[j] - means[j] for j in range(5)] for row in rows], dtype=t.float64)
    biases = [float(b[j] + sum(block.ln1.b[i] * W[i, j] for i in range(13))) for j in range(5)]
    got = fold_layer_norm(model).model.blocks[0]

    t.testing.assert_close(got.attn.W_Q[2], wanted, rtol=0, atol=1e-14)
    t.testing.assert_close(got.attn.b_Q[2], t.tensor(biases, dtype=t.float64), rtol=0, atol=1e-14)
    assert got.ln1.w.eq(1).all() and got.ln1.b.eq(0).all() and got.ln2.w.eq(1).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rewrite", ONE_BY_ONE)
def test_the_predictions_stay(
    moved: Any, tokens: Tensor, rewrite: Callable[..., Processed], shape: dict[str, Any]
) -> None:
    """On tokens that were not checked, by the NumPy reference too: logits, or log-probabilities."""
    model = moved(**shape)
    before, weights = model(tokens), numbers(model)
    new, (step,) = rewrite(model)
    parameters = {name: x.numpy() for name, x in new.state_dict().items()}
    after = t.from_numpy(forward(parameters, new.cfg, tokens.numpy())["unembed.logits"])
    largest = float(before.abs().max())
    if step.keeps == "differences of logits":
        moved_by = before - after
        assert float(moved_by.std(-1).max()) < 1e-12 * largest < float(moved_by.abs().min())
        before, after = before.log_softmax(-1), after.log_softmax(-1)

    assert float((before - after).abs().max()) <= 1e-12 * largest
    assert step.error <= 1e-12
    assert new.processing == (step.name,) == (rewrite.__name__,)
    assert all(t.equal(x, weights[name]) for name, x in model.state_dict().items())
    assert model.processing == ()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rewrite", ONE_BY_ONE)
def test_the_record_names_what_changed(
    moved: Any, rewrite: Callable[..., Processed], shape: dict[str, Any]
) -> None:
    """Every tensor that differs is named, and none besides; nothing is shared with the old one."""
    model = moved(**shape)
    before = numbers(model)
    new, (step,) = rewrite(model)
    after = numbers(new)
    untied = after.keys() - before.keys()
    changed = [name for name, x in after.items() if name in before and not t.equal(x, before[name])]

    assert set(changed) | untied == set(step.changed) | untied
    assert len(set(step.changed)) == len(step.changed)
    theirs = {x.data_ptr() for x in model.state_dict().values()}
    assert not theirs & {x.data_ptr() for x in new.state_dict().values()}


def test_what_each_leaves(moved: Any) -> None:
    """Identity LayerNorms, writers and logits of mean 0, no b_V: those of the step and no other."""
    model = process(moved()).model
    for block in model.blocks:
        for ln in (block.ln1, block.ln2):
            assert ln.w.eq(1).all() and ln.b.eq(0).all()
        for x in (block.attn.W_O, block.attn.b_O, block.mlp.W_out, block.mlp.b_out):
            assert x.mean(-1).abs().max() < 1e-15
        for W in (block.attn.W_Q, block.attn.W_K, block.attn.W_V, block.mlp.W_in):
            assert W.mean(-2).abs().max() < 1e-15
        assert block.attn.b_V.eq(0).all()
    for x in (model.embed.W_E, model.pos_embed.W_pos, model.unembed.W_U, model.unembed.b_U):
        assert x.mean(-1).abs().max() < 1e-15


def test_all_at_once_is_one_after_another(moved: Any) -> None:
    """`process` does all four in order; doing it again changes nothing but by rounding."""
    model = moved()
    done = process(model)
    by_hand = model
    for rewrite in ONE_BY_ONE:
        by_hand = rewrite(by_hand).model

    assert done.model.processing == by_hand.processing == tuple(CHANGES)
    assert done.left_out == () and [step.name for step in done.steps] == list(CHANGES)
    twice = process(done.model).model
    assert twice.processing == tuple(CHANGES)
    for name, x in done.model.state_dict().items():
        assert t.equal(x, by_hand.state_dict()[name]), name
        t.testing.assert_close(x, twice.state_dict()[name], rtol=0, atol=1e-13)


def test_transformer_lens_makes_the_same_weights(moved: Any) -> None:
    """Its own four steps, on the same state dict in float64, give every tensor to rounding."""
    lens = pytest.importorskip("transformer_lens.weight_processing").ProcessWeights
    model = moved()
    cfg = SimpleNamespace(
        n_layers=2,
        n_heads=3,
        d_head=5,
        d_model=13,
        d_vocab=29,
        n_key_value_heads=None,
        normalization_type="LN",
        positional_embedding_type="standard",
        attn_only=False,
    )
    theirs = lens.fold_layer_norm(numbers(model), cfg)
    theirs = lens.center_writing_weights(theirs, cfg)
    theirs = lens.center_unembed(theirs, cfg=cfg)
    theirs = lens.fold_value_biases(theirs, cfg)
    ours = numbers(process(model).model)

    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        t.testing.assert_close(x, theirs[name], rtol=0, atol=1e-14)


def test_a_tied_model_is_untied(moved: Any, tokens: Tensor) -> None:
    """W_U becomes a table of its own, the config says so, and so does the record; W_E stays."""
    model = moved(tie_embeddings=True)
    done = fold_layer_norm(model)

    assert done.untied and "tie_embeddings is False" in str(done)
    assert done.model.cfg == replace(model.cfg, tie_embeddings=False)
    assert all(part.cfg.tie_embeddings is False for part in done.model.blocks)
    assert t.equal(done.model.embed.W_E, model.embed.W_E)
    kept = fold_value_biases(model)
    assert not kept.untied and kept.model.cfg.tie_embeddings
    t.testing.assert_close(
        process(model).model(tokens).log_softmax(-1), model(tokens).log_softmax(-1)
    )


def test_folding_into_a_shortformer_would_be_wrong(moved: Any, tokens: Tensor) -> None:
    """It is refused with the reason; done all the same, it changes every prediction (case 45)."""
    model = moved(positions="shortformer")
    with pytest.raises(PvmlError, match="positions are added behind ln1, for queries and keys"):
        fold_layer_norm(model)
    forced = copy.deepcopy(model)
    fold_norms(forced)

    wrong = (forced(tokens) - model(tokens)).abs().amax(-1)
    assert bool((wrong[:, 1:] > 1e-3).all())  # position 0 reads itself alone, whatever it asks


def test_a_shortformer_is_processed_but_for_that(moved: Any, tokens: Tensor) -> None:
    """`process` leaves folding out and says why; W_pos, which is never written, is not centred."""
    model = moved(positions="shortformer")
    done = process(model)

    assert done.model.processing == tuple(CHANGES)[1:]
    assert [name for name, _ in done.left_out] == ["fold_layer_norm"]
    assert "left out: fold_layer_norm: positions are added behind ln1" in str(done)
    assert t.equal(done.model.pos_embed.W_pos, model.pos_embed.W_pos)
    t.testing.assert_close(
        done.model(tokens).log_softmax(-1), model(tokens).log_softmax(-1), rtol=0, atol=1e-12
    )
    with pytest.raises(PvmlError, match="fold_layer_norm would be wrong here"):
        process(model, steps=["fold_layer_norm"])


def test_a_model_without_layernorm_reads_the_mean(moved: Any, tokens: Tensor) -> None:
    """Folding and centring of writers are refused; done all the same, centring changes logits."""
    model = moved(normalization="none")
    for rewrite, complaint in (
        (fold_layer_norm, "no LayerNorm to fold"),
        (centre_writing_weights, "take the stream's mean off before it is read"),
    ):
        with pytest.raises(PvmlError, match=complaint):
            rewrite(model)
    assert process(model).model.processing == ("centre_unembedding", "fold_value_biases")
    forced = copy.deepcopy(model)
    centre_writing(forced)
    assert float((forced(tokens) - model(tokens)).abs().max()) > 1e-3


def test_circuits_are_those_of_the_unprocessed_model(moved: Any) -> None:
    """Circuits fold LayerNorms by the same definition: read off either model, they are equal."""
    model = moved()
    new = fold_layer_norm(model).model
    (said,) = set(qk(new, (1, 2)).holds) - set(qk(model, (1, 2)).holds)
    assert said == "weights processed: fold_layer_norm"
    for make in (lambda m: qk(m, (1, 2), biases=True), lambda m: ov(m, (0, 1), (1, 0))):
        t.testing.assert_close(make(model).map.dense(), make(new).map.dense(), rtol=0, atol=1e-12)
    plain = qk(new, (1, 2), norms="ignored", queries="stream", keys="stream").map.dense()
    folded = qk(model, (1, 2), queries="stream", keys="stream").map.dense()
    t.testing.assert_close(plain, folded, rtol=0, atol=1e-12)


def test_float32_is_allowed_its_rounding(moved: Any) -> None:
    """Weights are computed in float64 and rounded once; dtype, mode and gradients stay."""
    model = moved().float().train()
    model.embed.W_E.requires_grad_(True)
    new, steps = process(model)

    assert new.dtype == t.float32 and new.training
    assert new.embed.W_E.requires_grad and not new.blocks[0].attn.W_Q.requires_grad
    assert all(1e-12 < step.error < 1e-5 for step in steps)


def test_half_precision_is_refused(moved: Any) -> None:
    """Nobody could tell rounding from a mistake there; the message says what to do."""
    with pytest.raises(PvmlError, match="bfloat16 .* load the model with dtype='float32'"):
        process(moved().bfloat16())


def test_a_model_that_predicts_something_else_fails(moved: Any, tokens: Tensor) -> None:
    """Hooks that edit the model given, or NaN in it, end in CheckFailed, never in a model."""
    model = moved()
    with ablate(model, "blocks.0.attn.z", head=1), pytest.raises(CheckFailed, match="editing"):
        fold_value_biases(model)
    model.blocks[1].mlp.W_out[0, 0] = float("nan")
    with pytest.raises(CheckFailed, match="after fold_layer_norm the logits differ by nan"):
        process(model, tokens)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"steps": ["fold_ln"]}, "steps must be some of fold_layer_norm, .*; got"),
        ({"steps": []}, "steps must be some of"),
        ({"steps": "fold_layer_norm"}, "steps must be some of"),
        ({"tokens": t.zeros(0, 3, dtype=t.long)}, "a check needs tokens to look at"),
        ({"tokens": t.full((1, 3), 29)}, "token id 29 is outside the vocabulary"),
    ],
)
def test_bad_requests(moved: Any, options: dict[str, Any], complaint: str) -> None:
    """Unknown steps and tokens that prove nothing are errors that say what there is."""
    with pytest.raises(PvmlError, match=complaint):
        process(moved(), **options)


def test_the_steps_run_in_the_right_order(moved: Any) -> None:
    """Whatever order they are named in."""
    done = process(moved(), steps=["fold_value_biases", "fold_layer_norm"])

    assert done.model.processing == ("fold_layer_norm", "fold_value_biases")


def test_the_processing_stays_with_the_model(moved: Any, tmp_path: Path) -> None:
    """A copy has it, a run that the model is saved in has it, and figures get words for it."""
    tokenizer = Tokenizer.train(["the cat"], 260)
    model = process(moved(d_vocab=260, n_layers=1).float()).model
    assert copy.deepcopy(model).processing == tuple(CHANGES)
    run = RunDir.create(tmp_path / "run", cfg=model.cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, model, {})

    assert run.load_model("cpu").processing == tuple(CHANGES)
    assert run.load_model("cpu", step=1).processing == tuple(CHANGES)
    assert described(model.processing) == (
        "weights processed: fold_layer_norm, centre_writing_weights, centre_unembedding, "
        "fold_value_biases"
    )
    assert described(()) == ""


@pytest.mark.parametrize("check", [process, logit_lens])
def test_rounding_is_told_from_a_fault(make_model: Any, tokens: Tensor, check: Any) -> None:
    """A stream whose mean is 1000 rounds too much in float32: float64 is advised, and does it."""
    model = make_model()
    with t.no_grad():
        model.embed.W_E += 1000.0
    with pytest.raises(CheckFailed, match=r"may be rounding.*try dtype='float64'"):
        check(copy.deepcopy(model).float(), tokens[:1])
    check(model, tokens[:1])
