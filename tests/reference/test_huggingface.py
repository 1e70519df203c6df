"""Parity with Hugging Face's GPT-2: another team's code, the same numbers, in float64."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.modules.transformer import Transformer
from pvml.parity.check import check, compare, move_off_defaults, parameters_of
from pvml.reference.numpy_forward import forward
from pvml.trace.capture import capture

huggingface = pytest.importorskip(
    "pvml.reference.huggingface", reason="needs the extra hub", exc_type=ImportError
)

SIZES = {"d_model": 21, "n_heads": 3, "n_layers": 2, "n_ctx": 17, "d_vocab": 53, "d_mlp": 37}
ARISE_INSIDE_FUNCTIONS = {
    *("residual_mean", "residual_std", "normalized", "sliced"),
    *("attn_scores", "mask", "attn_scores_masked"),
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    return huggingface.tiny_gpt2(seed=0, **SIZES)


@pytest.fixture
def ids() -> Tensor:
    return t.randint(53, (5, 11), generator=t.Generator().manual_seed(0))


def converted(state: dict[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """Their parameters by our names; here written out, so that no conversion of ours is trusted."""
    ours = {
        "embed.W_E": state["wte.weight"],
        "pos_embed.W_pos": state["wpe.weight"],
        "ln_final.w": state["ln_f.weight"],
        "ln_final.b": state["ln_f.bias"],
        "unembed.W_U": state["wte.weight"].T,
        "unembed.b_U": t.zeros(cfg.d_vocab, dtype=t.float64),
    }
    H, D, d = cfg.n_heads, cfg.d_model, cfg.d_head
    for i in range(cfg.n_layers):
        there, here = f"h.{i}.", f"blocks.{i}."
        qkv = zip(
            "QKV",
            state[there + "attn.c_attn.weight"].split(D, 1),
            state[there + "attn.c_attn.bias"].split(D),
            strict=True,
        )
        for name, W, b in qkv:
            ours[f"{here}attn.W_{name}"] = W.reshape(D, H, d).permute(1, 0, 2)
            ours[f"{here}attn.b_{name}"] = b.reshape(H, d)
        ours[here + "attn.W_O"] = state[there + "attn.c_proj.weight"].reshape(H, d, D)
        ours[here + "attn.b_O"] = state[there + "attn.c_proj.bias"]
        for a, b in (("ln1", "ln_1"), ("ln2", "ln_2")):
            ours[f"{here}{a}.w"] = state[f"{there}{b}.weight"]
            ours[f"{here}{a}.b"] = state[f"{there}{b}.bias"]
        for a, b in (("in", "c_fc"), ("out", "c_proj")):
            ours[f"{here}mlp.W_{a}"] = state[f"{there}mlp.{b}.weight"]
            ours[f"{here}mlp.b_{a}"] = state[f"{there}mlp.{b}.bias"]
    return ours


def ours_from(theirs: Any, tied: bool = False, **changes: Tensor) -> Transformer:
    """Our model with their parameters, `changes` to them first."""
    cfg = Config(**SIZES, tie_embeddings=tied)
    state = {name.removeprefix("transformer."): x for name, x in theirs.state_dict().items()}
    parameters = converted({**state, **changes}, cfg)
    if tied:
        del parameters["unembed.W_U"]
    model = Transformer(cfg).double()
    model.load_state_dict(parameters)
    return model


def test_one_position_by_hand(theirs: Any) -> None:
    """A lone token attends to itself, and enters the stream as its row of wte plus wpe's first."""
    found = huggingface.activations(theirs, t.tensor([[5]]))
    body = theirs.transformer
    assert found["blocks.1.attn.attn_pattern"].flatten().tolist() == [1, 1, 1]
    assert t.equal(found["blocks.0.resid_pre"][0, 0], body.wte.weight[5] + body.wpe.weight[0])


def test_its_parameters_are_off_their_defaults_and_reproducible(theirs: Any) -> None:
    """No parameter of the tiny GPT-2 is left at 0 or 1; a seed gives the same model again."""
    again, other = huggingface.tiny_gpt2(seed=0, **SIZES), huggingface.tiny_gpt2(seed=1, **SIZES)
    for name, x in theirs.named_parameters():
        assert not ((x == 0) | (x == 1)).any(), name
        assert t.equal(x, again.get_parameter(name))
        assert not t.equal(x, other.get_parameter(name))


def test_the_generator_is_left_alone() -> None:
    """Drawing a tiny GPT-2 does not move torch's own generator."""
    before = t.random.get_rng_state()
    huggingface.tiny_gpt2(seed=3)
    assert t.equal(before, t.random.get_rng_state())


@pytest.mark.parametrize("tied", [False, True], ids=["own W_U", "tied"])
def test_every_tensor_that_hooks_reach_agrees(theirs: Any, ids: Tensor, tied: bool) -> None:
    """Our model with their weights computes each of their tensors to 1e-12, relative."""
    model = ours_from(theirs, tied)
    with capture(model, "*") as ours, t.no_grad():
        model(ids)
    reached = huggingface.activations(theirs, ids)
    missed = {name for name in ours if name not in reached}
    assert {name.rpartition(".")[2] for name in missed} == ARISE_INSIDE_FUNCTIONS
    rows = compare({name: ours[name] for name in reached}, reached, 1e-12)
    assert [row for row in rows if not row.ok] == []
    assert max(row.max_abs_diff for row in rows) > 0, "was it compared with itself?"


def test_the_numpy_reference_agrees_with_both(theirs: Any, ids: Tensor) -> None:
    """Formulae, their code and ours: three implementations, every named tensor, to 1e-12."""
    model = ours_from(theirs)
    assert check(model, ids).ok
    truth = forward(parameters_of(model), model.cfg, ids.numpy())
    reached = huggingface.activations(theirs, ids)
    rows = compare({name: truth[name] for name in reached}, reached, 1e-12)
    assert [row for row in rows if not row.ok] == []


def test_padding_agrees_at_real_tokens(theirs: Any, ids: Tensor) -> None:
    """With a mask on either side, both models' real positions agree to 1e-12, relative."""
    real = t.ones_like(ids)
    real[1, :3], real[2, -4:] = 0, 0
    place = (real.cumsum(1) - 1).clamp(min=0)
    found = huggingface.activations(theirs, ids, attention_mask=real, position_ids=place)
    with t.no_grad():
        ours = ours_from(theirs)(ids, attention_mask=real)
    pairs = {"logits": ours[real == 1]}, {"logits": found["unembed.logits"][real == 1]}
    assert compare(*pairs, 1e-12)[0].ok


@pytest.mark.parametrize(
    ("tensor", "first_wrong"),
    [
        ("h.1.attn.c_proj.weight", "blocks.1.attn.attn_out"),
        ("h.0.attn.c_proj.weight", "blocks.0.attn.attn_out"),
    ],
)
def test_an_untransposed_square_matrix_is_found(
    theirs: Any, ids: Tensor, tensor: str, first_wrong: str
) -> None:
    """Case 6: a square weight read the wrong way round is wrong first where it is used."""
    matrix = theirs.get_parameter(f"transformer.{tensor}").detach()
    model = ours_from(theirs, **{tensor: matrix.T})
    with capture(model, "*") as ours, t.no_grad():
        model(ids)
    reached = huggingface.activations(theirs, ids)
    rows = compare({name: ours[name] for name in reached}, reached, 1e-12)
    assert next(row.name for row in rows if not row.ok) == first_wrong


def test_hooks_are_gone_afterwards(theirs: Any, ids: Tensor) -> None:
    """Looking leaves no hook on their model, not even when the pass fails."""
    huggingface.activations(theirs, ids)
    with pytest.raises((IndexError, RuntimeError)):
        huggingface.activations(theirs, ids + 53)
    assert not any(module._forward_hooks for module in theirs.modules())


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return t.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("tied", [False, True], ids=["own W_U", "tied"])
def test_their_model_takes_our_weights(ids: Tensor, tied: bool) -> None:
    """Given our weights it computes our logits, and gives the weights back by our names."""
    model = move_off_defaults(Transformer(Config(**SIZES, tie_embeddings=tied), seed=0), 0).double()
    model.unembed.b_U.data.zero_()
    before = t.random.get_rng_state()
    theirs = huggingface.gpt2_with(model.state_dict(), model.cfg)
    assert t.equal(before, t.random.get_rng_state())
    with t.no_grad():
        rows = compare({"logits": model(ids)}, {"logits": theirs(ids).logits}, 1e-12)
    assert rows[0].ok
    back = huggingface.weights_of(theirs, model.cfg)
    assert back.keys() == model.state_dict().keys()
    assert all(t.equal(x, back[name]) for name, x in model.state_dict().items())


def test_what_is_published_is_read_by_their_library(
    theirs: Any, ids: Tensor, tmp_path: Any
) -> None:
    """A folder gives the model again; untied, its tables hold the same numbers, each its own."""
    theirs.save_pretrained(tmp_path)
    one = huggingface.published(tmp_path, t.float64, tied=True)
    two = huggingface.published(tmp_path, t.float64)
    assert one.lm_head.weight is one.transformer.wte.weight
    assert two.lm_head.weight is not two.transformer.wte.weight
    with t.no_grad():
        assert t.equal(one(ids).logits, theirs(ids).logits)
        assert t.equal(two(ids).logits, theirs(ids).logits)


def test_gradients_obey_the_rules_of_sums(theirs: Any, ids: Tensor) -> None:
    """The stream gets what passes by plus what the norm reads; a bias, what its rows get."""
    found = huggingface.gradients(theirs, Config(**SIZES, tie_embeddings=True), ids, loss_of)
    for i in range(2):
        here = f"blocks.{i}."
        for before, after, norm in (
            ("resid_pre", "resid_mid", "ln1.residual"),
            ("resid_mid", "resid_post", "ln2.residual"),
        ):
            total = found[here + after] + found[here + norm]
            t.testing.assert_close(found[here + before], total, rtol=1e-12, atol=1e-15)
            assert found[here + norm].abs().max() > 1e-6
    rows = found["blocks.0.attn.v"].sum((0, 1))
    t.testing.assert_close(found["blocks.0.attn.b_V"], rows, rtol=1e-10, atol=1e-15)
    assert "unembed.b_U" not in found and "unembed.W_U" not in found
    assert not any(module._forward_hooks for module in theirs.modules())
    assert not any(module._forward_pre_hooks for module in theirs.modules())


def test_a_gradient_by_finite_differences(theirs: Any, ids: Tensor) -> None:
    """One weight moved by 1e-5 up and down changes the loss by its gradient."""
    found = huggingface.gradients(theirs, Config(**SIZES, tie_embeddings=True), ids, loss_of)
    weight = theirs.transformer.h[1].attn.c_proj.weight
    losses = []
    for step in (1e-5, -1e-5):
        with t.no_grad():
            weight[8, 3] += step  # row 8 of three heads of 7: the second head's second
            losses.append(loss_of(theirs(ids).logits, ids))
            weight[8, 3] -= step
    slope = (losses[0] - losses[1]) / 2e-5
    assert found["blocks.1.attn.W_O"][1, 1, 3].item() == pytest.approx(slope.item(), rel=1e-6)
