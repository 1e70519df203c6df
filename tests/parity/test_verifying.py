"""Verification: right models pass both ways and backwards, and what proves nothing is refused."""

from typing import Any

import numpy as np
import pytest
import torch as t
from torch import Tensor

from pvml.errors import PvmlError
from pvml.modules.normalization import LayerNorm
from pvml.parity.check import compare, parameters_of
from pvml.parity.passes import UNWATCHED
from pvml.parity.references import gradient_scales, reference_for
from pvml.parity.rounding_sizes import sizes_for_float64, sizes_of_terms
from pvml.parity.verification import GRADIENTS, TENSORS, WHOLE
from pvml.parity.verification_text import verdict
from pvml.parity.verifying import verify
from pvml.trace.tap import places


@pytest.mark.parametrize("against", ["float64", "hf"])
@pytest.mark.parametrize("tied", [False, True], ids=["own W_U", "tied"])
def test_a_right_model_agrees_both_ways_and_backwards(
    draw: Any, by: Any, ids: Tensor, against: str, tied: bool
) -> None:
    """Every name of the table and every gradient is within 1e-12, module by module and whole."""
    model = draw(b_U=against == "float64", tie_embeddings=tied)
    found = verify(model, ids, by(against, model), backward=True)
    assert found.ok, verdict(found)
    everywhere = [place.name for place in places(model)]
    tensors, gradients = found[TENSORS], found[GRADIENTS]
    assert sorted(row.name for row in tensors.whole) == sorted(everywhere)
    assert [row.name for row in tensors.modules] == [row.name for row in tensors.whole]
    trained = {name for name, x in model.named_parameters() if x.requires_grad}
    for rows in (gradients.whole, gradients.modules):
        assert trained <= {row.name for row in rows}
    assert max(row.relative for row in (*tensors.whole, *gradients.whole)) < 1e-12
    assert max(row.relative for row in gradients.modules) > 0, "was it compared with itself?"


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_only": True, "positions": "shortformer"},
        {"positions": "none", "tie_embeddings": True},
        {"normalization": "none", "d_head": 5},
        {"n_layers": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [t.float64, t.float32], ids=str)
def test_every_variation_agrees_backwards(
    draw: Any, by: Any, ids: Tensor, changes: dict[str, Any], dtype: t.dtype
) -> None:
    """What no GPT-2 can be agrees with the formulae, their gradients derived by hand included."""
    model = draw(dtype, **changes)
    found = verify(model, ids, by("float64", model), backward=True)
    assert found.ok, verdict(found)
    compared = {row.name for row in found[GRADIENTS].whole}
    assert {name for name, _ in model.named_parameters()} <= compared


@pytest.mark.parametrize("dtype", [t.float32, t.bfloat16], ids=str)
@pytest.mark.parametrize("against", ["float64", "hf"])
def test_narrow_types_are_judged_by_the_references_own_rounding(
    draw: Any, by: Any, ids: Tensor, dtype: t.dtype, against: str
) -> None:
    """A right model passes in every type; the allowance is 16 times the reference's error there."""
    model = draw(dtype, b_U=False)
    found = verify(model, ids, by(against, model), backward=True)
    assert found.ok, verdict(found)
    tensors, unit = found[TENSORS], t.finfo(dtype).eps
    row = next(row for row in tensors.whole if row.name == "blocks.1.mlp.mlp_out")
    assert row.allowed == 16 * max(tensors.rounding[row.name], unit)
    assert row.ulps == pytest.approx(row.relative / unit, rel=1)


def test_transformer_lens_agrees(draw: Any, ids: Tensor) -> None:
    """Its hooks hold the model's tensors; it is not asked for gradients."""
    pytest.importorskip("transformer_lens", reason="needs the extra lens", exc_type=ImportError)
    model = draw(b_U=False)
    reference = reference_for(model, "transformer_lens")
    found = verify(model, ids, reference)
    assert found.ok, verdict(found)
    assert "blocks.0.attn.z" in found.reached and "blocks.0.attn.mask" not in found.reached
    with pytest.raises(PvmlError, match="--against hf"):
        verify(model, ids, reference, backward=True)


def test_a_sum_that_cancels_is_judged_by_its_terms(draw: Any, by: Any, ids: Tensor) -> None:
    """b_K's gradient is rounding alone, on both sides: it is measured by what it sums."""
    model = draw()
    reference = by("float64", model)
    known = reference.gradients(ids)
    scale = gradient_scales(known)["blocks.0.attn.b_K"]
    assert np.abs(known["blocks.0.attn.b_K"]).max() < 1e-12 * scale
    assert scale == np.abs(known["blocks.0.attn.k"]).sum((0, 1)).max()
    rows = verify(model, ids, reference, backward=True)[GRADIENTS].whole
    row = next(row for row in rows if row.name == "blocks.0.attn.b_K")
    assert row.ok and row.relative == row.max_abs_diff / scale


def test_a_verification_leaves_no_trace(draw: Any, by: Any, ids: Tensor) -> None:
    """Parameters, their grads and flags, listeners and logits are afterwards what they were."""
    model = draw(t.float32)
    model.embed.W_E.grad = t.ones_like(model.embed.W_E)
    before, logits = parameters_of(model), model(ids)
    copies = {name: x.copy() for name, x in before.items()}
    assert verify(model, ids, by("float64", model), backward=True).ok
    assert all(np.array_equal(x, copies[name]) for name, x in parameters_of(model).items())
    assert model.embed.W_E.grad.eq(1).all() and model.unembed.W_U.grad is None
    assert not model.unembed.b_U.requires_grad
    assert not any(place.tap.listeners for place in places(model))
    assert t.equal(model(ids), logits)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attn_only": True}, "no MLPs"),
        ({"positions": "shortformer"}, "shortformer"),
        ({"normalization": "none"}, "no LayerNorm"),
        ({"d_head": 5}, "3 heads of 5"),
        ({}, "b_U"),
    ],
)
def test_what_no_gpt2_can_be_is_refused_with_the_reason(
    draw: Any, changes: dict[str, Any], reason: str
) -> None:
    """Against Hugging Face: an error that names the reason, and the reference that can."""
    with pytest.raises(PvmlError, match=f"{reason}.*--against float64"):
        reference_for(draw(**changes), "hf")


def test_an_unknown_reference_is_refused(draw: Any) -> None:
    """The three that there are are named."""
    with pytest.raises(PvmlError, match="hf, transformer_lens, float64"):
        reference_for(draw(), "numpy")


@pytest.mark.parametrize(
    ("tokens", "backward", "complaint"),
    [
        (t.full((1, 3), 53), False, "token id 53"),
        (t.zeros(1, 18, dtype=t.long), False, "n_ctx of 17"),
        (t.zeros(0, 3, dtype=t.long), False, "compare tensors takes rows of at least 1 token"),
        (t.zeros(1, 0, dtype=t.long), True, "at least 2 tokens"),
        (t.zeros(4, 1, dtype=t.long), True, r"gradients \(--backward\) takes rows of at least 2"),
    ],
)
def test_tokens_that_prove_nothing_are_refused(
    draw: Any, by: Any, tokens: Tensor, backward: bool, complaint: str
) -> None:
    """Ids outside the vocabulary, too many, none, and no next token: errors, never a pass."""
    model = draw()
    with pytest.raises(PvmlError, match=complaint):
        verify(model, tokens, by("float64", model), backward=backward)


def test_a_gradient_scaled_at_the_logits_is_told_so(draw: Any, by: Any, ids: Tensor) -> None:
    """No module stands before them, so that nothing can be said to be cut off there."""
    model = draw()
    model.unembed.register_full_backward_pre_hook(lambda _, grads: tuple(1.01 * g for g in grads))
    finding = verify(model, ids, by("float64", model), backward=True).finding
    assert finding is not None and finding.row.name == "unembed.logits"
    assert finding.causes == ("it is 1.01 times the reference's",)


def test_parameters_of_several_types_are_told(draw: Any, by: Any, ids: Tensor) -> None:
    """A model that could not even run is refused with the parameter that is of another type."""
    model = draw()
    reference = by("float64", model)
    model.blocks[0].attn.float()
    with pytest.raises(PvmlError, match=r"blocks\.0\.attn\.\w+ is torch\.float32, and others"):
        verify(model, ids, reference)


def test_parameters_that_do_not_fit_are_named(draw: Any, by: Any, ids: Tensor) -> None:
    """A parameter that is missing or never read is a failure that names it."""
    model = draw()
    reference = by("float64", model)
    model.blocks[0].attn.b_extra = t.nn.Parameter(t.zeros(1, dtype=t.float64))
    found = verify(model, ids, reference)
    assert not found.ok and found.finding is None and found.unexpected == ("blocks.0.attn.b_extra",)
    del model.blocks[1].mlp.b_out
    found = verify(model, ids, reference)
    assert not found.ok and found.missing == ("blocks.1.mlp.b_out",)
    assert "b_out" in verdict(found) and "b_extra" in verdict(found)


def test_ulps_by_hand() -> None:
    """2^-50 off a largest value of 4 is one unit in the last place of a float64 there."""
    (row,) = compare({"x": np.array([4 + 2.0**-50, 1.0])}, {"x": np.array([4.0, 1.0])}, 1.0)
    assert row.ulps == 1
    (row,) = compare({"x": np.array([4.0])}, {"x": np.array([4.0 + 2.0**-6])}, 1.0, unit=2.0**-8)
    assert row.ulps == 1
    (row,) = compare({"x": np.array([1.0])}, {"x": np.array([0.0])}, 1.0)
    assert row.ulps == np.inf


@pytest.mark.parametrize("backward", [False, True])
def test_weights_that_are_no_numbers_are_named(
    draw: Any, by: Any, ids: Tensor, backward: bool
) -> None:
    """NaN and infinity in a parameter are the verdict, not a mistake of the model's formulae."""
    model = draw()
    with t.no_grad():
        model.blocks[0].mlp.W_in[1, 2] = float("nan")
        model.blocks[1].attn.b_O[0] = float("inf")
    found = verify(model, ids, by("float64", model), backward=backward)
    assert not found.ok and not found.sections
    assert verdict(found) == (
        "its weights hold NaN or infinity: blocks.0.mlp.W_in, blocks.1.attn.b_O"
    )


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_what_overflows_is_wrong_and_no_crash(draw: Any, by: Any, ids: Tensor) -> None:
    """Finite weights whose products are not: nothing is proved, gradients included."""
    model = draw()
    with t.no_grad():
        model.blocks[0].attn.W_Q.fill_(1e200)
        model.blocks[0].attn.W_K.fill_(1e200)
    assert not verify(model, ids, by("float64", model), backward=True).ok


def _scaled(model: Any, changes: dict[str, float]) -> Any:
    with t.no_grad():
        for name, x in model.named_parameters():
            x.mul_(next((by for ending, by in changes.items() if name.endswith(ending)), 1.0))
    return model


@pytest.mark.parametrize(
    ("seed", "shape", "changes"),
    [
        (0, {"positions": "none"}, {}),
        (0, {}, {"W_E": 0.0, "W_pos": 0.0}),
        (0, {}, {"W_Q": 100.0, "W_K": 100.0}),
        (3, {}, {"W_Q": 100.0, "W_K": 100.0}),
        (0, {}, {"ln1.w": 1000.0}),
    ],
    ids=["one token throughout", "no stream", "sharp", "sharp, near a tie", "large queries"],
)
def test_what_cancels_or_is_sharp_is_rounding(
    draw: Any, by: Any, seed: int, shape: dict[str, Any], changes: dict[str, float]
) -> None:
    """Indifferent attention has gradients of 0, sharp attention many units of rounding: right."""
    model = _scaled(draw(seed=seed, d_model=12, d_mlp=48, n_ctx=80, d_vocab=29, **shape), changes)
    tokens = t.randint(29, (2, 70), generator=t.Generator().manual_seed(0))
    if shape:
        tokens = t.full((1, 70), 5)
    found = verify(model, tokens, by("float64", model), backward=True)
    assert found.ok, verdict(found)


def test_a_bias_of_one_number_is_judged_by_what_it_sums(draw: Any, by: Any) -> None:
    """With d_mlp 1, b_in's gradient is one number, a sum that may cancel: float32 is right."""
    model = draw(t.float32, d_model=12, d_mlp=1, n_ctx=80, d_vocab=29, layer_norm_eps=0.0)
    tokens = t.randint(29, (2, 70), generator=t.Generator().manual_seed(0))
    found = verify(model, tokens, by("float64", model), backward=True)
    assert found.ok, verdict(found)


@pytest.mark.parametrize(
    ("name", "off"),
    [("blocks.0.attn.W_V", 1e-5), ("blocks.1.mlp.W_in", 1e-5), ("embed.W_E", 1e-5)],
)
def test_a_mistake_among_sharp_attention_is_still_one(
    draw: Any, by: Any, ids: Tensor, name: str, off: float
) -> None:
    """A little too much of a gradient is no rounding, however sharp attention is."""
    model = _scaled(draw(), {"W_Q": 100.0, "W_K": 100.0})
    model.get_parameter(name).register_hook(lambda gradient: gradient * (1 + off))
    found = verify(model, ids, by("float64", model), backward=True)
    assert not found.ok and found.finding is not None and found.finding.row.name == name


def test_sizes_of_terms_by_hand() -> None:
    """One query of two equal keys: the shares are 1/2, and each term of ds is as large as 1."""
    path = "blocks.0.attn"
    tensors = {
        f"{path}.attn_pattern": np.array([[0.0, 0.0], [0.5, 0.5]]).reshape(1, 1, 2, 2),
        f"{path}.attn_scores": np.zeros((1, 1, 2, 2)),
        f"{path}.q": np.full((1, 2, 1, 1), -3.0),
        f"{path}.k": np.full((1, 2, 1, 1), 2.0),
        f"{path}.v": np.array([1.0, -1.0]).reshape(1, 2, 1, 1),
        f"{path}.normalized_resid_pre": np.full((1, 2, 1), 5.0),
    }
    gradients = {
        f"{path}.z": np.ones((1, 2, 1, 1)),
        f"{path}.k": np.array([4.0, -4.0]).reshape(1, 2, 1, 1),
        f"{path}.b_K": np.zeros((1, 1)),
    }
    sizes = sizes_of_terms(tensors, gradients)
    # |dA| is 1 and its mean 1, so a term of ds is 1/2 (1 + 1) = 1; dq sums two of them times k
    assert sizes[f"{path}.q"] == 2 * 1 * 2 and sizes[f"{path}.k"] == 1 * 3
    # and b_K the two keys' terms of 3, or the two gradients of 4, whichever is more
    assert sizes[f"{path}.b_K"] == 8


def test_sizes_for_float64_by_hand() -> None:
    """1e-3 in float32 allows 256 x 2^-29 x 1e-3 in float64; 1e-6 changes nothing."""
    truth = {"sharp": np.array([-4.0, 1.0]), "plain": np.array([2.0]), "none": np.array([1.0])}
    rounding = {"sharp": 1e-3, "plain": 1e-6, "none": np.inf}
    sizes = sizes_for_float64(truth, rounding, 1e-12, {"none": 3.0})
    assert sizes["sharp"] * 1e-12 == pytest.approx(256 * 2.0**-29 * 1e-3 * 4)
    assert sizes["plain"] < 2 and sizes["none"] == 3


@pytest.mark.parametrize("backward", [False, True])
def test_the_way_that_nobody_looks_at_is_verified(
    draw: Any, by: Any, ids: Tensor, monkeypatch: pytest.MonkeyPatch, backward: bool
) -> None:
    """Right while something listens; else a LayerNorm's result is not, or its gradients are not."""
    norm = LayerNorm.forward

    def otherwise(self: LayerNorm, x: Tensor) -> Tensor:
        out = norm(self, x)
        if self.tap.listeners:
            return out
        return (out + out.detach()) / 2 if backward else out * 1.5

    monkeypatch.setattr(LayerNorm, "forward", otherwise)
    model = draw()
    found = verify(model, ids, by("float64", model), backward=backward)
    assert not found.ok and found.finding is not None
    named = [*found[TENSORS].modules, *found[TENSORS].whole, found[TENSORS].returned[0]]
    assert all(row.ok for row in named)
    if backward:
        assert found.finding.section == GRADIENTS and found.finding.way == WHOLE
    else:
        assert found.finding.row.name == UNWATCHED
        assert "likely cause: a pass that something listens to is right" in verdict(found)


def test_a_pass_that_cannot_be_gone_back_through_is_told(draw: Any, by: Any, ids: Tensor) -> None:
    """Autograd's own complaint, as an error of ours."""
    model = draw()

    def touches(module: Any, args: Any, out: Tensor) -> None:
        args[0].detach().mul_(1)  # what the product before has kept for its way back

    model.unembed.register_forward_hook(touches)
    with pytest.raises(PvmlError, match="cannot be gone back through: one of the variables needed"):
        verify(model, ids, by("float64", model), backward=True)
