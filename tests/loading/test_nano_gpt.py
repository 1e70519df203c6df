"""nanoGPT's checkpoints: the same logits; padding, missing biases and GELU told."""

from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.loading import load, load_alone, load_nano_gpt
from pvml.loading.nano_gpt import _gelu_gap


def saved(folder: Path, ckpt: dict[str, Any]) -> Path:
    t.save(ckpt, folder / "ckpt.pt")
    return folder / "ckpt.pt"


def logits_of(model: Any, ids: t.Tensor) -> t.Tensor:
    with t.no_grad():
        return model(ids)


@pytest.mark.parametrize("bias", [True, False])
def test_the_logits_are_nano_gpts(tmp_path: Path, nano_gpt: Any, ids: Any, bias: bool) -> None:
    """A model in plain torch by nanoGPT's names agrees in float64 to 1e-12, biases or none."""
    theirs = nano_gpt(bias=bias)
    ours = load_nano_gpt(saved(tmp_path, theirs.ckpt()))

    t.testing.assert_close(logits_of(ours, ids), logits_of(theirs, ids), rtol=0, atol=1e-12)
    assert ours.dtype == t.float64 and not ours.training


def test_verify_needs_no_tokenizer_and_notes_what_the_file_does_not_say(
    tmp_path: Path, nano_gpt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model alone is verified, the GELU's note shown, and that the reading is not judged."""
    saved(tmp_path, nano_gpt().ckpt())
    arguments = ["--brief", "--device", "cpu", "--against", "float64"]
    assert main(["verify", str(tmp_path), *arguments]) == 0
    out = capsys.readouterr().out
    assert "note: PvML computes GELU in GPT-2's tanh form" in out and "logits differ by up" in out
    assert "how the file was read is not judged here" in out


def test_a_folder_stands_for_its_file(nano_folder: Path, ids: Any) -> None:
    """`load_nano_gpt` takes the folder that train.py writes, as `load` does."""
    by_folder, by_file = load_nano_gpt(nano_folder), load_nano_gpt(nano_folder / "ckpt.pt")
    assert t.equal(logits_of(by_folder, ids), logits_of(by_file, ids))


def test_a_folder_is_its_checkpoint(nano_folder: Path, nano_gpt: Any, ids: Any) -> None:
    """The folder that train.py writes, and the file in it, are a MODEL with the tokenizer there."""
    by_folder, by_file = load(nano_folder), load(nano_folder / "ckpt.pt")

    assert t.equal(logits_of(by_folder.model, ids), logits_of(by_file.model, ids))
    assert by_folder.tokenizer.name == "bpe:260"
    assert (by_folder.name, by_file.name) == ("out", "ckpt")
    assert by_file.source == f"the nanoGPT checkpoint {nano_folder}/ckpt.pt"


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "module._orig_mod."])
def test_wrappers_are_understood(tmp_path: Path, nano_gpt: Any, ids: Any, wrapper: str) -> None:
    """A compiled model's checkpoint, or DDP's, is the same model; the report has the true keys."""
    theirs = nano_gpt()
    state = {f"{wrapper}{name}": x for name, x in theirs.state_dict().items()}
    path = saved(tmp_path, theirs.ckpt(model=state))
    Tokenizer.train(["a"], 260).save(tmp_path / "tokenizer.json")
    loaded = load(path)

    t.testing.assert_close(logits_of(loaded.model, ids), logits_of(theirs, ids))
    assert loaded.report.rows[0].theirs == f"{wrapper}transformer.wte.weight"


def test_padded_rows_are_left_out(tmp_path: Path, nano_gpt: Any, tokenizer: Any, ids: Any) -> None:
    """320 rows for 260 ids: 60 are cut and told, the others' logits stay; alone, all are there."""
    theirs = nano_gpt(320)
    path = saved(tmp_path, theirs.ckpt())
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load(path)
    expected = logits_of(theirs, ids)

    assert loaded.model.cfg.d_vocab == 260
    t.testing.assert_close(logits_of(loaded.model, ids), expected[..., :260], rtol=0, atol=1e-12)
    assert any("padded to 320 rows, and no text has the last 60" in n for n in loaded.report.notes)
    done = {row.ours: row.done for row in loaded.report.rows}
    assert done["embed.W_E"] == "cut to 260 ids"
    assert done["unembed.W_U"] == "transposed, cut to 260 ids"
    whole = load_nano_gpt(path)
    t.testing.assert_close(logits_of(whole, ids), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stored", [261, 319, 384])
def test_other_vocabularies_are_kept(
    tmp_path: Path, nano_gpt: Any, tokenizer: Any, stored: int
) -> None:
    """Only the next multiple of 64 is padding; any other surplus stays, and is told."""
    path = saved(tmp_path, nano_gpt(stored).ckpt())
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load(path)

    assert loaded.model.cfg.d_vocab == stored
    assert f"has 260 ids, the model {stored}: the rest have no text" in loaded.report.notes[-1]


def test_a_vocabulary_of_characters_needs_its_tokenizer(
    tmp_path: Path, nano_gpt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """65 characters are fewer than GPT-2's ids: told, with the way to take the model alone.

    The file is named, also in the current folder.
    """
    path = saved(tmp_path, nano_gpt(65).ckpt())

    with pytest.raises(PvmlError, match=r"50257 ids, more than the model's 65.*load_alone"):
        load(path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PvmlError, match=r"^ckpt\.pt: there is no .* there, as tokenizer\.json; or"):
        load("ckpt.pt")
    assert load_nano_gpt(path).cfg.d_vocab == 65


def test_the_other_gelu_is_measured(tmp_path: Path, nano_gpt: Any) -> None:
    """The report says by how much logits differ under the exact GELU: as the erf twin's do."""
    theirs, twin = nano_gpt(), nano_gpt(form="none")
    ours = load_nano_gpt(saved(tmp_path, theirs.ckpt()))
    tokens = t.randint(260, (1, 17), generator=t.Generator().manual_seed(0))
    expected = (logits_of(theirs, tokens) - logits_of(twin, tokens)).abs().max()

    gap, largest = _gelu_gap(ours)
    assert gap == pytest.approx(float(expected), rel=1e-9) and gap > 1e-5
    assert largest == pytest.approx(float(logits_of(theirs, tokens).abs().max()))


def test_what_the_checkpoint_does_not_say_is_told(nano_folder: Path, nano_gpt: Any) -> None:
    """The report names GELU's form, and that a model which began from GPT-2 had this one."""
    assert sum("tanh form" in note for note in load(nano_folder).report.notes) == 1
    saved(nano_folder, nano_gpt().ckpt(config={"init_from": "gpt2-medium"}))

    assert "it began from gpt2-medium, which was" in load(nano_folder).report.notes[-1]


def test_missing_biases_are_told(nano_folder: Path, nano_gpt: Any) -> None:
    """bias False in model_args makes zeros of each of them, and the report says so."""
    saved(nano_folder, nano_gpt(bias=False).ckpt())
    filled = [row for row in load(nano_folder).report.rows if "bias is False" in row.done]

    assert len(filled) == 2 * 8 + 1  # q, k, v, o, in, out and two LayerNorms in each, ln_final
    assert all(row.theirs == "" for row in filled)


def test_biases_must_be_as_said(tmp_path: Path, nano_gpt: Any) -> None:
    """One bias absent where all are promised, or one there where none is: named either way."""
    ckpt = nano_gpt().ckpt()
    del ckpt["model"]["transformer.h.1.mlp.c_fc.bias"]
    with pytest.raises(PvmlError, match=r"ckpt\.pt: .*missing: h\.1\.mlp\.c_fc\.bias$"):
        load_nano_gpt(saved(tmp_path, ckpt))

    ckpt = nano_gpt(bias=False).ckpt()
    ckpt["model"]["transformer.ln_f.bias"] = t.zeros(12)
    with pytest.raises(PvmlError, match=r"unexpected: ln_f\.bias$"):
        load_nano_gpt(saved(tmp_path, ckpt))


def test_every_fault_is_told_at_once(tmp_path: Path, nano_gpt: Any) -> None:
    """Missing, unexpected and wrongly shaped tensors stand in one message, with the file."""
    ckpt = nano_gpt().ckpt()
    state = ckpt["model"]
    state["transformer.h.0.attn.c_atn.weight"] = state.pop("transformer.h.0.attn.c_attn.weight")
    state["transformer.h.1.mlp.c_fc.weight"] = state["transformer.h.1.mlp.c_fc.weight"].T

    with pytest.raises(PvmlError) as refusal:
        load_nano_gpt(saved(tmp_path, ckpt))
    told = str(refusal.value)
    assert "missing: h.0.attn.c_attn.weight; unexpected: h.0.attn.c_atn.weight; " in told
    assert "wrong shape: h.1.mlp.c_fc.weight (12, 48) instead of (48, 12)" in told


def test_a_square_matrix_is_transposed(tmp_path: Path, nano_gpt: Any) -> None:
    """c_proj, 12 x 12, passes any check of shapes: W_O's rows are its columns, by hand."""
    theirs = nano_gpt()
    ours = load_nano_gpt(saved(tmp_path, theirs.ckpt()))
    stored = theirs.transformer.h[0].attn.c_proj.weight

    assert t.equal(ours.blocks[0].attn.W_O[1, 2], stored[:, 1 * 4 + 2])


def test_masks_of_older_versions_are_passed_over(nano_folder: Path, nano_gpt: Any) -> None:
    """attn.bias, the mask of a nanoGPT without the fused kernel, is ignored and told."""
    ckpt = nano_gpt().ckpt()
    ckpt["model"]["transformer.h.0.attn.bias"] = t.ones(1, 1, 17, 17)
    saved(nano_folder, ckpt)

    assert load(nano_folder).report.ignored == {
        "transformer.h.0.attn.bias": "PvML computes its mask"
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"vocab_size": None}, "missing: vocab_size"),
        ({"rope": True, 3: 1}, "not known: 3, rope"),
        ({"n_head": 5}, "d_model 12 is not a multiple of n_heads 5"),
        ({"n_layer": -1}, "n_layers must be a whole number of at least 0, got -1"),
        ({"n_layer": 3}, r"missing: h\.2\.attn"),
    ],
)
def test_model_args_that_do_not_fit_are_told(
    tmp_path: Path, nano_gpt: Any, changes: dict[str, Any], told: str
) -> None:
    """A size that is missing, wrong or unknown is named with the file."""
    model = nano_gpt()
    path = saved(tmp_path, model.ckpt(model_args={**model.args, **changes}))

    with pytest.raises(PvmlError, match=rf"ckpt\.pt: .*{told}"):
        load_nano_gpt(path)


@pytest.mark.parametrize(
    "changes", [{"model_args": [1]}, {"model": [1]}, {"model": {"transformer.wte.weight": 3}}]
)
def test_entries_of_another_kind_are_refused(
    tmp_path: Path, nano_gpt: Any, changes: dict[str, Any]
) -> None:
    """model_args must be a dictionary, and model tensors by name."""
    with pytest.raises(PvmlError, match=r"ckpt\.pt: (model_args is no|its entry model does not)"):
        load_nano_gpt(saved(tmp_path, nano_gpt().ckpt(**changes)))


@pytest.mark.parametrize("wrapper", ["", "_orig_mod."])
@pytest.mark.parametrize("nested", [True, False])
def test_missing_model_args_are_told(
    tmp_path: Path, nano_gpt: Any, nested: bool, wrapper: str
) -> None:
    """Its tensors without model_args, in an entry or bare, are known by their layout.

    Hugging Face's, which have the same names, are told to come as a folder.
    """
    state = {wrapper + name: x for name, x in nano_gpt().state_dict().items()}
    path = saved(tmp_path, {"model": state} if nested else state)
    for read in (load_nano_gpt, load, load_alone):
        with pytest.raises(
            PvmlError, match=r"ckpt\.pt holds a nanoGPT's tensors, and no model_args"
        ):
            read(path)

    theirs = {name: x.T if x.ndim == 2 else x for name, x in state.items()}
    with pytest.raises(PvmlError, match="give the folder with its config.json"):
        load_alone(saved(tmp_path, theirs))


def test_another_pickle_is_no_checkpoint(tmp_path: Path) -> None:
    """A pickle without model_args and model is told apart."""
    with pytest.raises(PvmlError, match="not a nanoGPT checkpoint: it lacks model_args and model"):
        load_nano_gpt(saved(tmp_path, {"model": {}}))
