"""Activation patching: each cell is one edit of one pass; only what matters moves the answer."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.patching.metric import LogitDifference
from pvml.patching.sweep import patch_activations
from pvml.processing.rewrite import process
from pvml.trace.tap import listen

METRIC = LogitDifference(answer=3, wrong=11)


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    """Two prompts of seven ids that differ at positions 2 and 5."""
    clean = t.randint(0, 29, (1, 7), generator=t.Generator().manual_seed(5))
    corrupted = clean.clone()
    corrupted[0, [2, 5]] = (clean[0, [2, 5]] + 7) % 29
    return clean, corrupted


def one_at_a_time(
    model: Transformer,
    clean: Tensor,
    corrupted: Tensor,
    name: str,
    index: tuple[Any, ...],
    metric: Any = METRIC,
) -> float:
    """One cell by TransformerLens's means: a cache of the one pass, a hook in the other."""
    with t.no_grad():
        _, cache = model.run_with_cache(clean)

        def hook(x: Tensor, hook: Any, kept: Tensor) -> Tensor:
            x = x.clone()
            x[index] = kept[index]
            return x

        hooks = [(name, partial(hook, kept=cache[name]))]
        return float(metric(model.run_with_hooks(corrupted, fwd_hooks=hooks)))


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize(
    ("over", "by_position", "path"),
    [
        ("resid_pre", False, "resid_pre"),
        ("hook_attn_out", False, "attn.attn_out"),
        ("mlp_out", False, "mlp.mlp_out"),
        ("post", False, "mlp.post"),
        ("heads", False, "attn.z"),
        ("z", True, "attn.z"),
        ("q", False, "attn.q"),
        ("k", True, "attn.k"),
        ("hook_v", False, "attn.v"),
        ("pattern", False, "attn.attn_pattern"),
        ("attn_pattern", True, "attn.attn_pattern"),
        ("attn_scores", False, "attn.attn_scores"),
    ],
)
def test_each_cell_is_one_edit(
    make_model: Any, pair: Any, over: str, by_position: bool, path: str, direction: Any
) -> None:
    """Every cell equals a pass with one hook, in float64, whichever share one pass here."""
    model, (clean, corrupted) = make_model(), pair
    found = patch_activations(
        model, clean, corrupted, METRIC, over=over, by_position=by_position, direction=direction
    )
    source, base = (clean, corrupted) if direction == "denoising" else (corrupted, clean)
    values = found.values
    assert found.over == path.rpartition(".")[2] and values.shape == found.shape
    for place in [(0, *[0] * (values.ndim - 1)), (1, *[2] * (values.ndim - 1))]:
        layer, *rest = place
        if "head" not in found.axes:
            index: tuple[Any, ...] = (0, rest[0])
        elif "pattern" in path or "scores" in path:
            index = (0, *rest)
        else:
            index = (0, rest[1] if by_position else slice(None), rest[0])
        wanted = one_at_a_time(model, source, base, f"blocks.{layer}.{path}", index)
        assert float(values[place]) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_every_cell_of_a_grid(make_model: Any, pair: Any) -> None:
    """All cells of layers x positions and of layers x heads, each against its own pass."""
    model, (clean, corrupted) = make_model(), pair
    stream = patch_activations(model, clean, corrupted, METRIC, over="resid_pre").values
    heads = patch_activations(model, clean, corrupted, METRIC).values
    assert stream.shape == (2, 7) and heads.shape == (2, 3)
    for layer in range(2):
        for position in range(7):
            wanted = one_at_a_time(
                model, clean, corrupted, f"blocks.{layer}.resid_pre", (0, position)
            )
            assert float(stream[layer, position]) == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        for head in range(3):
            index = (0, slice(None), head)
            wanted = one_at_a_time(model, clean, corrupted, f"blocks.{layer}.attn.z", index)
            assert float(heads[layer, head]) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


@pytest.fixture
def one_head_matters() -> Transformer:
    """One layer of three heads; 0.1 alone reads position 1 and says its token, at any position."""
    n, posn = 7, 5
    sizes: dict[str, Any] = {"d_model": 2 * n + posn, "n_heads": 3, "d_head": n, "n_layers": 1}
    cfg = Config(**sizes, n_ctx=posn, d_vocab=n, attn_only=True, normalization="none")
    model = Transformer(cfg, seed=0).double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    model.embed.W_E[:, :n] = t.eye(n)
    model.pos_embed.W_pos[:, n : n + posn] = t.eye(posn)
    attn = model.blocks[0].attn
    attn.b_Q[1, 0] = 100.0
    attn.W_K[1, n + 1, 0] = 1.0
    for head in range(3):  # the others carry what they read on, too, but nobody listens
        attn.W_V[head, :n] = t.eye(n)
    attn.W_O[1, :, n + posn :] = t.eye(n)
    model.unembed.W_U[n + posn :] = 2.0 * t.eye(n)
    return model


def test_only_the_head_that_matters_moves_the_answer(one_head_matters: Transformer) -> None:
    """By hand: 0.1 at the last position restores all, others nothing; noising is the mirror."""
    clean, corrupted = t.tensor([[0, 4, 1, 2]]), t.tensor([[0, 5, 1, 2]])
    metric = LogitDifference(answer=4, wrong=5)
    sweep = partial(patch_activations, one_head_matters, clean, corrupted, metric)
    found = sweep(by_position=True)

    assert (found.clean, found.corrupted) == pytest.approx((2.0, -2.0))
    assert found.axes == ("layer", "head", "position") and found.shape == (1, 3, 4)
    wanted = t.zeros(1, 3, 4, dtype=t.float64)
    wanted[0, 1, 3] = 1.0
    t.testing.assert_close(found.normalised, wanted)
    (best,) = found.largest(1)
    assert (best.place, best.value, best.effect) == ((0, 1, 3), pytest.approx(2.0), 1.0)
    noised = sweep(by_position=True, direction="noising")
    t.testing.assert_close(noised.normalised, 1 - wanted)
    assert noised.largest(1)[0].place == (0, 1, 3) and noised.base == 1.0
    # what it reads is carried by its values and by the stream of position 1; it looks there always
    t.testing.assert_close(sweep(over="v").normalised, t.tensor([[0, 1, 0]]).double())
    for over in ("q", "k", "pattern"):
        t.testing.assert_close(sweep(over=over).normalised, t.zeros(1, 3).double())
    stream = t.tensor([[0, 1, 0, 0]]).double()
    t.testing.assert_close(sweep(over="resid_pre").normalised, stream)
    t.testing.assert_close(sweep(over="attn_out").normalised, t.tensor([[0, 0, 0, 1]]).double())


def test_the_stream_carries_everything(make_model: Any, pair: Any) -> None:
    """Before layer 0 the prompts differ only where their tokens do; behind it, everywhere later."""
    model, (clean, corrupted) = make_model(), pair
    found = patch_activations(model, clean, corrupted, METRIC, over="resid_pre").normalised
    equal, differ = [0, 1, 3, 4, 6], [2, 5]

    assert float(found[0, equal].abs().max()) < 1e-12
    assert float(found[0, differ].abs().min()) > 1e-3
    assert float(found[1, [0, 1]].abs().max()) < 1e-12
    last = patch_activations(model, clean, corrupted, METRIC, over="resid_post").normalised
    assert float(last[1, 6]) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_how_many_share_a_pass_changes_nothing(make_model: Any, pair: Any, at_once: int) -> None:
    """Not the numbers; and no pass has more rows than the patches asked for and their source."""
    model, rows = make_model(), []
    usual = patch_activations(model, *pair, METRIC, over="z", by_position=True)
    with listen(model, "embed.out", lambda name, x: rows.append(len(x))):
        found = patch_activations(model, *pair, METRIC, over="z", by_position=True, at_once=at_once)

    assert found.numbers == pytest.approx(usual.numbers, rel=1e-12, abs=1e-12)
    assert max(rows) == 1 + min(at_once, 42) and sum(rows[1:]) == 42 + len(rows[1:])


def test_memory_is_bounded(make_model: Any, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass has no more logits, and no more tokens, than are allowed together."""
    model, seen = make_model(), []
    monkeypatch.setattr("pvml.patching.sweep._LOGITS_AT_ONCE", 29 * 5)
    with listen(model, "unembed.logits", lambda name, x: seen.append(x.shape)):
        patch_activations(model, *pair, METRIC, over="resid_pre")
        assert max(shape.numel() for shape in seen) <= 29 * (5 + 1)
        seen.clear()
        patch_activations(model, *pair, lambda logits: logits[0, -1, 3], over="resid_pre")
        assert {shape[0] for shape in seen} == {2}  # all positions' logits: one patch at a time
    monkeypatch.setattr("pvml.patching.sweep._TOKENS_AT_ONCE", 7 * 3)
    monkeypatch.setattr("pvml.patching.sweep._LOGITS_AT_ONCE", 1 << 24)
    with listen(model, "embed.out", lambda name, x: seen.append(x.shape)):
        patch_activations(model, *pair, METRIC, over="resid_pre")
    assert max(shape[0] for shape in seen if len(shape) == 3 and shape[2] == 13) == 4


def test_any_metric_and_several_prompts(make_model: Any, pair: Any) -> None:
    """A function of all prompts' logits; each prompt is patched from its own partner."""
    model, (clean, corrupted) = make_model(), pair
    cleans = t.cat([clean, (clean + 1) % 29, (clean + 2) % 29])
    others = t.cat([corrupted, (corrupted + 1) % 29, (corrupted + 2) % 29])

    def share_of_three(logits: Tensor) -> Tensor:
        return logits[:, 4].softmax(-1)[:, 3].mean()

    found = patch_activations(model, cleans, others, share_of_three, over="resid_mid", at_once=2)
    assert found.metric == "share_of_three" and found.n_prompts == 3
    index = (slice(None), 2)
    wanted = one_at_a_time(model, cleans, others, "blocks.1.resid_mid", index, share_of_three)
    assert float(found.values[1, 2]) == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    each = LogitDifference(answer=(3, 4, 5), wrong=(11, 12, 13), position=4)
    mean = patch_activations(model, cleans, others, each, over="resid_mid")
    alone = [
        patch_activations(
            model,
            cleans[[i]],
            others[[i]],
            LogitDifference(answer=3 + i, wrong=11 + i, position=4),
            over="resid_mid",
        )
        for i in range(3)
    ]
    t.testing.assert_close(mean.values, t.stack([one.values for one in alone]).mean(0))


def test_the_model_is_left_as_it_was(make_model: Any, pair: Any) -> None:
    """No listener stays, and no weight moves, whether the sweep ends well or not."""
    model, (clean, corrupted) = make_model(), pair
    before = model(clean)
    patch_activations(model, clean, corrupted, METRIC)
    calls: list[int] = []

    def breaks(logits: Tensor) -> float:
        calls.append(1)
        return float(logits.sum()) if len(calls) < 4 else float("nan")

    with pytest.raises(PvmlError, match="the metric is nan"):
        patch_activations(model, clean, corrupted, breaks)
    assert t.equal(model(clean), before)


def test_what_was_found_says_how_the_weights_were_processed(make_model: Any, pair: Any) -> None:
    """It comes from the model; and as probabilities are the same, so are normalised differences."""
    model = make_model()
    usual = patch_activations(model, *pair, METRIC)
    found = patch_activations(process(model).model, *pair, METRIC)

    assert usual.processing == () and found.processing[0] == "fold_layer_norm"
    # z of a model with b_V folded into b_O differs by a constant, which no patch moves
    t.testing.assert_close(found.values, usual.values, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"corrupted": t.zeros(1, 5, dtype=t.long)}, "prompt has 7 tokens and the corrupted one 5"),
        ({"corrupted": t.zeros(2, 7, dtype=t.long)}, r"each clean prompt needs a corrupted one"),
        ({"clean": t.zeros(1, 12, dtype=t.long)}, "12 tokens are more than this model's n_ctx"),
        ({"clean": t.zeros(7, dtype=t.long)}, r"tokens must have shape \(batch, posn\)"),
        ({"over": "neurons"}, "over must be heads or a tensor of a layer"),
        ({"over": "resid_pre", "by_position": True}, "patched by position in any case"),
        ({"over": "mask"}, "over must be heads"),
        ({"at_once": 0}, "at_once must be at least 1"),
        ({"metric": lambda logits: logits[:, 0]}, r"this one gave \(1, 29\)"),
        ({"metric": lambda logits: "high"}, "this one gave str"),
        ({"metric": lambda logits: 1.0}, "the metric is 1 for both prompts"),
        ({"metric": LogitDifference(answer=3, wrong=29)}, "token id 29 is outside"),
        ({"metric": LogitDifference(answer=3, wrong=1, position=7)}, "position 7 is not in"),
        ({"metric": LogitDifference(answer=(3, 4), wrong=1)}, "2 answers were given for 1 prompts"),
    ],
)
def test_bad_requests(make_model: Any, pair: Any, changes: dict[str, Any], complaint: str) -> None:
    """What cannot be patched is refused: what was given, and what there is."""
    given = {"clean": pair[0], "corrupted": pair[1], "metric": METRIC, **changes}
    with pytest.raises(PvmlError, match=complaint):
        patch_activations(make_model(), **given)


def test_prompts_must_differ(make_model: Any, pair: Any) -> None:
    """The same prompt twice leaves nothing to patch; nor does a model without layers."""
    with pytest.raises(PvmlError, match="prompt are the same"):
        patch_activations(make_model(), pair[0], pair[0].clone(), METRIC)
    with pytest.raises(PvmlError, match="no layers"):
        patch_activations(make_model(n_layers=0), *pair, METRIC)
    with pytest.raises(PvmlError, match="one token, 3"):
        LogitDifference(answer=3, wrong=3)
    with pytest.raises(
        PvmlError, match=r"a tensor of a layer \(resid_pre, .*z, .* it has no MLPs$"
    ):
        patch_activations(make_model(attn_only=True), *pair, METRIC, over="mlp_out")


def test_texts_are_prompts(make_model: Any) -> None:
    """Where the model has a tokenizer, which names tokens too; ids beyond it keep their number."""
    model = make_model(d_vocab=300, n_ctx=11)
    with pytest.raises(PvmlError, match="no tokenizer"):
        patch_activations(model, "the cat", "the mat", METRIC)
    model.tokenizer = Tokenizer.train(["the cat sat on the mat"] * 9, 277)
    cat = model.to_single_token(" cat")
    found = patch_activations(
        model, "the cat sat", "the mat sat", LogitDifference(answer=cat, wrong=299)
    )
    tokens = model.to_tokens(["the cat sat", "the mat sat"])
    same = patch_activations(model, tokens[:1], tokens[1:], LogitDifference(answer=cat, wrong=299))

    assert found == same and found.clean_tokens == ("<|endoftext|>", "the", " cat", " sat")
    assert found.metric.startswith("logit of ' cat' minus logit of token 299 at the last")
    with pytest.raises(PvmlError, match="prompt has 4 tokens and the corrupted one 3"):
        patch_activations(model, "the cat sat", "the cat", METRIC)


def test_a_shortformer_is_patched_where_its_positions_come_in(make_model: Any, pair: Any) -> None:
    """qk_input, which only that kind of model has, is a tensor like any other."""
    model = make_model(positions="shortformer")
    found = patch_activations(model, *pair, METRIC, over="qk_input")
    wanted = one_at_a_time(model, *pair, "blocks.1.attn.qk_input", (0, 5))

    assert float(found.values[1, 5]) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_parts_of_patches_are_refused(make_model: Any, pair: tuple[Tensor, Tensor]) -> None:
    """at_once counts patches: a half, a text or none at all is told before any pass."""
    plainly = inspect.unwrap(patch_activations)  # as outside the tests: no annotation is checked
    for at_once in (1.5, "2", 0):
        with pytest.raises(PvmlError, match="at_once must be at least 1 patch"):
            plainly(make_model(), *pair, METRIC, at_once=at_once)
