"""MODEL: run directories, Hugging Face folders and hub names become a model and its tokenizer."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import load_file, save_file
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_dtype
from pvml.errors import PvmlError
from pvml.loading import load, load_hugging_face
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2
from pvml.runs.format import RunDir


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat"], 263)


@pytest.fixture(scope="module")
def theirs(tokenizer: Tokenizer) -> Any:
    return tiny_gpt2(seed=2, d_vocab=tokenizer.d_vocab)


@pytest.fixture
def folder(tmp_path: Path, theirs: Any, tokenizer: Tokenizer) -> Path:
    """A folder as save_pretrained writes it, with a tokenizer."""
    theirs.save_pretrained(tmp_path / "tiny")
    tokenizer.save(tmp_path / "tiny" / "tokenizer.json")
    return tmp_path / "tiny"


@pytest.fixture
def tokens(tokenizer: Tokenizer) -> Tensor:
    generator = t.Generator().manual_seed(5)
    return t.randint(0, tokenizer.d_vocab, (2, 13), generator=generator)


def require_same_logits(model: Transformer, theirs: Any, tokens: Tensor) -> None:
    with t.no_grad():
        ours, expected = model(tokens), theirs(tokens).logits
    t.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def as_pickle(folder: Path, content: object) -> None:
    """The folder's weights as the older form, with this content."""
    (folder / "model.safetensors").unlink()
    t.save(content, folder / "pytorch_model.bin")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_gives_the_same_logits(folder: Path, theirs: Any, tokens: Tensor) -> None:
    """A random GPT-2 saved by Hugging Face agrees in float64 to 1e-12, tokenizer included."""
    loaded = load(folder)
    model, tokenizer = loaded

    require_same_logits(model, theirs, tokens)
    assert tokenizer.encode("the cat") == Tokenizer.load(folder / "tokenizer.json").encode(
        "the cat"
    )
    assert (loaded.name, loaded.source) == ("tiny", f"the GPT-2 in {folder}")
    assert not model.training


def test_the_weights_keep_their_fast_layout(folder: Path) -> None:
    """W_Q is d_model-major after loading, as after construction: the heads are one matrix."""
    fresh = Transformer(load(folder).model.cfg)

    for name, parameter in load(folder).model.named_parameters():
        assert parameter.stride() == fresh.get_parameter(name).stride()


def test_loading_draws_nothing(folder: Path) -> None:
    """torch's global random state is not moved by loading."""
    before = t.get_rng_state()

    load(folder)

    assert t.equal(t.get_rng_state(), before)


@pytest.mark.parametrize("dtype", ["float32", t.float16, "bfloat16"])
def test_a_dtype_can_be_asked_for(folder: Path, dtype: Any) -> None:
    """dtype, as a word or torch's own, is what the model computes in."""
    model, _ = load(folder, device="cpu", dtype=dtype)

    assert model.dtype == pick_dtype(dtype)
    assert model.device == t.device("cpu")


def test_a_wrong_dtype_or_device_is_refused(folder: Path) -> None:
    """Words that name no device or dtype are errors before anything is read."""
    with pytest.raises(PvmlError, match="dtype must be one of"):
        load(folder, dtype="int8")
    with pytest.raises(PvmlError, match="device 'warp' is not a device"):
        load(folder, device="warp")


def test_a_pickle_gives_the_same_logits(folder: Path, theirs: Any, tokens: Tensor) -> None:
    """pytorch_model.bin is read too, for its tensors."""
    as_pickle(folder, theirs.state_dict())

    require_same_logits(load(folder).model, theirs, tokens)


@pytest.mark.parametrize("kind", ["safetensors", "pickle"])
def test_shards_give_the_same_logits(folder: Path, theirs: Any, tokens: Tensor, kind: str) -> None:
    """Weights in several files with an index are put together."""
    whole, index = "model.safetensors", "model.safetensors.index.json"
    state = load_file(folder / whole)
    (folder / whole).unlink()
    weight_map = {name: f"part-{place % 3}.safetensors" for place, name in enumerate(state)}
    if kind == "pickle":
        index = "pytorch_model.bin.index.json"
        weight_map = {name: file.replace("safetensors", "bin") for name, file in weight_map.items()}
    for shard in set(weight_map.values()):
        part = {name: state[name].clone() for name in state if weight_map[name] == shard}
        if kind == "pickle":
            t.save(part, folder / shard)
        else:
            save_file(part, folder / shard)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    require_same_logits(load(folder).model, theirs, tokens)
    next(folder.glob("part-1*")).unlink()
    with pytest.raises(PvmlError, match=rf"{index} names the shard part-1.*, which is missing"):
        load(folder)


@pytest.mark.parametrize(
    ("weight_map", "fault"),
    [
        ({"wte.weight": "../secret.safetensors"}, "points out of its folder"),
        ({}, "has no weight_map"),
        ([], "has no weight_map"),
    ],
)
def test_a_bad_index_is_refused(folder: Path, weight_map: Any, fault: str) -> None:
    """An index that names no shard, or a file elsewhere, is refused before anything is read."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(PvmlError, match=fault):
        load(folder)


class Payload:
    """What a malicious pickle holds: unpickling it would make a file."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Any:
        return (Path.touch, (self.victim,))


def test_a_malicious_pickle_is_not_executed(folder: Path, tmp_path: Path) -> None:
    """Code in a pickle is refused with a message, and does not run."""
    victim = tmp_path / "executed"
    as_pickle(folder, {"wte.weight": Payload(victim)})

    with pytest.raises(PvmlError, match=r"pytorch_model\.bin .*run code"):
        load(folder)
    assert not victim.exists()


@pytest.mark.parametrize(
    "content", [[1, 2], {"model": {"wte.weight": t.zeros(1)}}, {"wte.weight": 3}, {3: t.zeros(1)}]
)
def test_a_foreign_pickle_is_refused(folder: Path, content: Any) -> None:
    """A pickle of something else than tensors by name is refused by the file's name."""
    as_pickle(folder, content)

    with pytest.raises(PvmlError, match=r"pytorch_model\.bin does not hold a state dict"):
        load(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "config.json"])
@pytest.mark.parametrize("left", [0, 5, 0.6])
def test_a_truncated_file_is_named(folder: Path, theirs: Any, file: str, left: float) -> None:
    """A file cut short, wherever it is cut, is an error that names the file."""
    if file == "pytorch_model.bin":
        as_pickle(folder, theirs.state_dict())
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: int(left * len(whole)) if left < 1 else int(left)])

    with pytest.raises(PvmlError, match=rf"{file} is (missing, )?damaged"):
        load(folder)


def test_a_plain_pickle_of_another_program_is_refused(folder: Path) -> None:
    """A pickle that torch did not write ends in a message, not in a traceback."""
    as_pickle(folder, {})
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"wte.weight": [1.0]}, protocol=2))

    with pytest.raises(PvmlError, match=r"pytorch_model\.bin"):
        load(folder)


def test_weights_that_are_no_floats_are_refused(folder: Path, theirs: Any) -> None:
    """Whole numbers in every tensor are no weights to compute with."""
    as_pickle(folder, {name: x.to(t.int8) for name, x in theirs.state_dict().items()})

    with pytest.raises(
        PvmlError, match=r"bin: .*no numbers to compute with: .*wte\.weight \(int8\)"
    ):
        load(folder)


def test_faults_name_the_file(folder: Path) -> None:
    """Missing and wrongly shaped tensors are told with the file they should be in."""
    state = load_file(folder / "model.safetensors")
    state.pop("transformer.ln_f.bias")
    save_file(state, folder / "model.safetensors")

    with pytest.raises(PvmlError, match=r"tiny/model\.safetensors: .* missing: ln_f\.bias$"):
        load(folder)


def test_a_config_that_cannot_be_expressed_names_the_file(folder: Path) -> None:
    """A foreign activation is refused with field, value and file."""
    edit_config(folder, activation_function="relu")

    with pytest.raises(PvmlError, match=r"tiny/config\.json: .*activation_function is 'relu'"):
        load(folder)


def test_another_number_of_heads_is_refused_where_it_can_be_told(folder: Path) -> None:
    """n_head 4 does not divide d_model 21: the error names both."""
    edit_config(folder, n_head=4)

    with pytest.raises(PvmlError, match="d_model 21 is not a multiple of n_heads 4"):
        load(folder)


def test_a_folder_without_a_tokenizer_takes_gpt2s(tmp_path: Path) -> None:
    """Where the vocabulary has GPT-2's size, its tokenizer is the one that fits."""
    tiny_gpt2(d_model=2, n_heads=1, n_layers=1, n_ctx=3, d_mlp=2, d_vocab=50257).save_pretrained(
        tmp_path
    )

    assert load(tmp_path).tokenizer.name == "gpt2"


def test_a_folder_whose_tokenizer_is_lost_says_so(
    folder: Path, theirs: Any, tokens: Tensor
) -> None:
    """A smaller vocabulary without a tokenizer.json is an error; the model alone still loads."""
    (folder / "tokenizer.json").unlink()

    with pytest.raises(PvmlError, match=r"no tokenizer\.json.* 50257 ids, more than .* 260"):
        load(folder)
    require_same_logits(load_hugging_face(folder), theirs, tokens)


def test_a_folder_without_weights_says_what_is_expected(folder: Path) -> None:
    """No weights at all: the error names the files that could hold them."""
    (folder / "model.safetensors").unlink()

    with pytest.raises(PvmlError, match=r"no weights: expected model\.safetensors or pytorch_mod"):
        load(folder)


def test_a_folder_that_is_nothing_says_what_is_missing(tmp_path: Path) -> None:
    """A folder without a config.json is neither a run nor a GPT-2."""
    with pytest.raises(PvmlError, match=r"neither a run directory nor .* no config\.json"):
        load(tmp_path)


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> tuple[RunDir, Transformer]:
    """A run directory with one checkpoint, and its model."""
    cfg = Config(d_model=11, n_heads=1, n_layers=1, n_ctx=7, d_vocab=tokenizer.d_vocab)
    model = Transformer(cfg, seed=3)
    run = RunDir.create(tmp_path / "runs" / "small", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, model, {})
    return run, model


def test_a_run_directory_is_loaded(run: tuple[RunDir, Transformer], tokens: Tensor) -> None:
    """A run's model gives the logits it had, with the run's tokenizer, on the dtype asked for."""
    run_dir, model = run
    loaded = load(run_dir.path)

    assert t.equal(loaded.model(tokens[:, :7]), model.eval()(tokens[:, :7]))
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


def test_only_a_run_has_steps(folder: Path) -> None:
    """A step of anything else is refused."""
    for model in (folder, "gpt2"):
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
    edit_config(run.path, model={**cfg.to_dict(), "n_heads": 4, "d_head": 3})

    with pytest.raises(
        PvmlError, match=r"blocks\.0\.attn\.W_Q \(3, 12, 4\) instead of \(4, 12, 3\)"
    ):
        load(run.path)


def test_a_tied_run_stays_tied(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Saved, loaded and trained for a step, W_U is still W_E transposed: one table."""
    cfg = Config(
        d_model=12, n_heads=3, n_layers=1, n_ctx=7, d_vocab=tokenizer.d_vocab, tie_embeddings=True
    )
    run = RunDir.create(tmp_path / "tied", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, Transformer(cfg, seed=1), {})
    model, _ = load(run.path)
    before = model.embed.W_E.detach().clone()

    model(t.arange(7)[None]).square().sum().backward()
    t.optim.SGD(model.parameters(), lr=0.1).step()

    assert t.equal(model.unembed.W_U, model.embed.W_E.T)
    assert not t.equal(model.embed.W_E, before)


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
