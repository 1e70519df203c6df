"""The printer: the seeds' columns, and debug models that print by themselves."""

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.attention import Attention
from pvml.modules.transformer import Transformer
from pvml.modules.unembedding import Unembed
from pvml.trace.printer import printing

CFG = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=8, d_vocab=29)


def lines_of(module, *inputs, **options):
    lines = []
    with printing(module, out=lines.append, **options):
        module(*inputs)
    return lines


def test_lines_have_the_seeds_columns():
    """Tag left in 12, name right in 20, a colon, shape left in 16, `#` and the meaning."""
    lines = lines_of(Attention(CFG), t.zeros(1, 7, 12))

    assert (
        lines[1] == "[attn]                       W_Q: (3, 12, 4)      # a reading matrix per head"
    )
    assert {line.index(":") for line in lines} == {32}
    assert {line.index("#") for line in lines if "#" in line} == {50}


def test_the_unembeddings_names_are_longer():
    """The longest name of a module sets its column: 34 in the unembedding."""
    lines = lines_of(Unembed(CFG), t.zeros(1, 7, 12))

    assert lines[0].startswith("[unembed]   normalized_resid_final: (1, 7, 12)")
    assert {line.index(":") for line in lines} == {34}


def test_inside_a_model_tags_are_paths_and_weights_stay_out():
    """A whole model's trace tags lines with full paths, and shows activations only."""
    lines = lines_of(Transformer(CFG), t.zeros(1, 7, dtype=t.long))

    assert any(line.startswith("[blocks.0.attn] ") and " z: " in line for line in lines)
    assert not any("W_" in line.split("#")[0] for line in lines)
    assert len(lines) == len(set(lines))


def test_only_the_asked_names_print():
    """A pattern limits the trace, in either vocabulary; one that fits nothing is an error."""
    model = Transformer(CFG)
    lines = lines_of(model, t.zeros(1, 7, dtype=t.long), names="*hook_pattern")

    assert [line.split(":")[0].split()[-1] for line in lines] == ["attn_pattern"]
    with pytest.raises(PvmlError, match="nothing here is called"):
        lines_of(model, t.zeros(1, 7, dtype=t.long), names="*.patern")


def test_the_standardised_stream_prints_as_the_seed_prints_it():
    """LayerNorm's trace says `residual` twice; the second is captured as `normalized`."""
    model = Transformer(CFG)
    lines = lines_of(model.ln_final, t.randn(1, 7, 12))

    names = [line.split(":")[0].removeprefix("[ln]").strip() for line in lines]
    assert names == ["residual", "residual_mean", "residual_std", "residual", "w, b", "out"]


@pytest.mark.parametrize("build", [Transformer, Attention])
def test_debug_prints_each_tensor_once_a_pass(build, capsys):
    """`Config(debug=True)` prints every pass of what was built with it, and nothing twice."""
    module = build(Config(**{**CFG.to_dict(), "debug": True}))
    x = t.zeros(1, 7, dtype=t.long) if build is Transformer else t.zeros(1, 7, 12)
    for _ in range(2):
        module(x)
        printed = capsys.readouterr().out.splitlines()
        assert len([line for line in printed if "attn_pattern:" in line]) == 1


def test_debug_changes_no_bit(capsys):
    """A debug model computes what the quiet one computes."""
    tokens = t.arange(7)[None]
    loud = Transformer(Config(**{**CFG.to_dict(), "debug": True}), seed=0)

    assert t.equal(loud(tokens), Transformer(CFG, seed=0)(tokens))
