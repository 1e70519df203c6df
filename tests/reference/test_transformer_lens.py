"""Parity with TransformerLens 4: its bridge around Hugging Face's GPT-2, and its own modules."""

from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.parity.check import compare
from pvml.trace.capture import capture
from pvml.trace.tap import places

lens = pytest.importorskip(
    "pvml.reference.transformer_lens", reason="needs the extra lens", exc_type=ImportError
)

NOT_REACHED = {"residual_mean", "attn_scores", "mask", "sliced", "pos_embed.in"}
GPT2 = {"d_model": 15, "n_heads": 3, "d_head": 5}


def without_bias(model: Transformer) -> Transformer:
    """The model with a b_U of zero, as every GPT-2's is."""
    with t.no_grad():
        model.unembed.b_U.zero_()
    return model


def compared(model: Transformer, tokens: Tensor, build: str) -> tuple[Any, set[str]]:
    """The rows of the comparison, and what TransformerLens did not reach."""
    theirs = lens.lens_activations(model, tokens, build=build)
    with capture(model, "*") as ours, t.no_grad():
        model(tokens)
    missed = {name for name in ours if name not in theirs}
    kinds = {name for name in missed for kind in NOT_REACHED if name.endswith(kind)}
    return compare({name: ours[name] for name in theirs}, theirs, 1e-12), missed - kinds


@pytest.mark.parametrize("tied", [False, True], ids=["own W_U", "tied"])
def test_the_bridge_agrees_in_every_hook(make_model: Any, tokens: Tensor, tied: bool) -> None:
    """Every hook name of the table holds our tensor, to 1e-12, around Hugging Face's GPT-2."""
    model = without_bias(make_model(**GPT2, tie_embeddings=tied))
    rows, missed = compared(model, tokens, "bridge")

    assert [row for row in rows if not row.ok] == [] and missed == set()
    named = {place.name for place in places(model) if place.lens}
    assert named <= {row.name for row in rows}
    assert max(row.max_abs_diff for row in rows) > 0, "was it compared with itself?"


@pytest.mark.parametrize(
    "changes",
    [{}, {"attn_only": True}, {"attn_only": True, "normalization": "none"}],
    ids=["all", "attention only", "no LayerNorm either"],
)
def test_native_models_agree_in_every_hook(
    make_model: Any, tokens: Tensor, changes: dict[str, Any]
) -> None:
    """TransformerLens's own modules, heads of any width and a b_U too; but for the scores."""
    model = make_model(**changes)
    with t.no_grad():
        model.unembed.b_U += 1
    rows, missed = compared(model, tokens, "native")

    assert [row for row in rows if not row.ok] == []
    assert missed == {f"blocks.{i}.attn.attn_scores_masked" for i in range(2)}


def test_what_the_table_says_of_their_scores_is_so(make_model: Any, tokens: Tensor) -> None:
    """Natively built, hook_attn_scores is the pattern; the plain bridge masks with a number."""
    model = without_bias(make_model(**GPT2))
    _, native = lens.lens_model(model, build="native").run_with_cache(tokens)
    name = "blocks.0.attn.hook_attn_scores"
    assert t.equal(native[name], native["blocks.0.attn.hook_pattern"])
    assert (
        lens.lens_activations(model, tokens)["blocks.0.attn.attn_scores_masked"] == -t.inf
    ).any()

    bridge = lens.lens_model(model, build="bridge", compatible=False)
    _, plain = bridge.run_with_cache(tokens)
    assert plain[name].min() == t.finfo(t.float64).min


def test_what_it_cannot_build_is_refused(make_model: Any, tokens: Tensor) -> None:
    """Shortformer positions neither way; attention alone not as a bridge around a GPT-2."""
    with pytest.raises(PvmlError, match="positions are shortformer"):
        lens.lens_activations(make_model(positions="shortformer"), tokens)
    with pytest.raises(PvmlError, match="no MLPs"):
        lens.lens_activations(make_model(attn_only=True), tokens, build="bridge")


def test_the_generator_is_left_alone(make_model: Any, tokens: Tensor) -> None:
    """Building either kind does not move torch's own generator."""
    model = without_bias(make_model(**GPT2))
    before = t.random.get_rng_state()
    for build in ("bridge", "native"):
        lens.lens_model(model, build=build)
    assert t.equal(before, t.random.get_rng_state())
