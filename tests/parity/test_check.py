"""The check passes right models and finds wrong ones, naming the tensor that is wrong first."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch as t
import torch.nn.functional as F
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules import attention, embedding, mlp, normalization, transformer
from pvml.modules.transformer import Transformer
from pvml.parity.check import check, compare, move_off_defaults, parameters_of, rounding_allowed
from pvml.trace.tap import listen

SIZES = {"d_model": 21, "n_heads": 3, "n_layers": 2, "n_ctx": 17, "d_vocab": 53, "d_mlp": 37}


def drawn(dtype: t.dtype = t.float64, seed: int = 0, **changes: Any) -> Transformer:
    model = Transformer(Config(**{**SIZES, **changes}), seed=seed)
    return move_off_defaults(model, seed).to(dtype)


@pytest.fixture
def ids() -> Tensor:
    return t.randint(53, (5, 11), generator=t.Generator().manual_seed(0))


def padding(ids: Tensor) -> Tensor:
    real = t.ones_like(ids)
    real[1, :3], real[2, -4:], real[3, 4:6] = 0, 0, 0
    return real


def test_relative_by_hand() -> None:
    """The largest difference, 0.5, over the reference's largest finite value, 4, is an eighth."""
    ours = {"x": np.array([1.0, -3.5, -np.inf])}
    (row,) = compare(ours, {"x": np.array([1.0, -4.0, -np.inf])}, 0.2)
    assert (row.max_abs_diff, row.relative, row.ok, row.strain) == (0.5, 0.125, True, 0.625)


@pytest.mark.parametrize(
    ("ours", "truth"),
    [
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0])),
        (np.array([1.0, 1.0]), np.array([-np.inf, 1.0])),
        (np.array([np.inf, 1.0]), np.array([-np.inf, 1.0])),
        (np.array([1e-30, 0.0]), np.array([0.0, 0.0])),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([True, False]), np.array([True, True])),
        (np.array([[1.0, 2.0]]), np.array([1.0, 2.0])),
    ],
    ids=["nan", "inf", "sign of inf", "zero", "whole numbers", "mask", "shape"],
)
def test_what_never_agrees(ours: np.ndarray, truth: np.ndarray) -> None:
    """NaN, another infinity, something for nothing, another id, mask or shape: never rounding."""
    assert not compare({"x": ours}, {"x": truth}, 1e-3)[0].ok


def test_a_tensor_on_one_side_only_is_wrong() -> None:
    """A tensor that either side lacks is a row that says so, and is not ok."""
    rows = compare({"a": np.ones(2)}, {"b": np.ones(3)}, 1.0)
    assert [(row.name, row.problem, row.ok) for row in rows] == [
        ("b", "not in the model", False),
        ("a", "not in the reference", False),
    ]


@pytest.mark.parametrize("dtype", [t.float64, t.float32, t.bfloat16, t.float16], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["", "padding"])
def test_right_models_pass_in_every_dtype(ids: Tensor, dtype: t.dtype, masked: bool) -> None:
    """Every named tensor of a right model agrees, with and without padding."""
    report = check(drawn(dtype), ids, padding(ids) if masked else None)
    assert report.ok, report.table(only_bad=True)
    assert report.first_bad is None and len(report.rows) == 66


@pytest.mark.parametrize(
    ("n_layers", "positions", "attn_only", "normalization", "tied"),
    list(
        product((0, 2), ("standard", "none", "shortformer"), (False, True), ("LN", "none"), (0, 1))
    ),
)
def test_every_variation_passes(
    ids: Tensor, n_layers: int, positions: str, attn_only: bool, normalization: str, tied: int
) -> None:
    """All that Config can vary agrees in float64 to 1e-12 and in float32 to rounding."""
    model = drawn(
        n_layers=n_layers,
        positions=positions,
        attn_only=attn_only,
        normalization=normalization,
        tie_embeddings=bool(tied),
    )
    for dtype in (t.float64, t.float32):
        report = check(model.to(dtype), ids, padding(ids))
        assert report.ok, report.summary()


def test_a_wide_deep_model_passes_in_float32() -> None:
    """The allowance grows with the rounding that the formulae themselves suffer."""
    model = drawn(t.float32, d_model=128, n_heads=4, n_layers=6, d_vocab=301, d_mlp=512)
    report = check(model, t.randint(301, (1, 17), generator=t.Generator().manual_seed(0)))
    assert report.ok, report.summary()
    assert max(row.allowed for row in report.rows) < 1e-4


def _erf(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    erf = SimpleNamespace(linear=F.linear, gelu=lambda x, approximate: F.gelu(x))
    patch.setattr(mlp, "F", erf)


def _eps(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    for module in model.modules():
        if isinstance(module, normalization.LayerNorm):
            module.cfg = replace(model.cfg, layer_norm_eps=1e-6)


def _norm_kernel(
    change: Callable[..., Tensor],
) -> Callable[[pytest.MonkeyPatch, Transformer], None]:
    def mutate(patch: pytest.MonkeyPatch, model: Transformer) -> None:
        patch.setattr(normalization, "F", SimpleNamespace(layer_norm=change))

    return mutate


def _other_eps(x: Tensor, shape: Any, w: Tensor, b: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, shape, w, b, 1e-6)


def _unbiased(x: Tensor, shape: Any, w: Tensor, b: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt() * w + b


def _kernel(**changes: Any) -> Callable[[pytest.MonkeyPatch, Transformer], None]:
    def mutate(patch: pytest.MonkeyPatch, model: Transformer) -> None:
        def kernel(*qkv: Tensor, **options: Any) -> Tensor:
            return F.scaled_dot_product_attention(*qkv, **{**options, **changes})

        changed = SimpleNamespace(linear=F.linear, scaled_dot_product_attention=kernel)
        patch.setattr(attention, "F", changed)

    return mutate


def _mask_off_by_one(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    def looser(n_q: int, n_k: int, real: object, device: t.device) -> Tensor:
        return t.ones(n_q, n_k, dtype=t.bool).triu(2)

    patch.setattr(attention, "cannot_attend", looser)


def _out_by(
    change: Callable[[Tensor], Tensor],
) -> Callable[[pytest.MonkeyPatch, Transformer], None]:
    right = attention.out_of_heads

    def mutate(patch: pytest.MonkeyPatch, model: Transformer) -> None:
        patch.setattr(attention, "out_of_heads", lambda z, W, b: right(z, change(W), b))

    return mutate


def _transposed_square(W_O: Tensor) -> Tensor:
    return W_O.reshape(21, 21).T.reshape(W_O.shape)


def _bias_per_head(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    layer = model.blocks[0].attn
    layer.register_forward_hook(lambda module, args, out: out + 2 * module.b_O)


def _no_residual(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    model.blocks[0].mlp.register_forward_hook(lambda module, args, out: out - args[0])


def _ln_final_left_out(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    model.ln_final.register_forward_hook(lambda module, args, out: args[0])


def _late_positions(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    right = embedding.PosEmbed.forward
    patch.setattr(
        embedding.PosEmbed, "forward", lambda self, ids, start, places: right(self, ids, 1, places)
    )


def _positions_count_padding(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    patch.setattr(transformer, "places", lambda real, n: None)


MUTATIONS = {
    "erf GELU": (_erf, "blocks.0.mlp.post"),
    "eps 1e-6": (_eps, "blocks.0.ln1.residual_std"),
    "eps 1e-6 in the kernel only": (_norm_kernel(_other_eps), "blocks.0.ln1.out"),
    "unbiased variance": (_norm_kernel(_unbiased), "blocks.0.ln1.out"),
    "unscaled scores": (_kernel(scale=1.0), "blocks.0.attn.z"),
    "no causal mask": (_kernel(is_causal=False), "blocks.0.attn.z"),
    "mask off by one": (_mask_off_by_one, "blocks.0.attn.mask"),
    "transposed W_O": (
        _out_by(_transposed_square),
        "blocks.0.attn.attn_out",
    ),
    "heads in another order": (
        _out_by(lambda W: W.roll(1, 0)),
        "blocks.0.attn.attn_out",
    ),
    "b_O once a head": (_bias_per_head, "blocks.0.resid_mid"),
    "no residual": (_no_residual, "blocks.0.resid_post"),
    "no ln_final": (_ln_final_left_out, "unembed.normalized_resid_final"),
    "positions from 1": (_late_positions, "pos_embed.sliced"),
    "positions count padding": (_positions_count_padding, "pos_embed.out"),
}


@pytest.mark.parametrize("dtype", [t.float64, t.float32], ids=str)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_model_fails_where_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch, ids: Tensor, mutation: str, dtype: t.dtype
) -> None:
    """Each mistake that shapes and plausibility miss fails, in both dtypes, at its own tensor."""
    mutate, first_wrong = MUTATIONS[mutation]
    model = drawn(dtype)
    real = padding(ids) if "padding" in mutation else None
    assert check(model, ids, real).ok
    mutate(monkeypatch, model)
    report = check(model, ids, real)
    assert not report.ok
    assert report.first_bad is not None and report.first_bad.name == first_wrong
    assert first_wrong in report.summary()


@pytest.mark.parametrize("dtype", [t.float64, t.float32], ids=str)
def test_an_edit_is_seen(ids: Tensor, dtype: t.dtype) -> None:
    """A single number of a single tensor, changed in its fifth digit, fails from there on."""
    model = drawn(dtype)

    def nudge(name: str, x: Tensor) -> Tensor:
        x = x.clone()
        x.view(-1)[x.abs().argmax()] *= 1 + 3e-5
        return x

    with listen(model, "blocks.1.attn.z", nudge, edits=True):
        report = check(model, ids)
    assert report.first_bad == report["blocks.1.attn.z"]
    assert not report["unembed.logits"].ok and report["blocks.1.attn.attn_pattern"].ok


def test_parameters_that_do_not_fit_are_named(ids: Tensor) -> None:
    """A parameter that is missing, misshapen or never read is a failure that names it."""
    model = drawn()
    model.blocks[0].attn.b_extra = t.nn.Parameter(t.zeros(1))
    report = check(model, ids)
    assert report.unexpected == ("blocks.0.attn.b_extra",) and not report.ok
    assert "b_extra" in report.summary()
    model.embed.W_E = t.nn.Parameter(model.embed.W_E[:-1])
    del model.blocks[1].mlp.b_out
    report = check(model, ids)
    assert report.missing == ("embed.W_E", "blocks.1.mlp.b_out") and not report.ok
    assert report.worst is None


def test_the_allowance_by_hand() -> None:
    """16 times the rounding seen in float32, scaled to the dtype, and at least 16 of its units."""
    truth = {"rough": np.array([1.0]), "smooth": np.array([1.0])}
    rounded = {"rough": np.array([1 + 1e-6]), "smooth": np.array([1.0])}
    narrow = rounding_allowed(truth, rounded, t.float32)
    assert narrow["rough"] == pytest.approx(16e-6) and narrow["smooth"] == 2**-19
    wider = rounding_allowed(truth, rounded, t.bfloat16)
    assert wider["rough"] == pytest.approx(16e-6 * 2**16) and wider["smooth"] == 2**-3


def test_the_report_as_text(ids: Tensor) -> None:
    """The table has a line for every tensor, with shape, differences and verdict."""
    report = check(drawn(), ids)
    head, *lines = report.table().splitlines()
    assert head.split() == ["tensor", "shape", "max", "abs", "diff", "relative", "allowed"]
    assert [line.split()[0] for line in lines] == [row.name for row in report.rows]
    assert all(line.endswith("ok") for line in lines)
    assert report.table(only_bad=True).splitlines() == [
        "tensor  shape  max abs diff  relative   allowed"
    ]
    assert report.summary().startswith("66 of 66 named tensors agree")


def test_checking_leaves_no_trace(ids: Tensor) -> None:
    """A check changes neither parameters, listeners, mode nor the logits' bits."""
    model = drawn(t.float32)
    before, logits = parameters_of(model), model(ids)
    copies = {name: x.copy() for name, x in before.items()}
    check(model, ids)
    assert all(np.array_equal(x, copies[name]) for name, x in parameters_of(model).items())
    assert t.equal(model(ids), logits) and model(ids).requires_grad


@pytest.mark.parametrize("tied", [False, True])
def test_moving_off_defaults_moves_everything(tied: bool) -> None:
    """No parameter stays where it was, frozen b_U and LayerNorm included; the seed decides."""
    cfg = Config(**SIZES, tie_embeddings=tied)
    fresh = Transformer(cfg, seed=0).state_dict()
    state = t.random.get_rng_state()
    once, again, other = (
        move_off_defaults(Transformer(cfg, seed=0), seed).state_dict() for seed in (1, 1, 2)
    )
    assert t.equal(state, t.random.get_rng_state())
    for name, x in fresh.items():
        assert (once[name] != x).all(), name
        assert t.equal(once[name], again[name])
        assert not t.equal(once[name], other[name])


def test_moved_models_use_their_nonlinearities(ids: Tensor) -> None:
    """Attention is far from uniform and gelu's bend is reached, or wrong formulae would pass."""
    _, cache = drawn().run_with_cache(ids)
    pattern = cache["blocks.0.attn.attn_pattern"][..., -1, :]
    assert (pattern.amax(-1) / pattern.amin(-1)).median() > 5
    assert cache["blocks.0.mlp.pre"].abs().max() > 2


def test_only_a_module_with_a_config_can_be_moved() -> None:
    """A module that says nothing of its sizes is refused by name."""
    with pytest.raises(PvmlError, match="Linear"):
        move_off_defaults(t.nn.Linear(2, 3), 0)


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        (t.full((1, 3), 29), "token id 29"),
        (t.zeros(1, 12, dtype=t.long), "n_ctx of 11"),
        (t.zeros(0, 3, dtype=t.long), "needs tokens"),
        (t.zeros(1, 0, dtype=t.long), "needs tokens"),
    ],
)
def test_tokens_that_prove_nothing_are_refused(make_model, tokens, complaint):
    """Ids outside the vocabulary, too long a text and none at all are errors, never a pass."""
    with pytest.raises(PvmlError, match=complaint):
        check(make_model(), tokens)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", [t.float64, t.float32], ids=str)
def test_a_model_of_nan_fails(ids: Tensor, dtype: t.dtype) -> None:
    """Where model and reference are both NaN nothing is proved: the check fails there."""
    model = drawn(dtype)
    with t.no_grad():
        model.blocks[0].attn.b_Q.fill_(float("nan"))
    report = check(model, ids)

    assert not report.ok
    assert report.first_bad is not None and report.first_bad.name == "blocks.0.attn.q"


@pytest.mark.filterwarnings("ignore:invalid value")
def test_weights_that_are_no_numbers_are_named(ids: Tensor) -> None:
    """The first three parameters that hold NaN or infinity are named, the rest counted."""
    model = drawn()
    with t.no_grad():
        model.embed.W_E[0, 3] = model.unembed.W_U[1, 2] = float("nan")
        model.blocks[0].mlp.W_in[0, 3] = float("inf")
        model.blocks[1].mlp.W_in[2, 0] = float("-inf")
    report = check(model, ids)
    assert not report.ok
    assert report.summary() == (
        "its weights hold NaN or infinity: embed.W_E, blocks.0.mlp.W_in, blocks.1.mlp.W_in and 1 "
        "more"
    )
