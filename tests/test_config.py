"""Config: GPT-2 small by default, and nonsense refused at construction."""

import dataclasses
import subprocess
import sys

import pytest

from pvml.config import Config
from pvml.errors import PvmlError


def test_the_defaults_are_gpt2_small():
    """`Config()` is GPT-2 small, its two derived widths included."""
    cfg = Config()

    assert (cfg.d_model, cfg.d_head, cfg.d_mlp) == (768, 64, 3072)
    assert (cfg.n_heads, cfg.n_layers, cfg.n_ctx, cfg.d_vocab) == (12, 12, 1024, 50257)
    assert (cfg.layer_norm_eps, cfg.init_range, cfg.debug) == (1e-5, 0.02, False)
    assert (cfg.attn_only, cfg.tie_embeddings) == (False, False)
    assert (cfg.positions, cfg.normalization) == ("standard", "LN")


def test_unset_widths_follow_d_model():
    """The seeds' model needs only its width and heads: d_head 32 and d_mlp 512 follow."""
    cfg = Config(d_model=128, n_heads=4)

    assert (cfg.d_head, cfg.d_mlp) == (32, 512)


def test_heads_need_not_fill_the_stream():
    """d_head times n_heads may differ from d_model."""
    assert Config(d_model=13, n_heads=3, d_head=5).d_head == 5


def complaints_without_the_shape_hook(fields, values):
    """What Config says to each value of each field, where no annotation is checked beforehand."""
    code = f"""
from pvml.config import Config
for field in {fields!r}:
    for value in {values!r}:
        try:
            Config(**{{field: value}})
        except ValueError as refusal:
            print(refusal)
        else:
            print("accepted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_size_must_be_a_whole_number_from_1():
    """A size below 1 or not whole is an error that names field and value."""
    fields = ["d_model", "n_heads", "n_ctx", "d_vocab", "d_head", "d_mlp"]
    values = [0, -1, 2.5, True, "8"]

    assert complaints_without_the_shape_hook(fields, values) == [
        f"{field} must be a whole number of at least 1, got {value!r}"
        for field in fields
        for value in values
    ]


def test_a_model_may_have_no_layers():
    """n_layers 0 is the bigram model; below that there is nothing."""
    assert Config(n_layers=0).n_layers == 0
    with pytest.raises(PvmlError, match="n_layers must be a whole number of at least 0, got -1"):
        Config(n_layers=-1)


@pytest.mark.parametrize("field", ["layer_norm_eps", "init_range"])
@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_eps_and_range_are_finite_and_not_negative(field, value):
    """A negative, infinite or missing number is an error that names field and value."""
    with pytest.raises(PvmlError, match=f"^{field} must be a finite number of at least 0, got"):
        Config(**{field: value})


def test_words_and_switches_that_are_unknown_are_refused():
    """A word outside the list is an error that gives the list; a switch is True or False."""
    fields = ["positions", "normalization", "attn_only", "debug"]

    assert complaints_without_the_shape_hook(fields, ["rotary"]) == [
        "positions must be one of standard, none, shortformer, got 'rotary'",
        "normalization must be one of LN, none, got 'rotary'",
        "attn_only must be True or False, got 'rotary'",
        "debug must be True or False, got 'rotary'",
    ]


def test_heads_that_do_not_divide_the_width_need_d_head():
    """Without d_head, n_heads must divide d_model; the error says what to do."""
    with pytest.raises(PvmlError, match="d_model 130 is not a multiple of n_heads 4.*d_head"):
        Config(d_model=130, n_heads=4)


def test_config_is_frozen_and_keyword_only():
    """A model's shape cannot be changed in place, nor given by position."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().d_model = 5
    with pytest.raises(TypeError):
        Config(768)


def test_debug_is_never_stored():
    """What is stored rebuilds the model, and says nothing about printing."""
    cfg = Config(d_model=13, n_heads=3, d_head=5, debug=True)

    assert "debug" not in cfg.to_dict()
    assert Config.from_dict(cfg.to_dict()) == cfg
    assert Config.from_dict({**cfg.to_dict(), "debug": True}).debug is False


def test_a_stored_field_that_is_unknown_is_an_error():
    """A config from another program is refused by the name of the field."""
    with pytest.raises(PvmlError, match="unknown model fields rotary_dim.*d_model"):
        Config.from_dict({"rotary_dim": 4})


@pytest.mark.parametrize("field", ["d_model", "n_ctx", "d_vocab", "d_head", "d_mlp", "n_layers"])
def test_a_size_that_no_kernel_counts_to_is_refused(field):
    """A size too large for any machine is an error that names field and value."""
    with pytest.raises(PvmlError, match=f"{field} must be at most .*, got {2**31}"):
        Config(**{"n_heads": 1, field: 2**31})
