"""The models that come with the package, and a small one made in the same way."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch as t
from safetensors.torch import load_file

import pvml.bundled
from pvml.bundled import bundled_folder, bundled_models
from pvml.cli.flags import parse
from pvml.cli.train import TrainFlags
from pvml.loading import HUB_MODELS, load
from pvml.plots.curves import read_curves
from pvml.runs.facts import read_facts
from pvml.runs.format import RunDir
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.training.args import TrainingArgs

MOST_BYTES = 12_000_000


@pytest.fixture(params=[*bundled_models(), "tiny"])
def name(
    request: pytest.FixtureRequest,
    tiny_models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A bundled model's name, in an empty folder."""
    if request.param == "tiny":
        monkeypatch.setattr(pvml.bundled, "FOLDER", tiny_models)
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def test_the_models_fit_into_the_package() -> None:
    """All files under pvml/models together are at most 12 MB."""
    files = [file for file in pvml.bundled.FOLDER.rglob("*") if file.is_file()]

    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    assert not set(bundled_models()) & HUB_MODELS.keys()


def test_what_is_hidden_is_no_model(tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is being written has a hidden name, and is not listed; nor is a stray file."""
    monkeypatch.setattr(pvml.bundled, "FOLDER", tiny_models)
    hidden = tiny_models / ".half.part-1"
    hidden.mkdir()
    (hidden / "config.json").write_text("{}")

    assert bundled_models() == ["tiny"]


def test_it_loads(name: str) -> None:
    """Half precision on disk becomes finite float32, or the dtype asked for, number by number."""
    stored = load_file(bundled_folder(name) / "model.safetensors")
    loaded = load(name, device="cpu")

    kept = json.loads((bundled_folder(name) / "summary.json").read_text())["bundle"]["dtype"]
    assert {str(x.dtype) for x in stored.values()} == {f"torch.{kept}"}
    assert loaded.model.dtype == t.float32
    for key, x in loaded.model.state_dict().items():
        assert t.equal(x, stored[key].float())
        assert bool(x.isfinite().all())
    assert load(name, device="cpu", dtype=kept).model.dtype == stored["embed.W_E"].dtype
    assert (loaded.name, loaded.source) == (name, f"the bundled model {name}")


def test_its_vocabulary_fits(name: str) -> None:
    """The tokenizer has exactly the model's ids, and gives a text back."""
    model, tokenizer = load(name, device="cpu")
    text = "Once upon a time, Lily said: “Héllo!”\n"

    assert tokenizer.d_vocab == model.cfg.d_vocab
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_its_command_makes_such_a_model(name: str) -> None:
    """The command in its README is parsed to its very shape, recipe, corpus and vocabulary."""
    run = RunDir.open(bundled_folder(name))
    page = (run.path / "README.md").read_text()
    (line,) = re.findall(r"^    pvml train (.*)$", page, re.MULTILINE)
    flags = parse(TrainFlags, "train", shlex.split(line))

    assert flags.model.with_vocabulary(run.cfg.d_vocab) == run.cfg
    assert flags.training == TrainingArgs.from_dict(run.args)
    assert (flags.name, flags.data) == (name, run.data["source"])
    assert (flags.tokenizer, flags.limit) == (run.data["tokenizer"], run.data["limit"])
    assert flags.held_out == run.data["held_out"]


def test_its_grades_are_told(name: str) -> None:
    """The README has both grades of the summary, and rounding cost less than a thousandth."""
    folder = bundled_folder(name)
    bundle = json.loads((folder / "summary.json").read_text())["bundle"]
    trained, kept = (bundle["bits_per_byte"][dtype] for dtype in ("float32", bundle["dtype"]))
    page = (folder / "README.md").read_text()

    assert f"| {trained:.5f} |" in page
    assert f"| {kept:.5f} |" in page
    assert abs(kept - trained) < 0.001


def test_its_log_can_be_listed_and_drawn(name: str) -> None:
    """It is a finished run, with a loss and a time for each hundred steps and grades at the end."""
    folder = bundled_folder(name)
    facts, curves = read_facts(folder), read_curves(folder)

    assert (facts.name, facts.state) == (name, "finished")
    assert facts.steps == int(curves.epochs.steps[-1])
    assert bool(t.isfinite(t.tensor([*curves.loss, *curves.windows.minutes])).all())
    assert curves.final_bits_per_byte == facts.bits_per_byte
    assert len(curves.by_position) == curves.n_ctx - 1


def test_it_tells_nothing_of_the_house(name: str) -> None:
    """No file of it names an absolute path."""
    for file in ("config.json", "summary.json", "README.md"):
        text = (bundled_folder(name) / file).read_text()
        assert not re.search(r"[\s\"'=(]/\w+/", text)


def test_it_writes_text(name: str) -> None:
    """Greedily it goes on with whole characters, the same each time."""
    model, tokenizer = load(name, device="cpu")
    args = SamplingArgs(temperature=0.0, max_new_tokens=8)
    text = Sampler(model, tokenizer).sample("Once upon a time", args)

    assert text.startswith("Once upon a time")
    assert text == Sampler(model, tokenizer).sample("Once upon a time", args)


def test_its_heads_can_be_watched(name: str) -> None:
    """Every layer's attention pattern comes out, each row summing to 1; no MLP in attn models."""
    model, tokenizer = load(name, device="cpu")
    tokens = tokenizer.to_tokens("Once upon a time")[:, : model.cfg.n_ctx]
    with t.no_grad():
        _, cache = model.run_with_cache(tokens)

    for layer in range(model.cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.attn_pattern"]
        assert pattern.shape == (1, model.cfg.n_heads, tokens.shape[1], tokens.shape[1])
        t.testing.assert_close(pattern.sum(-1), t.ones(pattern.shape[:-1]))
    assert any("mlp" in key for key in cache) is not model.cfg.attn_only
    if name.startswith("attn-"):
        assert model.cfg.attn_only
        assert f"{model.cfg.n_layers}l" == name.removeprefix("attn-")
