"""What the word MODEL means: runs, steps, bundled models and names, and which goes before which."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import load_file, save_file
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.loading import load
from pvml.loading.meaning import _given, _word
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2
from pvml.runs.format import RunDir


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> tuple[RunDir, Transformer]:
    """A run directory with one checkpoint, and its model."""
    cfg = Config(d_model=11, n_heads=1, n_layers=1, n_ctx=7, d_vocab=tokenizer.d_vocab)
    model = Transformer(cfg, seed=3)
    run = RunDir.create(tmp_path / "runs" / "small", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, model, {})
    return run, model


def test_a_run_directory_is_loaded(run: tuple[RunDir, Transformer], ids: Tensor) -> None:
    """A run's model gives the logits it had, with the run's tokenizer, on the dtype asked for."""
    run_dir, model = run
    loaded = load(run_dir.path)

    assert t.equal(loaded.model(ids[:, :7]), model.eval()(ids[:, :7]))
    assert loaded.tokenizer.name == run_dir.tokenizer().name
    assert (loaded.name, loaded.source) == ("small", f"the run in {run_dir.path}")
    assert load(run_dir.path, dtype="float64").model.dtype == t.float64


def test_a_step_of_a_run_is_loaded(
    run: tuple[RunDir, Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`step=` and the checkpoint's own folder give that step's weights; a wrong step is told."""
    run_dir, first = run
    for step in (2, 3):
        run_dir.save_checkpoint(step, Transformer(first.cfg, seed=step), {}, keep=step == 2)
    folder = run_dir.path / "checkpoints" / "step-2"
    monkeypatch.chdir(run_dir.path)

    for loaded in (
        load(run_dir.path, step=2),
        load(folder),
        load(folder, step=2),
        load("checkpoints/step-2", dtype="float32"),
    ):
        assert t.equal(loaded.model.embed.W_E, Transformer(first.cfg, seed=2).embed.W_E)
        assert (loaded.name, loaded.source) == (
            "small-step-2",
            f"step 2 of the run in {run_dir.path}",
        )
        assert loaded.tokenizer.name == run_dir.tokenizer().name
    assert t.equal(load(".").model.embed.W_E, Transformer(first.cfg, seed=3).embed.W_E)
    with pytest.raises(PvmlError, match="holds no checkpoint of step 1; there are: 2, 3"):
        load(run_dir.path, step=1)
    with pytest.raises(PvmlError, match="neither a run directory nor"):
        load(folder, step=3)


def test_only_a_run_has_steps(tmp_path: Path) -> None:
    """A step of anything else is refused."""
    tiny_gpt2().save_pretrained(tmp_path)
    for model in (tmp_path, "gpt2"):
        with pytest.raises(PvmlError, match="is not the folder of a run, so it has no step 5"):
            load(model, step=5)


def test_a_misspelt_weight_of_a_run_is_told(run: tuple[RunDir, Transformer]) -> None:
    """A renamed tensor fails the load: missing by one name, unexpected by the other."""
    path = run[0].path / "model.safetensors"
    state = load_file(path)
    state["blocks.0.attn.W_Qu"] = state.pop("blocks.0.attn.W_Q")
    save_file(state, path)

    with pytest.raises(PvmlError) as refusal:
        load(run[0].path)
    assert "missing: blocks.0.attn.W_Q;" in str(refusal.value)
    assert "unexpected: blocks.0.attn.W_Qu" in str(refusal.value)


def test_heads_of_another_shape_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """d_model 12 in 3 heads or 4 has the same total; each head's own shape tells them apart."""
    cfg = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=7, d_vocab=tokenizer.d_vocab)
    run = RunDir.create(tmp_path / "heads", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, Transformer(cfg), {})
    path = run.path / "config.json"
    other = {**cfg.to_dict(), "n_heads": 4, "d_head": 3}
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": other}))

    with pytest.raises(
        PvmlError, match=r"blocks\.0\.attn\.W_Q \(3, 12, 4\) instead of \(4, 12, 3\)"
    ):
        load(run.path)


def test_a_bundled_model_is_found_by_name(
    run: tuple[RunDir, Transformer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run directory in the package's models folder is a MODEL by its name."""
    monkeypatch.setattr("pvml.bundled.FOLDER", run[0].path.parent)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert (load("small").name, load("small").source) == ("small", "the bundled model small")
    with pytest.raises(PvmlError, match=r"or a bundled model \(small\)$"):
        load("smile")


def test_a_folder_goes_before_a_bundled_model(
    run: tuple[RunDir, Transformer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in the current folder is taken before a bundled model of its name; no run says so."""
    monkeypatch.setattr("pvml.bundled.FOLDER", run[0].path.parent)
    monkeypatch.chdir(run[0].path.parent)
    assert load("small").source == "the run in small"

    (tmp_path / "elsewhere" / "small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(
        PvmlError, match=r"no config\.json, .*\. It hides the bundled model small: give"
    ):
        load("small")


@pytest.mark.parametrize("word", [None, 5, [], b"gpt2"])
def test_what_is_no_name_is_refused(word: Any) -> None:
    """Anything but a text or a path, and a text that no file can be called."""
    with pytest.raises(PvmlError, match="MODEL must be a name or a path, got"):
        _word(word)
    for long in ("x" * 5000, "a/" * 3000 + "b"):
        with pytest.raises(PvmlError, match=r"is longer than a file's name can be") as refusal:
            load(long)
        assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_what_is_there_and_is_no_file_is_told(
    run: tuple[RunDir, Transformer], tmp_path: Path, name: str
) -> None:
    """A pipe, a folder or a link to nothing is never taken for a file that is not there."""
    tiny_gpt2().save_pretrained(tmp_path / "theirs")
    for place in (run[0].path / name, tmp_path / "theirs" / name):
        place.unlink(missing_ok=True)
        place.symlink_to("nowhere")
        with pytest.raises(PvmlError, match=rf"{name} "):
            load(place.parent)
        place.unlink()
        os.mkfifo(place)
        with pytest.raises(PvmlError, match=rf"{name} "):
            load(place.parent)


@pytest.mark.parametrize("name", ["gpt3", "", "no/such/folder", "gpt2\0", "runs/x", "a/b.pt"])
def test_an_unknown_model_is_told_what_there_is(name: str) -> None:
    """The error lists every kind of MODEL."""
    with pytest.raises(PvmlError, match=r"MODEL .*run directory.*Hugging Face GPT-2.*distilgpt2"):
        load(name)


def test_a_misspelt_model_is_recognised(
    run: tuple[RunDir, Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name one letter off gets a suggestion; a run's is told as it was meant."""
    monkeypatch.chdir(run[0].path.parent.parent)

    with pytest.raises(PvmlError, match=r"did you mean gpt2-medium\?"):
        load("gpt2-medum")
    for wrong, meant in (("smal", "small"), ("runs/smal", "runs/small")):
        with pytest.raises(PvmlError, match=rf"did you mean {meant}\?"):
            load(wrong)


def test_the_file_latest_is_no_model(run: tuple[RunDir, Transformer]) -> None:
    """What only names the last step says so, and what to give."""
    folder = run[0].path
    with pytest.raises(PvmlError, match=rf"the last: give the run, {folder}, .*checkpoints/step-N"):
        load(folder / "checkpoints" / "latest")


def test_a_tokenizer_may_be_a_path(
    run: tuple[RunDir, Transformer], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """A tokenizer.json is read; what is no tokenizer is refused, and not only when it is used."""
    tokenizer.save(tmp_path / "words.json")
    for path in (tmp_path / "words.json", str(tmp_path / "words.json")):
        assert load(run[0].path, tokenizer=path).tokenizer.d_vocab == tokenizer.d_vocab
    with pytest.raises(PvmlError, match=r"none\.json is missing"):
        load(run[0].path, tokenizer=tmp_path / "none.json")
    for wrong in (3, {"a": 1}, str.split):
        with pytest.raises(PvmlError, match="tokenizer must be the path of a tokenizer.json, or a"):
            _given(wrong)  # what load asks; load itself is checked by its annotations here


def test_a_run_that_is_being_made_is_not_suggested(
    run: tuple[RunDir, Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden folder, which a killed import may leave, is nothing that anybody means."""
    monkeypatch.chdir(run[0].path.parent.parent)
    run[0].path.rename(run[0].path.with_name(".small.part-28050"))

    with pytest.raises(PvmlError) as refusal:
        load(".small.part")
    assert "did you mean" not in str(refusal.value)


def test_a_run_is_found_by_its_name(
    run: tuple[RunDir, Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NAME is runs/NAME, its checkpoints too; a folder here goes before it, and it before GPT-2."""
    folder = run[0].path.parent.parent
    monkeypatch.chdir(folder)
    step = run[0].checkpoints()[-1]
    assert load("small").source == "the run in runs/small"
    found = load(f"small/checkpoints/step-{step}")
    assert found.source == f"step {step} of the run in {folder}/runs/small"

    (folder / "runs" / "small").rename(folder / "runs" / "gpt2")
    assert load("gpt2").source == "the run in runs/gpt2"
    (folder / "gpt2").mkdir()
    with pytest.raises(PvmlError, match="gpt2 is neither a run directory nor"):
        load("gpt2")
