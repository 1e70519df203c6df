"""The hand-derived gradients: numbers a reader can recompute, differences, and torch's autograd."""

import ast
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch as t
import torch.nn.functional as F
from torch import Tensor

from pvml.config import Config
from pvml.modules.transformer import Transformer
from pvml.parity.check import compare, move_off_defaults, parameters_of
from pvml.reference import numpy_backward, numpy_forward
from pvml.trace.capture import capture
from pvml.trace.tap import places

SIZES = {"d_model": 10, "n_heads": 2, "d_head": 3, "d_mlp": 7, "n_ctx": 9, "d_vocab": 13}
VARIATIONS = [
    Config(
        **SIZES,
        n_layers=n_layers,
        positions=positions,
        attn_only=attn_only,
        normalization=normalization,
        tie_embeddings=tied,
    )
    for n_layers, positions, attn_only, normalization, tied in product(
        (0, 2), ("standard", "none", "shortformer"), (False, True), ("LN", "none"), (False, True)
    )
]
PADDING = t.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 0, 1, 1, 1]])


def drawn(cfg: Config, seed: int = 0) -> Transformer:
    return move_off_defaults(Transformer(cfg, seed=seed).double(), seed)


def ids(batch: int = 3, posn: int = 6) -> Tensor:
    return t.randint(13, (batch, posn), generator=t.Generator().manual_seed(0))


def test_a_slope_by_hand() -> None:
    """gelu_new rises by a half at 0, by 1 far to the right and not at all far to the left."""
    assert numpy_backward.gelu_new(np.array([0.0, 40.0, -40.0])).tolist() == [0.5, 1.0, 0.0]


def test_cross_entropy_by_hand() -> None:
    """With even scores for 4 tokens, each gets a quarter, the right one a quarter less 1, halved.

    Halved because two tokens are predicted; nothing comes back to the last position.
    """
    d = numpy_backward.mean_cross_entropy(np.zeros((1, 3, 4)), np.array([[0, 1, 3]]))
    quarter = 0.25 / 2
    assert d[0].tolist() == [
        [quarter, quarter - 0.5, quarter, quarter],
        [quarter, quarter, quarter, quarter - 0.5],
        [0, 0, 0, 0],
    ]


def test_cross_entropy_of_nothing() -> None:
    """Where no token is predicted, nothing comes back: no division by zero."""
    mask = np.array([[1, 0, 1]])
    d = numpy_backward.mean_cross_entropy(np.ones((1, 3, 4)), np.array([[0, 1, 3]]), mask)
    assert not d.any()


def test_layer_norm_by_hand() -> None:
    """Scaling and shifting x change nothing, so a gradient along x - mean or 1 comes back as 0."""
    p = {"w": np.array([1.0, 2.0, 1.0, 1.0]), "b": np.zeros(4)}
    seen = numpy_forward.layer_norm(p, np.array([[[1.0, 2, 3, 4]]]), eps=0.0)
    for d_out in (1 / p["w"], seen["normalized"][0, 0] / p["w"]):
        found = numpy_backward.layer_norm(p, seen, d_out[None, None])
        np.testing.assert_allclose(found["residual"], 0, atol=1e-15)
    d_out = np.array([[[1.0, 0, 0, 0]]])
    found = numpy_backward.layer_norm(p, seen, d_out)
    # n = (-3, -1, 1, 3) / sqrt 5, std = sqrt 5 / 2: (1 - 1/4 - 9/20, -1/4 - 3/20, -1/4 + 3/20, ...)
    expected = np.array([0.3, -0.4, -0.1, 0.2]) * 2 / 5**0.5
    np.testing.assert_allclose(found["residual"][0, 0], expected, rtol=1e-14)
    np.testing.assert_allclose(found["w"], [-3 / 5**0.5, 0, 0, 0], rtol=1e-14)


def test_a_token_that_comes_twice_gets_both() -> None:
    """A row of W_E sums what comes back from all of its uses; an unused row gets 0."""
    p = {"W_E": np.zeros((4, 2))}
    d_out = np.arange(6.0).reshape(1, 3, 2)
    found = numpy_backward.embed(p, {"in": np.array([[1, 3, 1]])}, d_out)
    assert found["W_E"].tolist() == [[0, 0], [4, 6], [0, 0], [2, 3]]


def slope(f: Callable[[], np.ndarray], x: np.ndarray, along: np.ndarray, d: np.ndarray) -> float:
    """How fast sum(f() d) grows when x moves along a direction, from two steps of 1e-5."""
    kept, sides = x.copy(), []
    for step in (1e-5, -1e-5):
        x[...] = kept + step * along
        sides.append((f() * d).sum())
    x[...] = kept
    return float(sides[0] - sides[1]) / 2e-5


CFG = Config(d_model=6, n_heads=2, d_head=3, d_mlp=5, n_layers=1, n_ctx=5, d_vocab=7)
HIDDEN = numpy_forward.cannot_attend(
    np.array([[False, True, True, True], [True, True, False, True]])
)
LAYERS = {
    "layer_norm": ("ln_final", lambda p, x, _: numpy_forward.layer_norm(p, x, 1e-5)),
    "attention": ("blocks.0.attn", lambda p, x, _: numpy_forward.attention(p, x, hidden=HIDDEN)),
    "attention, added": (
        "blocks.0.attn",
        lambda p, x, added: numpy_forward.attention(p, x, hidden=HIDDEN, added=added),
    ),
    "mlp": ("blocks.0.mlp", lambda p, x, _: numpy_forward.mlp(p, x)),
    "block": ("blocks.0", lambda p, x, _: numpy_forward.block(p, CFG, x, hidden=HIDDEN)),
    "unembed": ("unembed", lambda p, x, _: numpy_forward.unembed(p, x)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_against_differences(layer: str) -> None:
    """Each parameter's and input's gradient is what small steps in random directions show."""
    path, forward = LAYERS[layer]
    rng = np.random.default_rng(0)
    shapes = numpy_forward.parameter_shapes(CFG)
    p = {
        name[len(path) + 1 :]: rng.standard_normal(shape)
        for name, shape in shapes.items()
        if name.startswith(f"{path}.")
    }
    x, added = rng.standard_normal((2, 2, 4, 6))

    def out() -> np.ndarray:
        result: np.ndarray = list(forward(p, x, added).values())[-1]
        return result

    d_out = rng.standard_normal(out().shape)
    seen = forward(p, x, added)
    found = getattr(numpy_backward, layer.partition(",")[0])(p, seen, d_out)
    inputs = {next(iter(seen)): x} | ({"qk_input": added} if "added" in layer else {})
    for name, varied in {**p, **inputs}.items():
        for along in rng.standard_normal((3, *varied.shape)):
            expected = slope(out, varied, along, d_out)
            terms = np.abs(found[name] * along).sum()
            assert abs((found[name] * along).sum() - expected) < 1e-6 * (terms + 1), name


HALF = [
    (cfg, bool(i % 3))
    for i, cfg in enumerate(VARIATIONS)
    if (cfg.attn_only + (cfg.normalization == "none") + cfg.tie_embeddings) % 2 == 0
]
"""Any two settings meet in half of the variations; two in three have padding."""


@pytest.mark.parametrize(("cfg", "masked"), HALF, ids=str)
def test_the_whole_model_against_autograd(cfg: Config, masked: bool) -> None:
    """Every parameter's and every tensor's gradient is autograd's of our model, to 1e-12."""
    model, tokens = drawn(cfg), ids()
    mask = PADDING if masked else None
    parameters = dict(model.named_parameters())
    for x in parameters.values():
        x.requires_grad_()
    no_gradient = {"in", "mask", "sliced", "residual_mean", "residual_std"}
    wanted = {place.name for place in places(model) if place.point.name not in no_gradient}
    with capture(model, lambda name: name in wanted, grads=True) as cache:
        logits = model(tokens, mask)
    losses = F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
    kept = t.ones_like(tokens).bool() if mask is None else mask.bool()
    losses[kept[:, 1:] & kept[:, :-1]].mean().backward()
    theirs = {name: x.grad for name, x in parameters.items() if x.grad is not None}
    theirs |= cache.grads

    np_ids, np_mask = tokens.numpy(), None if mask is None else mask.numpy()
    d_logits = numpy_backward.mean_cross_entropy(logits.detach().numpy(), np_ids, np_mask)
    found = numpy_backward.gradients(parameters_of(model), cfg, np_ids, d_logits, np_mask)
    ours = {name: found[name] for name in theirs}
    largest = max(x.abs().max().item() for x in theirs.values())
    scales = {name: largest for name in theirs if name.endswith("b_K")}
    rows = compare(ours, theirs, 1e-12, scales=scales)
    assert all(row.ok for row in rows), max(rows, key=lambda row: row.strain)
    beside = {"unembed.W_U", "unembed.b_U", "pos_embed.W_pos", "pos_embed.out"}
    assert set(found) - set(theirs) <= beside  # a view, a buffer, and positions that nobody reads


def test_backward_gives_the_parameters() -> None:
    """`backward` has exactly the parameters, in order and shape, with `gradients`' numbers."""
    cfg = VARIATIONS[-1]
    parameters = parameters_of(drawn(cfg))
    d_logits = np.random.default_rng(0).standard_normal((3, 6, 13))
    found = numpy_backward.backward(parameters, cfg, ids().numpy(), d_logits)
    every = numpy_backward.gradients(parameters, cfg, ids().numpy(), d_logits)
    shapes = numpy_forward.parameter_shapes(cfg)
    assert {name: x.shape for name, x in found.items()} == shapes
    assert all(np.array_equal(found[name], every[name]) for name in shapes)


def test_a_tied_table_gets_both_uses() -> None:
    """W_E's gradient when tied is the sum of both tables' when they only happen to be equal."""
    tied = next(cfg for cfg in VARIATIONS if cfg.n_layers and cfg.tie_embeddings)
    parameters = parameters_of(drawn(tied))
    apart = Config(**{**tied.to_dict(), "tie_embeddings": False})
    both = {**parameters, "unembed.W_U": parameters["embed.W_E"].T}
    d_logits = np.random.default_rng(0).standard_normal((3, 6, 13))
    one = numpy_backward.backward(parameters, tied, ids().numpy(), d_logits)
    two = numpy_backward.backward(both, apart, ids().numpy(), d_logits)
    np.testing.assert_allclose(
        one["embed.W_E"], two["embed.W_E"] + two["unembed.W_U"].T, rtol=1e-12
    )


def test_what_cannot_matter_gets_nothing() -> None:
    """b_K shifts all scores of a row alike, and later tokens reach no earlier loss: gradient 0."""
    cfg = VARIATIONS[24]
    parameters = parameters_of(drawn(cfg))
    d_logits = np.zeros((3, 6, 13))
    d_logits[:, 2] = np.random.default_rng(0).standard_normal((3, 13))
    found = numpy_backward.gradients(parameters, cfg, ids().numpy(), d_logits)
    assert np.abs(found["blocks.0.attn.b_K"]).max() < 1e-14 * np.abs(found["blocks.0.attn.k"]).max()
    assert not found["embed.out"][:, 3:].any() and found["embed.out"][:, :3].any()


def test_it_can_show_what_rounding_does() -> None:
    """In float32 it differs from float64 by float32's rounding: more than none, far below 1e-3."""
    cfg = VARIATIONS[24]
    parameters, d_logits = parameters_of(drawn(cfg)), np.ones((3, 6, 13))
    d_logits[..., 0] = 2
    fine, coarse = (
        numpy_backward.backward(parameters, cfg, ids().numpy(), d_logits, None, dtype)["embed.W_E"]
        for dtype in (np.float64, np.float32)
    )
    assert coarse.dtype == np.float32
    assert 1e-9 < np.abs(coarse - fine).max() / np.abs(fine).max() < 1e-4


@pytest.mark.parametrize("shape", [(0, 5), (2, 1)], ids=["no row", "one position"])
def test_the_smallest_inputs(shape: tuple[int, int]) -> None:
    """An empty batch and single positions have gradients, of the parameters' shapes."""
    cfg = VARIATIONS[24]
    found = numpy_backward.backward(
        parameters_of(drawn(cfg)), cfg, np.zeros(shape, int), np.ones((*shape, 13))
    )
    assert {name: x.shape for name, x in found.items()} == numpy_forward.parameter_shapes(cfg)
    assert all(np.isfinite(x).all() for x in found.values())


def test_it_shares_nothing_with_the_model() -> None:
    """Of PvML it imports the Config and the NumPy forward only, and never torch."""
    tree = ast.parse(Path(numpy_backward.__file__).read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    }
    assert {name for name in imported if name.split(".")[0] in ("pvml", "torch")} == {
        "pvml.config",
        "pvml.reference.numpy_forward",
    }
