"""Hugging Face's GPT-2 in a folder: the same logits from every kind of file, or every fault."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import load_file, save_file
from torch import Tensor

from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_dtype
from pvml.errors import PvmlError
from pvml.loading import load, load_hugging_face
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2


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

    with pytest.raises(
        PvmlError, match=r"no tokenizer\.json.* 50257 ids, more than .* 260.*--tokenizer"
    ):
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
