"""Exports: read back by their libraries, proved, kept whole; or refused, and nothing is left."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.errors import CheckFailed, PvmlError
from pvml.export import hugging_face, nanogpt
from pvml.export.exporting import export_model
from pvml.export.form import Source
from pvml.loading import load
from pvml.modules.transformer import Transformer


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="needs the extra hub")


def same_weights(one: Transformer, other: Transformer) -> bool:
    """Whether two models hold the same numbers, name by name; a tied table counts as two."""
    left, right = (
        {**model.state_dict(), "unembed.W_U": model.unembed.W_U} for model in (one, other)
    )
    return left.keys() == right.keys() and all(t.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("tied", [False, True], ids=["own W_U", "tied"])
def test_hugging_face_opens_it_and_computes_the_same(
    make_loaded: Callable[..., Any], tmp_path: Path, transformers: Any, tied: bool
) -> None:
    """Logits to float32's rounding, the greedy text, the ids, and PvML reads it back exactly."""
    loaded = make_loaded(tie_embeddings=tied, d_mlp=31, layer_norm_eps=1e-6)
    certificate = export_model(loaded, "hf", tmp_path / "there")

    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "there")
    assert theirs.dtype == t.float32
    assert (theirs.lm_head.weight is theirs.transformer.wte.weight) is tied
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    ids = tokenizer("Once upon a mat", return_tensors="pt")["input_ids"]
    assert t.equal(ids, loaded.tokenizer.to_tokens("Once upon a mat", prepend_bos=False))
    end = loaded.tokenizer.eos_token_id
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == theirs.config.bos_token_id == end
    with t.no_grad():
        assert t.allclose(theirs(ids).logits, loaded.model(ids), atol=1e-4)

    assert certificate.passed and certificate.same_ids
    float32, float64 = certificate.comparisons
    assert (float32.dtype, float32.allowed, float32.same_greedy) == ("float32", None, True)
    assert 1e-9 < float32.relative < 1e-5 and float64.relative < float64.allowed == 1e-12
    assert len(certificate.tokens) == 24 and len(certificate.greedy) > 1
    assert same_weights(load(tmp_path / "there", "cpu").model, loaded.model)


def test_a_narrow_dtype_is_stored_as_it_is(
    make_loaded: Callable[..., Any], tmp_path: Path, transformers: Any
) -> None:
    """A model in bfloat16 is written, and opened there, in bfloat16; in float64 it is the same."""
    certificate = export_model(make_loaded(t.bfloat16), "hf", tmp_path / "there")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "there")
    assert theirs.dtype == t.bfloat16
    assert [row.dtype for row in certificate.comparisons] == ["bfloat16", "float64"]


@pytest.mark.parametrize(
    "changes", [{"n_layers": 0}, {"n_ctx": 1}], ids=["no layers", "one position"]
)
def test_the_smallest_models_can_go(
    make_loaded: Callable[..., Any], tmp_path: Path, transformers: Any, changes: dict[str, int]
) -> None:
    """A bigram model, and one with room for BOS alone, which can write nothing."""
    certificate = export_model(make_loaded(**changes), "hf", tmp_path / "there")
    assert certificate.passed
    assert (certificate.greedy == ()) is (changes == {"n_ctx": 1})


@pytest.mark.parametrize(
    "changes",
    [{}, {"attn_only": True, "normalization": "none", "d_head": 5, "tie_embeddings": True}],
    ids=["a GPT-2", "attention only"],
)
def test_transformer_lens_opens_it_and_computes_the_same(
    make_loaded: Callable[..., Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """`boot_native` and `convert_tl_checkpoint` take the folder; models that no GPT-2 is, too."""
    pytest.importorskip("transformer_lens", reason="needs the extra lens")
    loaded = make_loaded(**changes)
    with t.no_grad():
        loaded.model.unembed.b_U.copy_(t.linspace(-1, 1, loaded.model.cfg.d_vocab))
    certificate = export_model(loaded, "transformer_lens", tmp_path / "there")

    assert certificate.passed and certificate.same_ids
    assert [row.read_as for row in certificate.comparisons] == 2 * ["TransformerBridge.boot_native"]
    assert same_weights(load(tmp_path / "there", "cpu").model, loaded.model)


def a_square_matrix_turned(source: Source, folder: Path) -> None:
    """Write for Hugging Face with one W_O transposed, which no shape tells."""
    weights = dict(source.weights)
    W_O = weights["blocks.0.attn.W_O"]
    weights["blocks.0.attn.W_O"] = W_O.flatten(0, 1).T.reshape(W_O.shape)
    hugging_face.write(replace(source, weights=weights), folder)


def other_ids(source: Source, folder: Path) -> None:
    """Write for Hugging Face, and then let its tokenizer see no capital letters."""
    hugging_face.write(source, folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("write", "told"), [(a_square_matrix_turned, "1e-12 WRONG"), (other_ids, "OTHER ids")]
)
def test_what_the_library_computes_otherwise_is_not_kept(
    make_loaded: Callable[..., Any],
    tmp_path: Path,
    transformers: Any,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Source, Path], None],
    told: str,
) -> None:
    """A failed certificate is told, and neither the folder nor anything of it is left."""
    monkeypatch.setattr(hugging_face, "FORM", replace(hugging_face.FORM, write=write))
    with pytest.raises(CheckFailed, match=told):
        export_model(make_loaded(), "hf", tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("form", "changes", "told"),
    [
        ("hf", {"attn_only": True}, "Hugging Face transformers cannot hold small: it has no MLPs"),
        ("hf", {"positions": "shortformer"}, "its positions are shortformer"),
        ("transformer_lens", {"positions": "none"}, "native models have standard or rotary ones"),
        ("nanogpt", {}, r"nanoGPT always ties it to W_E \(pvml train --tie-embeddings"),
        ("nanogpt", {"normalization": "none", "d_mlp": 31}, "no LayerNorm.*always 4 x d_model"),
    ],
)
def test_what_a_form_cannot_hold_is_refused(
    make_loaded: Callable[..., Any], tmp_path: Path, form: str, changes: dict[str, Any], told: str
) -> None:
    """With every reason, before anything is written."""
    with pytest.raises(PvmlError, match=told):
        export_model(make_loaded(**changes), form, tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_not_exported(
    make_loaded: Callable[..., Any], tmp_path: Path
) -> None:
    """A NaN is named before anything is written: nothing could be proved of the copy."""
    loaded = make_loaded()
    with t.no_grad():
        loaded.model.blocks[0].attn.W_Q[0, 0, 0] = t.nan
    with pytest.raises(PvmlError, match=r"holds NaN or Inf in blocks\.0\.attn\.W_Q"):
        export_model(loaded, "hf", tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


def test_a_bias_that_processing_left_is_refused(
    make_loaded: Callable[..., Any], tmp_path: Path
) -> None:
    """No GPT-2 has b_U: a model with one is told so, not exported without it."""
    loaded = make_loaded()
    with t.no_grad():
        loaded.model.unembed.b_U[3] = 1e-3
    with pytest.raises(PvmlError, match="b_U is not zero"):
        export_model(loaded, "hf", tmp_path / "there")


def test_nothing_that_is_there_is_touched(make_loaded: Callable[..., Any], tmp_path: Path) -> None:
    """A folder with a file in it, and a file, are refused and stay; an empty folder is taken."""
    loaded = make_loaded(tie_embeddings=True)
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "mine").write_text("mine")
    file.write_text("mine")
    with pytest.raises(PvmlError, match="is not empty"):
        export_model(loaded, "nanogpt", full)
    with pytest.raises(PvmlError, match="is a file"):
        export_model(loaded, "nanogpt", file)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(PvmlError, match="loop cannot be a folder|loop is a file"):
        export_model(loaded, "nanogpt", loop)
    assert [path.name for path in full.iterdir()] == ["mine"] and file.read_text() == "mine"
    export_model(loaded, "nanogpt", empty)
    assert (empty / "ckpt.pt").is_file()


@pytest.mark.parametrize(
    ("form", "options", "told"),
    [
        ("gguf", {}, "no form 'gguf' to export to: hf, transformer_lens, nanogpt"),
        ("hf", {"pad_vocab": True}, "only nanogpt's vocabulary"),
    ],
)
def test_what_cannot_be_asked(
    make_loaded: Callable[..., Any], tmp_path: Path, form: str, options: dict[str, Any], told: str
) -> None:
    """A form that is not known, and padding where there is none."""
    with pytest.raises(PvmlError, match=told):
        export_model(make_loaded(), form, tmp_path / "there", **options)


def test_a_missing_library_is_told_before_anything_is_written(
    make_loaded: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without transformers the message says which extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(PvmlError, match=r"pip install 'pvml\[hub\]'"):
        export_model(make_loaded(), "hf", tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_says_what_was_proved(make_loaded: Callable[..., Any], tmp_path: Path) -> None:
    """certificate.json holds what the certificate says, and the card shows it."""
    certificate = export_model(make_loaded(tie_embeddings=True), "nanogpt", tmp_path / "there")
    told = json.loads((tmp_path / "there" / "certificate.json").read_text())
    assert told["passed"] is True and told["form"] == "nanogpt"
    assert told["tokens"] == list(certificate.tokens)
    assert told["comparisons"][0]["relative"] == certificate.comparisons[0].relative
    card = (tmp_path / "there" / "README.md").read_text()
    assert certificate.text() in card
    assert nanogpt.FORM.notes[0] in card
