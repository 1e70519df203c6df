"""Any form becomes a run directory: whole or not at all, the same model, read by every command."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.bundled import bundled_folder
from pvml.errors import RunDirError
from pvml.loading import Loaded, import_model, load
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2
from pvml.runs.facts import read_facts
from pvml.runs.format import RunDir
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler


def same(a: Transformer, b: Transformer) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(t.equal(ours[key], theirs[key]) for key in ours)


@pytest.fixture(params=["hugging face", "nanogpt", "lens", "bundled", "seeds"])
def loaded(request: Any, tmp_path: Path, nano_folder: Path, make_model: Any, tokenizer: Any) -> Any:
    """A model in each form."""
    folder = tmp_path / "source"
    folder.mkdir()
    tokenizer.save(folder / "tokenizer.json")
    match request.param:
        case "hugging face":
            tiny_gpt2(d_vocab=260).save_pretrained(folder)
            return load(folder)
        case "nanogpt":
            return load(nano_folder)
        case "lens":
            t.save(make_model(d_vocab=260).state_dict(), folder / "model.pt")
            return load(folder / "model.pt")
        case "bundled":
            return load(bundled_folder("attn-1l"))
    cfg = {"d_model": 2, "n_heads": 1, "n_layers": 1, "n_ctx": 9, "d_vocab": 50257, "debug": False}
    model = make_model(**{key: x for key, x in cfg.items() if key != "debug"}, d_head=2, d_mlp=8)
    state = {**model.state_dict(), "blocks.0.attn.IGNORE": t.tensor(-t.inf)}
    t.save(state, folder / "model.pt")
    (folder / "config.json").write_text(json.dumps({"args": {"lr": 1e-3}, "model": cfg}))
    return load(folder, dtype="float64")


def test_the_run_is_the_same_model(loaded: Loaded, tmp_path: Path) -> None:
    """Weights bit for bit, shape, vocabulary: what was loaded is what the run gives."""
    run = import_model(loaded, tmp_path / "runs" / "new")
    again = load(run.path, dtype=loaded.model.dtype)

    assert same(again.model, loaded.model) and again.model.cfg == loaded.model.cfg
    assert again.tokenizer.to_json() == loaded.tokenizer.to_json()
    assert again.report.form == "a PvML run"


def test_it_is_sampled_at_once(loaded: Loaded, tmp_path: Path) -> None:
    """The run writes what the model it was made of writes."""
    import_model(loaded, tmp_path / "new")
    args = SamplingArgs(max_new_tokens=5, seed=1)
    texts = [
        Sampler(model, tokenizer).sample("the cat", args)
        for model, tokenizer in (loaded, load(tmp_path / "new", dtype=loaded.model.dtype))
    ]

    assert texts[0] == texts[1] and len(texts[0]) > len("the cat")


def test_it_is_a_finished_run(loaded: Loaded, tmp_path: Path) -> None:
    """Listings show it as finished, with its parameters; the summary holds the whole report."""
    run = import_model(loaded, tmp_path / "new")
    facts = read_facts(run.path)

    assert (facts.state, facts.status) == ("finished", "finished")
    assert facts.parameters == sum(x.numel() for x in loaded.model.parameters())
    imported = run.summary()["imported"]
    assert imported["source"] == loaded.source
    assert len(imported["rows"]) == len(loaded.model.state_dict())
    assert not run.has_checkpoint


def test_an_existing_name_is_refused(nano_folder: Path, tmp_path: Path) -> None:
    """A file, a folder, a run or a dangling link of that name is left as it is."""
    loaded = load(nano_folder)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    import_model(loaded, tmp_path / "run")

    for name in ("file", "folder", "link", "run"):
        with pytest.raises(RunDirError, match=rf"{name} exists already, and is left alone"):
            import_model(loaded, tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine" and not any((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_half_a_run_is_never_left(
    nano_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    """A full disk or Ctrl-C while the weights are written leaves nothing, hidden or not."""

    def fail(*given: Any) -> None:
        raise stop

    monkeypatch.setattr("pvml.loading.importing.save_weights", fail)
    with pytest.raises((RunDirError, KeyboardInterrupt)):
        import_model(load(nano_folder), tmp_path / "runs" / "new")
    assert list((tmp_path / "runs").iterdir()) == []


def test_how_weights_were_processed_is_kept(nano_folder: Path, tmp_path: Path) -> None:
    """A model that says it was rewritten says so in the run, too."""
    loaded = load(nano_folder)
    loaded.model.processing = ("fold_layer_norm",)
    run = import_model(loaded, tmp_path / "new")

    assert RunDir.open(run.path).load_model().processing == ("fold_layer_norm",)
    assert load(run.path).model.processing == ("fold_layer_norm",)
