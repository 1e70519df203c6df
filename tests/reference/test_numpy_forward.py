"""The NumPy reference: numbers a reader can recompute, and the laws its formulae must obey."""

import ast
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pvml.config import Config
from pvml.modules.transformer import Transformer
from pvml.parity.check import move_off_defaults, parameters_of
from pvml.reference import numpy_forward as reference
from pvml.trace.tap import places

VARIATIONS = [
    Config(
        d_model=23,
        n_heads=3,
        d_head=7,
        d_mlp=37,
        n_ctx=17,
        d_vocab=53,
        n_layers=n_layers,
        positions=positions,
        attn_only=attn_only,
        normalization=normalization,
        tie_embeddings=tie_embeddings,
    )
    for n_layers, positions, attn_only, normalization, tie_embeddings in product(
        (0, 2), ("standard", "none", "shortformer"), (False, True), ("LN", "none"), (False, True)
    )
]


def drawn(cfg: Config, seed: int = 0) -> dict[str, np.ndarray]:
    return parameters_of(move_off_defaults(Transformer(cfg, seed=seed).double(), seed))


def token_ids(batch: int = 5, posn: int = 11, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(53, size=(batch, posn))


def test_layer_norm_by_hand() -> None:
    """Four numbers with mean 2.5 and biased variance 1.25 come out as +-3 and +-1 over sqrt(5)."""
    one = {"w": np.array([1.0, 1, 1, 2]), "b": np.array([0.0, 0, 1, 0])}
    found = reference.layer_norm(one, np.array([[[1.0, 2, 3, 4]]]), eps=0.0)
    root = 5**0.5
    assert found["residual_mean"].item() == 2.5
    assert found["residual_std"].item() == pytest.approx(1.25**0.5, rel=1e-15)
    expected = [-3 / root, -1 / root, 1 / root + 1, 2 * 3 / root]
    np.testing.assert_allclose(found["out"][0, 0], expected, rtol=1e-15)


def test_layer_norm_of_a_constant_is_its_shift() -> None:
    """A vector without variance gives exactly b: eps keeps the division defined."""
    p = {"w": np.array([2.0, 3.0]), "b": np.array([0.5, -0.5])}
    found = reference.layer_norm(p, np.full((1, 1, 2), 7.0), eps=1e-5)
    assert found["residual_std"].item() == pytest.approx(1e-5**0.5, rel=1e-15)
    assert found["out"].tolist() == [[[0.5, -0.5]]]


def test_gelu_new_by_hand() -> None:
    """The tanh form gives 0.8411920 at 1, where the erf form would give 0.8413447."""
    values = reference.gelu_new(np.array([1.0, 0.0, -40.0]))
    assert values[0] == pytest.approx(0.8411920, abs=5e-8)
    assert values[1:].tolist() == [0.0, 0.0]


def test_softmax_by_hand() -> None:
    """Scores log 1, log 3 and a masked one share 1 as a quarter, three quarters and nothing."""
    shares = reference.softmax(np.array([np.log(1.0), np.log(3.0), -np.inf]) + 1000)
    np.testing.assert_allclose(shares, [0.25, 0.75, 0], rtol=1e-12)


def test_who_cannot_attend_by_hand() -> None:
    """Later positions and padding are hidden, except that padding sees itself."""
    assert reference.cannot_attend(np.array([True, False, True])).astype(int).tolist() == [
        [0, 1, 1],
        [0, 0, 1],
        [0, 1, 0],
    ]


def test_attention_by_hand() -> None:
    """One head of width 4 that asks with x and reads x halves q.k and mixes by the softmax."""
    eye, none = np.eye(4)[None], np.zeros((1, 4))
    p = {f"W_{x}": eye for x in "QKVO"} | {f"b_{x}": none for x in "QKV"} | {"b_O": np.ones(4)}
    x = np.zeros((1, 2, 4))
    x[0, 0, 0], x[0, 1, 1] = 1, 2
    found = reference.attention(p, x)
    assert found["attn_scores"][0, 0].tolist() == [[1, 0], [0, 4]]
    assert found["attn_scores_masked"][0, 0].tolist() == [[0.5, -np.inf], [0, 2]]
    share = 1 / (1 + np.exp(-2.0))
    expected = [[2, 1, 1, 1], [2 - share, 1 + 2 * share, 1, 1]]
    np.testing.assert_allclose(found["attn_out"][0], expected, rtol=1e-14)


def test_positions_count_real_tokens_by_hand() -> None:
    """With padding, W_pos is read by how many real tokens came before."""
    p = {"W_pos": np.arange(7.0)[:, None]}
    real = np.array([[False, False, True, True, False, True]])
    found = reference.pos_embed(p, np.zeros((1, 6), int), real)
    assert found["out"][0, :, 0].tolist() == [0, 0, 0, 1, 1, 2]


def test_unembedding_by_hand() -> None:
    """Logits are the stream times the columns of W_U, plus b_U."""
    p = {"W_U": np.array([[1.0, 0, 2], [0, 1, 3]]), "b_U": np.array([0.0, 0, 0.5])}
    assert reference.unembed(p, np.array([[[2.0, 5.0]]]))["logits"].tolist() == [[[2, 5, 19.5]]]


@pytest.mark.parametrize("cfg", VARIATIONS, ids=str)
def test_it_names_what_the_table_names_and_reads_what_the_model_holds(cfg: Config) -> None:
    """Every variation gives exactly the named tensors and parameters of the model, by shape."""
    parameters = drawn(cfg)
    named = reference.forward(parameters, cfg, token_ids())
    model = Transformer(cfg)
    assert set(named) == {place.name for place in places(model)}
    wanted = reference.parameter_shapes(cfg)
    assert wanted == {name: tuple(x.shape) for name, x in model.state_dict().items()}
    floats = {x.dtype for x in named.values()} - {np.dtype(int), np.dtype(bool)}
    assert floats == {np.dtype(np.float64)}


@pytest.mark.parametrize("cfg", [c for c in VARIATIONS if c.n_layers], ids=str)
def test_the_future_does_not_reach_back(cfg: Config) -> None:
    """Changing the last token leaves every earlier position's logits as they were."""
    parameters, ids = drawn(cfg), token_ids()
    before = reference.forward(parameters, cfg, ids)["unembed.logits"]
    ids[:, -1] = (ids[:, -1] + 1) % 53
    after = reference.forward(parameters, cfg, ids)["unembed.logits"]
    np.testing.assert_allclose(after[:, :-1], before[:, :-1], rtol=1e-12, atol=1e-13)
    assert np.abs(after[:, -1] - before[:, -1]).max() > 1e-3


@pytest.mark.parametrize("cfg", VARIATIONS[-24::2], ids=str)
@pytest.mark.parametrize("real", ["0011111", "1111100", "1101011"])
def test_padding_changes_nothing_for_real_tokens(cfg: Config, real: str) -> None:
    """Wherever padding stands, whatever its ids, real positions compute what they do without it."""
    parameters, alone = drawn(cfg), token_ids(1, 5)
    mask = np.array([[int(c) for c in real]])
    without = reference.forward(parameters, cfg, alone)["unembed.logits"]
    for filler in (0, 41):
        padded = np.full((1, 7), filler)
        padded[mask == 1] = alone[0]
        named = reference.forward(parameters, cfg, padded, mask)
        np.testing.assert_allclose(named["unembed.logits"][mask == 1], without[0], rtol=1e-12)
        finite = [x for name, x in named.items() if not name.endswith("scores_masked")]
        assert all(np.isfinite(x).all() for x in finite)


def test_it_can_show_what_rounding_does() -> None:
    """In float32 it differs from float64 by float32's rounding: more than none, far below 1e-4."""
    cfg = VARIATIONS[24]
    parameters, ids = drawn(cfg), token_ids()
    fine = reference.forward(parameters, cfg, ids)["unembed.logits"]
    coarse = reference.forward(parameters, cfg, ids, dtype=np.float32)["unembed.logits"]
    assert coarse.dtype == np.float32
    assert 1e-9 < np.abs(coarse - fine).max() / np.abs(fine).max() < 1e-5


def test_it_shares_nothing_with_the_model() -> None:
    """Of PvML it imports the Config and nothing else, so that it cannot repeat a mistake."""
    tree = ast.parse(Path(reference.__file__).read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    }
    assert {name for name in imported if name.split(".")[0] in ("pvml", "torch")} == {"pvml.config"}
