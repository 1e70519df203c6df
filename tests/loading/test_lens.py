"""State dicts in TransformerLens's names: the shape from settings or shapes, every fault told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import save_file
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.loading import load, load_alone
from pvml.modules.transformer import Transformer

LENS = {
    "d_model": 13,
    "n_heads": 3,
    "d_head": 5,
    "d_mlp": 17,
    "n_layers": 2,
    "n_ctx": 11,
    "d_vocab": 260,
    "act_fn": "gelu_new",
    "normalization_type": "LN",
    "positional_embedding_type": "standard",
    "eps": 1e-3,
    "attn_only": False,
    "use_attn_scale": True,
    "attn_scale": 5**0.5,
    "d_vocab_out": 260,
    "seed": None,
}
"""What HookedTransformerConfig.to_dict writes, in part."""


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """An empty folder with a tokenizer."""
    (tmp_path / "lens").mkdir()
    tokenizer.save(tmp_path / "lens" / "tokenizer.json")
    return tmp_path / "lens"


def state_of(model: Transformer) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def put(folder: Path, state: Any, file: str = "model.pt", **settings: Any) -> Path:
    """The state dict in a file, and the settings, if any, beside it."""
    if file.endswith(".safetensors"):
        save_file({name: x.contiguous() for name, x in state.items()}, folder / file)
    else:
        t.save(state, folder / file)
    if settings:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder / file


def require_same(ours: Transformer, theirs: Transformer, ids: Tensor) -> None:
    with t.no_grad():
        assert t.equal(ours(ids[:, :11]), theirs(ids[:, :11]))


@pytest.mark.parametrize("file", ["model.pt", "w.pth", "pytorch_model.bin", "w.safetensors"])
def test_a_file_alone_tells_its_shape(
    folder: Path, make_model: Any, ids: Tensor, file: str
) -> None:
    """Without settings every size is read off the tensors; what cannot be is told."""
    model = make_model(d_vocab=260)
    loaded = load(put(folder, state_of(model), file))

    assert loaded.model.cfg == model.cfg
    require_same(loaded.model, model, ids)
    assert any("layer_norm_eps is taken to be 1e-05" in note for note in loaded.report.notes)
    assert (loaded.name, loaded.tokenizer.name) == (file.split(".")[0], "bpe:260")


@pytest.mark.parametrize(
    "changes",
    [{"attn_only": True}, {"positions": "none"}, {"n_layers": 0}, {"n_heads": 1, "d_head": 2}],
)
def test_other_shapes_are_told_apart(folder: Path, make_model: Any, changes: Any) -> None:
    """No MLPs, no positions, no layers, heads that do not fill the stream: read off, too."""
    model = make_model(**{"d_vocab": 260, "d_mlp": 52, **changes})
    cfg = load(put(folder, state_of(model))).model.cfg

    for field in ("attn_only", "positions", "n_layers", "d_model", "d_vocab"):
        assert getattr(cfg, field) == getattr(model.cfg, field)
    if model.cfg.n_layers:
        assert (cfg.n_heads, cfg.d_head) == (model.cfg.n_heads, model.cfg.d_head)


def test_settings_beside_it_are_taken(folder: Path, make_model: Any, ids: Tensor) -> None:
    """A folder with TransformerLens's settings loads as they say, eps included."""
    model = make_model(d_vocab=260, layer_norm_eps=1e-3)
    put(folder, state_of(model), **LENS)
    loaded = load(folder)

    assert loaded.model.cfg == model.cfg
    assert not any("taken to be" in note for note in loaded.report.notes)
    require_same(loaded.model, model, ids)
    assert load(folder / "model.pt").model.cfg == model.cfg


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"normalization_type": None}, {"normalization": "none"}),
        ({"attn_only": True, "act_fn": None, "d_mlp": None}, {"attn_only": True, "d_mlp": 52}),
        ({"positional_embedding_type": "shortformer"}, {"positions": "shortformer"}),
        ({"shortformer_pos": True}, {"positions": "shortformer"}),
        ({"initializer_range": -1.0, "n_key_value_heads": 3, "d_vocab_out": -1}, {}),
    ],
)
def test_what_pvml_has_too_is_understood(
    folder: Path, make_model: Any, ids: Tensor, settings: Any, changes: Any
) -> None:
    """Every variation that PvML's model knows is read from TransformerLens's settings."""
    model = make_model(d_vocab=260, layer_norm_eps=1e-3, **changes)
    put(folder, state_of(model), **{**LENS, **settings})

    assert load(folder).model.cfg == model.cfg
    require_same(load(folder).model, model, ids)


@pytest.mark.parametrize("attn_only", [True, False])
def test_folded_norms_become_ones_and_zeros(
    folder: Path, make_model: Any, ids: Tensor, attn_only: bool
) -> None:
    """LNPre only standardises, as ours does with w of ones and b of zeros: the same logits."""
    model = make_model(d_vocab=260, attn_only=attn_only)
    with t.no_grad():
        for name, x in model.named_parameters():
            if ".ln" in name or name.startswith("ln_final"):
                x.fill_(1.0 if name.endswith(".w") else 0.0)
    kept = {n: x for n, x in state_of(model).items() if ".ln" not in n and "ln_final" not in n}
    put(
        folder, kept, **{**LENS, "normalization_type": "LNPre", "attn_only": attn_only, "eps": 1e-5}
    )
    loaded = load(folder)

    require_same(loaded.model, model, ids)
    told = [row for row in loaded.report.rows if "(LNPre)" in row.done]
    assert len(told) == (2 * 2 * 2 + 2 if not attn_only else 2 * 2 + 2)
    assert all(row.theirs == "" for row in told)


def test_a_folded_file_with_one_norm_is_refused(folder: Path, make_model: Any) -> None:
    """LNPre has no LayerNorm weights: a file with some of them lacks the others."""
    state = state_of(make_model(d_vocab=260))
    del state["blocks.0.ln1.w"], state["blocks.0.ln1.b"]
    put(folder, state, **{**LENS, "normalization_type": "LNPre"})

    with pytest.raises(PvmlError, match=r"missing: blocks\.0\.ln1\.b, blocks\.0\.ln1\.w$"):
        load(folder)


def test_no_norms_can_mean_two_things(folder: Path, make_model: Any) -> None:
    """Without LayerNorms and without settings, nothing tells whether they are folded: refused."""
    state = state_of(make_model(d_vocab=260, normalization="none"))

    with pytest.raises(PvmlError, match=r"model\.pt: it holds no ln_final\.w.*cfg="):
        load(put(folder, state))


def test_a_file_alone_with_the_shape_given(folder: Path, make_model: Any, ids: Tensor) -> None:
    """As ARENA's attention-only model: half precision, shortformer, no LayerNorm, two buffers."""
    changes = {"normalization": "none", "positions": "shortformer", "attn_only": True}
    model = make_model(d_vocab=260, **changes).half()
    state = state_of(model)
    state["blocks.0.attn.mask"] = t.ones(11, 11, dtype=t.bool).tril()
    state["blocks.0.attn.IGNORE"] = t.tensor(-t.inf)
    path = put(folder, state, "attn_only_2L_half.pth")
    loaded = load(path, cfg=model.cfg, dtype="float32")
    assert loaded.model.cfg == model.cfg
    require_same(loaded.model, model.float(), ids)
    alone = load_alone(path, cfg=model.cfg)
    assert alone.tokenizer is None and alone.model.dtype == t.float16

    assert any("LNPre" in note for note in loaded.report.notes)
    with pytest.raises(PvmlError, match="holds no LayerNorm, and cfg has them.*LNPre"):
        load(path, cfg=replace(model.cfg, normalization="LN"))
    with pytest.raises(PvmlError, match=r"missing: blocks\.2\."):
        load(path, cfg=replace(model.cfg, n_layers=3))
    with pytest.raises(PvmlError, match="MODEL 'nobody.pt' is not known"):
        load("nobody.pt", cfg=model.cfg)
    with pytest.raises(PvmlError, match="cfg is for a file with a state dict.* and gpt2 is none"):
        load("gpt2", cfg=model.cfg)


def test_its_buffers_are_ignored_and_nothing_else(folder: Path, make_model: Any) -> None:
    """mask and IGNORE are passed over and told; any other extra tensor is unexpected."""
    state = state_of(make_model(d_vocab=260))
    state["blocks.0.attn.mask"] = t.ones(11, 11, dtype=t.bool).tril()
    state["blocks.1.attn.IGNORE"] = t.tensor(-t.inf)
    loaded = load(put(folder, state))
    assert set(loaded.report.ignored) == {"blocks.0.attn.mask", "blocks.1.attn.IGNORE"}

    state["blocks.0.attn.masks"] = t.zeros(1)
    with pytest.raises(PvmlError, match=r"unexpected: blocks\.0\.attn\.masks$"):
        load(put(folder, state))


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module."])
def test_wrappers_are_understood(folder: Path, make_model: Any, ids: Tensor, wrapper: str) -> None:
    """Prefixes at the front or in the middle, where one block was compiled, change nothing."""
    model = make_model(d_vocab=260)
    state = {wrapper + name: x for name, x in state_of(model).items()}
    inside = {
        name.replace("blocks.0.", f"blocks.0.{wrapper}"): x for name, x in state_of(model).items()
    }

    for given in (state, inside):
        require_same(load(put(folder, given)).model, model, ids)


def test_a_misspelt_tensor_is_told_both_ways(folder: Path, make_model: Any) -> None:
    """A renamed W_O is missing by one name and unexpected by the other, whichever file it is."""
    state = state_of(make_model(d_vocab=260))
    state["blocks.1.attn.W_o"] = state.pop("blocks.1.attn.W_O")

    for file in ("model.pt", "model.safetensors"):
        with pytest.raises(PvmlError) as refusal:
            load(put(folder, state, file))
        assert "missing: blocks.1.attn.W_O; unexpected: blocks.1.attn.W_o" in str(refusal.value)


def test_heads_of_another_shape_are_refused(folder: Path, make_model: Any) -> None:
    """d_model 12 in 3 heads, settings that say 4: equal totals, but each head has its own shape."""
    state = state_of(make_model(d_model=12, n_heads=3, d_head=4, d_vocab=260))
    put(folder, state, **{**LENS, "d_model": 12, "n_heads": 4, "d_head": 3, "attn_scale": 3**0.5})

    with pytest.raises(PvmlError, match=r"W_Q \(3, 12, 4\) instead of \(4, 12, 3\)"):
        load(folder)


def test_layers_that_disagree_are_refused(folder: Path, make_model: Any) -> None:
    """Where shapes tell the size, the first layer does: another one in another shape is named."""
    state = state_of(make_model(d_model=12, n_heads=3, d_head=4, d_vocab=260))
    other = state_of(make_model(d_model=12, n_heads=4, d_head=3, d_vocab=260))
    state |= {name: x for name, x in other.items() if name.startswith("blocks.1.attn")}

    with pytest.raises(PvmlError, match=r"blocks\.1\.attn\.W_Q \(4, 12, 3\) instead of \(3, 12, 4"):
        load(put(folder, state))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("act_fn", "gelu"),
        ("act_fn", "solu_ln"),
        ("normalization_type", "RMS"),
        ("positional_embedding_type", "rotary"),
        ("parallel_attn_mlp", True),
        ("use_attn_scale", False),
        ("attn_scale", 8.0),
        ("scale_attn_by_inverse_layer_idx", True),
        ("use_local_attn", True),
        ("gated_mlp", True),
        ("final_rms", True),
        ("n_key_value_heads", 1),
        ("d_vocab_out", 7),
        ("attention_dir", "bidirectional"),
        ("scale_embedding", True),
        ("layer_norm_eps", 1e-6),
        ("residual_multiplier", 0.22),
        ("logit_scale", 0.0625),
    ],
)
def test_what_cannot_be_expressed_is_named(
    folder: Path, make_model: Any, field: str, value: Any
) -> None:
    """A setting that changes what the model computes is refused with its name, value and file."""
    put(folder, state_of(make_model(d_vocab=260)), **{**LENS, field: value})

    with pytest.raises(PvmlError, match=rf"lens/config\.json: .*cannot express.*: {field} is "):
        load(folder)


def test_what_is_not_understood_is_told(folder: Path, make_model: Any) -> None:
    """A setting that is not known is in a note; one that does nothing, or is known, is not."""
    theirs = {**LENS, "layer_norm_eps": 1e-3, "logit_scale": 1.0, "wonders": 3, "model_name": "x"}
    put(folder, state_of(make_model(d_vocab=260, layer_norm_eps=1e-3)), **theirs)

    (note,) = [note for note in load(folder).report.notes if "not understood" in note]
    assert note.endswith("left out: layer_norm_eps, logit_scale, wonders")


def test_a_bias_of_the_unembedding_is_told(folder: Path, make_model: Any, ids: Tensor) -> None:
    """b_U other than zero, as folding leaves it, is added to the logits; the report says so."""
    model = make_model(d_vocab=260)
    with t.no_grad():
        model.unembed.b_U.fill_(0.5)
    loaded = load(put(folder, state_of(model)))

    require_same(loaded.model, model, ids)
    assert "its b_U is not zero" in loaded.report.notes[-1]


def test_a_file_of_a_run_takes_the_runs_shape(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """model.safetensors of a run directory, given as a file, is read with the config beside it."""
    from pvml.runs.format import RunDir

    cfg = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=7, d_vocab=260, positions="shortformer")
    run = RunDir.create(tmp_path / "run", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, Transformer(cfg, seed=1), {})

    assert load(run.path / "model.safetensors").model.cfg == cfg


def test_settings_of_something_else_are_refused(folder: Path, make_model: Any) -> None:
    """A config.json beside the file that says no sizes is not taken for its settings."""
    path = put(folder, state_of(make_model(d_vocab=260)), **{"model_type": "gpt2"})

    with pytest.raises(
        PvmlError, match=r"config\.json: it says no d_model and n_layers.*model\.pt"
    ):
        load(path)


def test_a_folder_must_hold_one_file(folder: Path, make_model: Any) -> None:
    """None, or two: which one counts is not ours to guess."""
    state = state_of(make_model(d_vocab=260))
    (folder / "config.json").write_text(json.dumps(LENS))
    with pytest.raises(PvmlError, match="one file of weights .* there: none"):
        load(folder)
    put(folder, state, "one.pt"), put(folder, state, "two.safetensors")
    with pytest.raises(PvmlError, match=r"there: one\.pt, two\.safetensors\. Give the file itself"):
        load(folder)
    assert load(folder / "one.pt").model.cfg.d_model == 13


@pytest.mark.parametrize(
    "state", [{}, {"wte.weight": t.zeros(3, 2)}, {"state_dict": {"embed.W_E": t.zeros(3, 2)}}, [1]]
)
def test_a_file_of_something_else_is_refused(folder: Path, state: Any) -> None:
    """Tensors by other names, nested ones and lists are told by the file's name."""
    with pytest.raises(PvmlError, match=r"model\.pt (holds no model's tensors|does not hold a st)"):
        load(put(folder, state))


@pytest.mark.parametrize("one", ["embed.weight", "unembed.weight", "blocks.1.attn.q.weight"])
def test_a_bridges_own_names_are_told(folder: Path, make_model: Any, one: str) -> None:
    """TransformerLens 4's names are recognised by any of them, also behind a wrapper's prefix."""
    state = {**state_of(make_model(d_vocab=260)), f"_orig_mod.{one}": t.zeros(3, 2)}

    with pytest.raises(PvmlError, match=r"model\.pt has the names that a TransformerBridge gives"):
        load(put(folder, state))


@pytest.mark.parametrize("name", ["embed.W_E", "blocks.0.attn.W_Q", "blocks.0.mlp.W_in"])
def test_a_tensor_that_tells_a_size_is_needed(folder: Path, make_model: Any, name: str) -> None:
    """Without settings, a missing tensor is named even if it is one that tells the shape."""
    state = state_of(make_model(d_vocab=260))
    del state[name]

    with pytest.raises(PvmlError, match=rf"{name}"):
        load(put(folder, state))
    state[name] = t.zeros(4)
    with pytest.raises(PvmlError, match=rf"{name}"):
        load(put(folder, state))
