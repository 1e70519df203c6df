"""What is wrong is found where it is, and told by name: mistakes, misread weights, wrong sums."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch as t
import torch.nn.functional as F
from torch import Tensor

from pvml.config import Config
from pvml.modules import attention, embedding, mlp, normalization, product
from pvml.modules.transformer import Transformer
from pvml.parity.passes import RETURNED
from pvml.parity.references import HuggingFace, Reference
from pvml.parity.verification import GRADIENTS, MODULES, PARAMETERS, TENSORS, WHOLE
from pvml.parity.verification_text import table, verdict
from pvml.parity.verifying import verify
from pvml.reference.names import from_hugging_face
from pvml.trace.tap import listen

SIZES = {"d_model": 21, "n_heads": 3, "n_layers": 2, "n_ctx": 17, "d_vocab": 53, "d_mlp": 37}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A random GPT2LMHeadModel whose two tables are not tied."""
    huggingface = pytest.importorskip(
        "pvml.reference.huggingface", reason="needs the extra hub", exc_type=ImportError
    )
    model = huggingface.tiny_gpt2(seed=0, **SIZES)
    model.lm_head.weight = t.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    return model


def _erf(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mlp, "F", SimpleNamespace(gelu=lambda x, approximate: F.gelu(x)))


def _norm(kernel: Callable[..., Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(normalization, "F", SimpleNamespace(layer_norm=kernel))


def _eps(x: Tensor, shape: Any, w: Tensor, b: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, shape, w, b, 1e-6)


def _unbiased(x: Tensor, shape: Any, w: Tensor, b: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt() * w + b


def _unscaled(patch: pytest.MonkeyPatch) -> None:
    def kernel(*qkv: Tensor, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(*qkv, **options, scale=1.0)

    patch.setattr(attention, "F", SimpleNamespace(scaled_dot_product_attention=kernel))


def _mask_off_by_one(patch: pytest.MonkeyPatch) -> None:
    def looser(n_q: int, n_k: int, real: object, device: t.device) -> Tensor:
        return t.ones(n_q, n_k, dtype=t.bool).triu(2)

    patch.setattr(attention, "cannot_attend", looser)


def _no_biases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(product, "F", SimpleNamespace(linear=lambda x, W, b: F.linear(x, W)))


def _W_O(change: Callable[[Tensor], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    right = attention.out_of_heads
    return lambda patch: patch.setattr(
        attention, "out_of_heads", lambda z, W, b: right(z, change(W), b)
    )


def _late_positions(patch: pytest.MonkeyPatch) -> None:
    right = embedding.PosEmbed.forward
    patch.setattr(
        embedding.PosEmbed, "forward", lambda self, ids, start, places: right(self, ids, 1, places)
    )


def _tied(model: Transformer) -> None:
    model.unembed.W_U = t.nn.Parameter(model.embed.W_E.detach().T.clone())


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "a transposed W_O": (
        _W_O(lambda W: W.reshape(21, 21).T.reshape(W.shape)),
        "blocks.0.attn.attn_out",
        "transposed",
    ),
    "erf GELU": (_erf, "blocks.0.mlp.post", "erf"),
    "eps 1e-6": (_norm(_eps), "blocks.0.ln1.out", "eps is 1e-06"),
    "unscaled scores": (_unscaled, "blocks.0.attn.z", "not divided by sqrt(d_head)"),
    "mask off by one": (_mask_off_by_one, "blocks.0.attn.mask", "also reads the next one"),
    "biases dropped": (_no_biases, "blocks.0.attn.q", "b_Q, b_K, b_V and b_O are left out"),
    "heads of W_O permuted": (_W_O(lambda W: W[[2, 0, 1]]), "blocks.0.attn.attn_out", "2, 0, 1"),
    "untied read as tied": (lambda patch: None, "unembed.logits", "W_U is W_E transposed"),
    "LayerNorm with N-1": (_norm(_unbiased), "blocks.0.ln1.out", "N - 1"),
    "positions shifted": (_late_positions, "pos_embed.sliced", "counted from 1"),
}


@pytest.mark.parametrize(
    ("against", "dtype"),
    [("float64", t.float32), ("hf", t.float64)],
    ids=["float32", "hf"],
)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_ten_mistakes_are_told_by_place_and_name(
    draw: Any,
    by: Any,
    monkeypatch: pytest.MonkeyPatch,
    ids: Tensor,
    mutation: str,
    against: str,
    dtype: t.dtype,
) -> None:
    """Each is caught in its module; its first wrong tensor and its cause are named."""
    mutate, first_wrong, cause = MUTATIONS[mutation]
    model = draw(dtype, b_U=False, n_layers=1)
    reference = by(against, model)
    mutate(monkeypatch)
    if "tied" in mutation:
        _tied(model)
    found = verify(model, ids, reference)
    finding = found.finding
    assert not found.ok and finding is not None
    assert (finding.row.name, finding.way, finding.section) == (first_wrong, MODULES, TENSORS)
    assert not finding.is_rounding and cause in finding.causes[0]
    # modules of other kinds are right on the reference's input
    bad = {row.name for row in found[TENSORS].modules if not row.ok}
    assert not any("resid_" in name for name in bad)
    told = verdict(found)
    assert f"first wrong: {first_wrong}" in told and f"likely cause: {finding.causes[0]}" in told


def read_from(theirs: Any, **changes: Callable[[Tensor], Tensor]) -> Any:
    """Our model out of their state dict, some of it changed on the way; and the reference."""
    cfg = Config(**SIZES)
    state = dict(theirs.state_dict())
    for name, change in changes.items():
        key = f"transformer.{name.replace('__', '.')}" if name != "lm_head" else "lm_head.weight"
        state[key] = change(state[key].clone())
    model = Transformer(cfg).double()
    model.load_state_dict(from_hugging_face(state, cfg, tied=False))
    return model, HuggingFace(theirs, cfg, own_weights=True)


def test_a_model_read_rightly_agrees_with_the_one_it_was_read_from(
    theirs: Any, ids: Tensor
) -> None:
    """All parameters are equal, and all tensors and gradients agree."""
    found = verify(*_with_tokens(read_from(theirs), ids), backward=True)
    assert found.ok, verdict(found)
    assert all(row.max_abs_diff == 0 for row in found[PARAMETERS].whole)


def _with_tokens(pair: tuple[Any, Reference], ids: Tensor) -> tuple[Any, Tensor, Reference]:
    model, reference = pair
    return model, ids, reference


def _swap_heads(x: Tensor) -> Tensor:
    return x.view(3, 7, 21)[[1, 0, 2]].reshape(21, 21)


@pytest.mark.parametrize(
    ("changes", "parameter", "cause"),
    [
        ({"h__1__attn__c_proj__weight": lambda x: x.T}, "blocks.1.attn.W_O", "the wrong way round"),
        ({"h__0__attn__c_proj__weight": lambda x: x.T}, "blocks.0.attn.W_O", "the wrong way round"),
        ({"h__0__attn__c_proj__weight": _swap_heads}, "blocks.0.attn.W_O", "1, 0, 2"),
        ({"h__1__mlp__c_fc__bias": lambda x: 0 * x}, "blocks.1.mlp.b_in", "was not read"),
        ({"lm_head": lambda x: x.flip(0)}, "unembed.W_U", "untied as tied"),
        ({"h__0__ln_1__weight": lambda x: x * 1}, None, ""),
    ],
    ids=["W_O of 1", "W_O of 0", "heads", "bias", "tied", "nothing"],
)
def test_a_parameter_that_was_read_wrongly_is_named_first(
    theirs: Any, ids: Tensor, changes: Any, parameter: str | None, cause: str
) -> None:
    """Case 6 and its kind: shapes that fit hide a wrong reading; the parameter itself is named."""
    found = verify(*_with_tokens(read_from(theirs, **changes), ids))
    finding = found.finding
    if parameter is None:
        assert finding is None
        return
    assert finding is not None and finding.section == PARAMETERS
    assert finding.row.name == parameter and cause in finding.causes[0]
    # what it does shows in the tensors, too, in its own module
    module = parameter.rpartition(".")[0]
    bad = [row.name for row in found[TENSORS].modules if not row.ok]
    assert bad and all(name.startswith(module) for name in bad)


def test_weights_cut_into_other_heads_are_told(theirs: Any, ids: Tensor) -> None:
    """Case 13: with the wrong n_heads every total fits; q has another shape, and that is told."""
    cfg = Config(**{**SIZES, "n_heads": 7})
    model = Transformer(cfg).double()
    model.load_state_dict(from_hugging_face(theirs.state_dict(), cfg, tied=False))
    found = verify(model, ids, HuggingFace(theirs, Config(**SIZES), own_weights=False))
    finding = found.finding
    assert finding is not None and finding.row.name == "blocks.0.attn.q"
    assert "7 heads of 3" in finding.causes[0] and "3 of 7" in finding.causes[0]


@pytest.mark.parametrize(
    ("path", "change", "first_wrong", "cause"),
    [
        (
            "blocks.0.attn",
            lambda module, args, out: out + 2 * module.b_O,
            "blocks.0.resid_mid",
            "2 x blocks.0.attn.b_O",
        ),
        (
            "blocks.0.mlp",
            lambda module, args, out: out - args[0],
            "blocks.0.resid_post",
            "blocks.0.mlp.mlp_out - blocks.0.ln2.out + blocks.0.resid_mid",
        ),
        (
            "ln_final",
            lambda module, args, out: args[0],
            "unembed.normalized_resid_final",
            "it is blocks.1.resid_post, and should be ln_final.out",
        ),
        (
            "pos_embed",
            lambda module, args, out: 0 * out,
            "blocks.0.resid_pre",
            "it is embed.out, and should be pos_embed.out + embed.out",
        ),
    ],
    ids=["b_O once a head", "no residual", "no ln_final", "no positions"],
)
def test_a_wrong_sum_between_modules_is_taken_apart(
    draw: Any, by: Any, ids: Tensor, path: str, change: Any, first_wrong: str, cause: str
) -> None:
    """What lies between modules is told as a sum of what passed before it."""
    model = draw()
    model.get_submodule(path).register_forward_hook(change)
    finding = verify(model, ids, by("float64", model)).finding
    assert finding is not None and finding.row.name == first_wrong
    assert cause in finding.causes[0]


def _twice_the_slope(patch: pytest.MonkeyPatch) -> None:
    def gelu(x: Tensor, approximate: str) -> Tensor:
        y = F.gelu(x, approximate=approximate)
        return y + (y - y.detach())

    patch.setattr(mlp, "F", SimpleNamespace(gelu=gelu))


def _keys_detached(patch: pytest.MonkeyPatch) -> None:
    right = attention.attend
    patch.setattr(attention, "attend", lambda q, k, *rest: right(q, k.detach(), *rest))


@pytest.mark.parametrize("against", ["float64", "hf"])
@pytest.mark.parametrize(
    ("mutate", "first_wrong", "cause"),
    [
        (_twice_the_slope, "blocks.1.mlp.pre", "2 times"),
        (_keys_detached, "blocks.1.attn.k", "detached"),
    ],
)
def test_a_wrong_way_back_is_found_where_the_forward_is_right(
    draw: Any,
    by: Any,
    monkeypatch: pytest.MonkeyPatch,
    ids: Tensor,
    against: str,
    mutate: Any,
    first_wrong: str,
    cause: str,
) -> None:
    """A slope that is wrong shows in no tensor of the pass; backwards it is named where it is."""
    model = draw(b_U=False)
    reference = by(against, model)
    mutate(monkeypatch)
    assert verify(model, ids, reference).ok
    found = verify(model, ids, reference, backward=True)
    finding = found.finding
    assert finding is not None
    assert (finding.section, finding.way, finding.row.name) == (GRADIENTS, MODULES, first_wrong)
    assert cause in finding.causes[0]
    bad = {row.name.rpartition(".")[0] for row in found[GRADIENTS].modules if not row.ok}
    kind = first_wrong.split(".")[2]
    # the block's input gets it through the norm, and the norm has its own gradient from there
    assert {name.split(".")[-1] for name in bad if "blocks" in name} >= {kind}
    assert not any("unembed" in name or "ln_final" in name for name in bad)


@pytest.mark.parametrize("only_narrow", [True, False])
def test_float64_tells_rounding_from_a_mistake(
    draw: Any, by: Any, ids: Tensor, only_narrow: bool
) -> None:
    """A difference that vanishes in float64 is called rounding, one that stays a mistake."""
    model = draw(t.float32)

    def nudge(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * 1.001 if out.dtype == t.float32 or not only_narrow else out

    model.blocks[1].mlp.register_forward_hook(nudge)
    finding = verify(model, ids, by("float64", model)).finding
    assert finding is not None and finding.row.name == "blocks.1.resid_post"
    assert finding.in_float64 is not None and finding.is_rounding == only_narrow
    text = verdict(verify(model, ids, by("float64", model)))
    assert ("the difference vanishes" if only_narrow else "the difference stays") in text
    assert only_narrow != ("likely cause" in text)


def test_a_mistake_without_a_name_is_still_a_mistake(draw: Any, by: Any, ids: Tensor) -> None:
    """One number moved in one tensor fails there, end to end too; no cause is made up."""
    model = draw()
    reference = by("float64", model)

    def nudge(name: str, x: Tensor) -> Tensor:
        x = x.clone()
        x.view(-1)[x.abs().argmax()] *= 1 + 3e-5
        return x

    with listen(model, "blocks.1.attn.z", nudge, edits=True):
        found = verify(model, ids, reference)
    assert found.finding is not None and found.finding.row.name == "blocks.1.attn.z"
    assert found.finding.causes == () and "none of the mistakes" in verdict(found)


def test_what_is_on_no_list_is_solved_for(
    draw: Any, by: Any, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eps that nobody tries and an order that is no roll or swap come out of the numbers."""
    model = draw(n_layers=1, d_model=20, n_heads=5)
    reference = by("float64", model)
    with monkeypatch.context() as patch:
        _W_O(lambda W: W[[1, 0, 3, 4, 2]])(patch)
        finding = verify(model, ids, reference).finding
    assert finding is not None
    assert finding.causes == ("the heads of W_O are in another order: 1, 0, 3, 4, 2",)
    _norm(lambda x, shape, w, b, eps: F.layer_norm(x, shape, w, b, 3.1e-6))(monkeypatch)
    finding = verify(model, ids, reference).finding
    assert finding is not None and finding.row.name == "blocks.0.ln1.out"
    assert finding.causes == ("eps is about 3.1e-06, not the config's layer_norm_eps of 1e-05",)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("unembed", lambda out: out.roll(1, -1)),
        ("unembed", lambda out: out + 1),
        ("", lambda out: out.roll(1, 1)),
        ("", lambda out: out * 1.1),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_an_answer_changed_behind_the_last_name(
    draw: Any, by: Any, ids: Tensor, part: str, change: Any, backward: bool
) -> None:
    """All names are right and the answer is not: that comes first, and whose hook it is."""
    model = draw()
    reference = by("float64", model)
    model.get_submodule(part).register_forward_hook(lambda module, args, out: change(out))
    found = verify(model, ids, reference, backward=backward)
    assert not found.ok and found.finding is not None
    assert found.finding.row.name == RETURNED and found.finding.way == WHOLE
    assert found[TENSORS].good == len(found[TENSORS].whole)
    assert RETURNED in table(found, only_wrong=True)
    who = "unembed" if part else "the model"
    assert f"likely cause: unembed.logits is right, and a forward hook on {who}" in verdict(found)


@pytest.mark.parametrize("dtype", [t.bfloat16, t.float16], ids=str)
@pytest.mark.parametrize("mutation", ["erf GELU", "eps 1e-6"])
def test_what_a_coarse_type_hides_is_found_in_float64(
    monkeypatch: pytest.MonkeyPatch, draw: Any, by: Any, ids: Tensor, mutation: str, dtype: t.dtype
) -> None:
    """In 16 bits every tensor agrees; the mistake is found in float64, and told as of there."""
    mutate, first_wrong, cause = MUTATIONS[mutation]
    model = draw(dtype)
    right = verify(model, ids, by("float64", model))
    assert right.ok and verdict(right).endswith("in float64 all of it agrees, too")
    mutate(monkeypatch)
    found = verify(model, ids, by("float64", model))
    assert found[TENSORS].good == len(found[TENSORS].whole) and not found.ok
    assert found.finding is not None and found.finding.hidden
    assert found.finding.row.name == first_wrong and cause in verdict(found)
    assert "too coarse to show" in verdict(found)
