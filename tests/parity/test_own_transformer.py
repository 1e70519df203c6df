"""A reader's whole model is checked from tokens to logits; if it is wrong, its parts are named."""

from typing import Any

import numpy as np
import pytest

from pvml.parity.own_code import guess_kind
from pvml.parity.own_trials import Trial, case_of, config_of, shapes_for
from pvml.reference.numpy_forward import forward, parameter_shapes

MODEL = """
from torch import nn
from pvml.modules.attention import Attention as CausalAttention
from pvml.modules.block import TransformerBlock
from pvml.modules.embedding import Embed, PosEmbed
from pvml.modules.normalization import LayerNorm
from pvml.modules.unembedding import Unembed
class DemoTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed, self.pos_embed = Embed(cfg), PosEmbed(cfg)
        self.blocks = nn.ModuleList([TransformerBlock(cfg) for _ in range(cfg.n_layers)])
        self.ln_final, self.unembed = LayerNorm(cfg), Unembed(cfg)
    def forward(self, tokens):
        x = self.embed(tokens) + self.pos_embed(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.ln_final(x)
        return self.unembed(x)
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DemoTransformer", "transformer"),
        ("MyGPT2", "transformer"),
        ("LanguageModel", "transformer"),
        ("TransformerBlock", "block"),
        ("GPTAttention", "attention"),
        ("ModelEmbed", "embed"),
    ],
)
def test_a_whole_models_name(name: str, kind: str) -> None:
    """By hand: the last word tells."""
    assert guess_kind(name) == kind


def test_its_case_is_the_references_own_pass() -> None:
    """Parameters of all layers by their full names, token ids in, the reference's logits out."""
    cfg = config_of({}, "transformer")
    assert cfg.n_layers == 2 and config_of({}).n_layers == 1
    assert shapes_for("transformer", cfg) == parameter_shapes(cfg)
    case = case_of("transformer", cfg, Trial(says=""), 0)
    assert case.x.shape == (2, 7) and case.x.dtype.kind == "i"
    truth = forward(case.parameters, cfg, case.x)
    np.testing.assert_array_equal(case.named["unembed.logits"], truth["unembed.logits"])
    assert set(case.gradients) == set(parameter_shapes(cfg))
    assert case.rounded["unembed.logits"].dtype == np.float32


def test_a_right_model_passes(checked: Any) -> None:
    """In every trial: all that its parts tap, the logits, and the gradient of every parameter."""
    report = checked(MODEL, "DemoTransformer")
    assert report.ok, report.text()
    names = [row.name for row in report.trials[0].rows]
    assert {"unembed.logits", "grad embed.W_E", "grad blocks.1.mlp.b_out"} <= set(names)
    assert "n_layers 2" in report.text().splitlines()[0]
    assert report.trials[-1].says.endswith("n_layers 3")
    assert "parts" not in report.text()


WRONG = {
    "the last layer only": ("for block in self.blocks", "for block in self.blocks[-1:]"),
    "the first layer twice": ("x = block(x)", "x = self.blocks[0](x)"),
    "another order": ("in self.blocks:", "in self.blocks[::-1]:"),
    "no positions": (" + self.pos_embed(tokens)", ""),
    "no ln_final": ("x = self.ln_final(x)", "pass"),
    "ln_final in between": ("x = block(x)", "x = self.ln_final(block(x))"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_model_is_told_to_check_its_parts(checked: Any, mistake: str) -> None:
    """What is wrong between the layers fails; the classes to check first are named."""
    old, new = WRONG[mistake]
    assert old in MODEL
    report = checked(MODEL.replace(old, new), "DemoTransformer")
    assert report.first_bad == report.trials[0]
    assert report.verdict().splitlines()[-1] == (
        "check its parts first, each with --module: own.py:CausalAttention, "
        "own.py:TransformerBlock, own.py:Embed, own.py:PosEmbed, own.py:LayerNorm, own.py:Unembed"
    )


def test_a_model_that_reads_ahead_is_told(checked: Any) -> None:
    """The sign is told for token ids, too, which cannot be negated."""
    ahead = MODEL.replace("x = block(x)", "x = block(x) + x.roll(-1, 1)")
    assert "likely cause: positions read later ones" in checked(ahead, "DemoTransformer").verdict()


def test_layers_that_are_not_the_configs_are_told(checked: Any) -> None:
    """Two blocks whatever the config says: the trial with another n_layers fails."""
    two = checked(MODEL.replace("range(cfg.n_layers)", "range(2)"), "DemoTransformer")
    assert two.first_bad == two.trials[-1] and two.trials[0].ok
    assert "missing: blocks.2.attn.W_Q (3, 15, 7) (n_heads d_model d_head)" in two.text()
