"""Files that are damaged or meant to harm: told by name, nothing executed, nothing allocated."""

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import save_file

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.loading import load
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2

CFG = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=17, d_vocab=260)
FORMS = ["hugging face", "hugging face bin", "seeds", "nanogpt", "lens", "lens safetensors"]
PICKLES = ["hugging face bin", "seeds", "nanogpt", "lens"]


class Form:
    """A small model's folder: the file of its weights, and the state dict in it."""

    def __init__(self, folder: Path, weights: str, state: dict[str, Any], settings: Any):
        self.folder, self.weights, self.state = folder, folder / weights, state
        if settings is not None:
            (folder / "config.json").write_text(json.dumps(settings))
        self.put(state)

    def put(self, state: Any) -> None:
        if self.weights.suffix == ".safetensors":
            save_file(state, self.weights)
        else:
            t.save(self.inside(state), self.weights)

    def inside(self, state: Any) -> Any:
        if self.weights.name != "ckpt.pt":
            return state
        sizes = {"n_layer": 1, "n_head": 3, "n_embd": 12, "block_size": 17, "vocab_size": 260}
        return {"model": state, "model_args": {**sizes, "bias": True, "dropout": 0.0}}


@pytest.fixture
def form(tmp_path: Path, tokenizer: Tokenizer) -> Callable[[str], Form]:
    def make(name: str) -> Form:
        tokenizer.save(tmp_path / "tokenizer.json")
        ours = {n: x.detach().clone() for n, x in Transformer(CFG, seed=1).state_dict().items()}
        ours = {name: x.contiguous() for name, x in ours.items()}
        if name == "seeds":
            # the seeds' form has GPT-2's vocabulary
            cfg = {**CFG.to_dict(), "d_model": 2, "n_heads": 1, "d_head": 2, "d_vocab": 50257}
            state = dict(Transformer(Config.from_dict(cfg), seed=1).state_dict())
            return Form(tmp_path, "model.pt", state, {"args": {}, "model": cfg})
        if name.startswith("lens"):
            file = "model.safetensors" if name.endswith("safetensors") else "model.pt"
            return Form(tmp_path, file, ours, CFG.to_dict())
        theirs = tiny_gpt2(d_model=12, n_heads=3, n_layers=1, d_vocab=260, d_mlp=48)
        state = {n: x.clone() for n, x in theirs.state_dict().items() if n != "lm_head.weight"}
        if name == "nanogpt":
            linear = {
                n: x.T.contiguous() if ".c_" in n and x.ndim == 2 else x for n, x in state.items()
            }
            linear["lm_head.weight"] = linear["transformer.wte.weight"]
            return Form(tmp_path, "ckpt.pt", linear, None)
        file = "pytorch_model.bin" if name.endswith("bin") else "model.safetensors"
        return Form(tmp_path, file, state, theirs.config.to_dict())

    return make


@pytest.mark.parametrize("name", FORMS)
def test_each_form_loads_unharmed(form: Any, name: str) -> None:
    """What the other tests damage is a good model at first."""
    loaded = load(form(name).folder)

    assert loaded.model.cfg.n_layers == 1 and len(loaded.report.rows) == 22


class Payload:
    """Unpickling it would make a file."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Any:
        return (Path.touch, (self.victim,))


@pytest.mark.parametrize("where", ["value", "beside"])
@pytest.mark.parametrize("name", PICKLES)
def test_code_in_a_pickle_is_never_run(form: Any, tmp_path: Path, name: str, where: str) -> None:
    """Code in place of a tensor, or in an entry that nobody needs, is refused and does not run."""
    model, victim = form(name), tmp_path / "executed"
    if where == "value":
        model.put({**model.state, "blocks.0.attn.mask": Payload(victim)})
    else:
        content = model.inside(model.state)
        t.save({**content, "optimizer": Payload(victim)}, model.weights)

    with pytest.raises(PvmlError, match=rf"{model.weights.name} .*run code"):
        load(model.folder)
    assert not victim.exists()


@pytest.mark.parametrize("name", PICKLES)
def test_code_in_an_old_pickle_is_never_run(form: Any, tmp_path: Path, name: str) -> None:
    """Nor is it in a plain pickle, or in torch's form from before its archives."""
    model, victim = form(name), tmp_path / "executed"
    content = {"wte.weight": Payload(victim)}
    model.weights.write_bytes(pickle.dumps(content))
    with pytest.raises(PvmlError, match=model.weights.name):
        load(model.folder)
    t.save(content, model.weights, _use_new_zipfile_serialization=False)
    with pytest.raises(PvmlError, match=model.weights.name):
        load(model.folder)
    assert not victim.exists()


@pytest.mark.parametrize("name", PICKLES)
def test_an_old_archive_is_read(form: Any, name: str) -> None:
    """torch's form from before its archives cannot be mapped, and loads all the same."""
    model = form(name)
    expected = load(model.folder).model.state_dict()
    t.save(model.inside(model.state), model.weights, _use_new_zipfile_serialization=False)

    found = load(model.folder).model.state_dict()
    assert all(t.equal(found[key], expected[key]) for key in expected)


def a_tensor_that_is_none(kind: str, shape: t.Size) -> t.Tensor:
    if kind == "many numbers out of one":
        return t.zeros(1).expand(shape)
    if kind == "sparse":
        return t.ones(shape).to_sparse()
    if kind == "no numbers at all":
        return t.empty(shape, device="meta")
    return t.zeros(shape, dtype=t.complex64 if kind == "complex" else t.int32)


@pytest.mark.parametrize(
    "kind",
    ["many numbers out of one", "sparse", "no numbers at all", "complex", "whole numbers"],
)
@pytest.mark.parametrize("name", ["hugging face bin", "seeds"])
def test_tensors_that_are_none_are_named(form: Any, name: str, kind: str) -> None:
    """What claims more numbers than it holds, or is of another kind, is named, and not copied."""
    model = form(name)
    key = next(key for key in model.state if "W_K" in key or "c_fc.weight" in key)
    x = a_tensor_that_is_none(kind, model.state[key].shape)
    model.put({**model.state, key: x})
    bare = key.removeprefix("transformer.")

    with pytest.raises(PvmlError, match=rf"{model.weights.name}.* {bare} "):
        load(model.folder)


@pytest.mark.parametrize("name", PICKLES)
def test_compressed_archives_are_refused(form: Any, name: str) -> None:
    """torch compresses nothing: an archive that would grow when it is read is not opened."""
    model = form(name)
    with zipfile.ZipFile(model.weights) as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(model.weights, "w", zipfile.ZIP_DEFLATED) as bomb:
        for file, content in entries.items():
            bomb.writestr(file, content)
        bomb.writestr("archive/data/zeros", bytes(1 << 20))

    with pytest.raises(
        PvmlError, match=rf"{model.weights.name} .*is compressed, or longer than the file"
    ):
        load(model.folder)


def test_a_pipe_is_told_as_such(form: Any) -> None:
    """In the place of the weights: named, and not read."""
    model = form("hugging face")
    model.weights.unlink()
    os.mkfifo(model.weights)

    with pytest.raises(PvmlError, match="model.safetensors is there, and is no file that can be"):
        load(model.folder)


def with_header(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


F32 = {"dtype": "F32", "shape": [12]}


@pytest.mark.parametrize(
    "content",
    [
        with_header({}, length=1 << 62),
        with_header({}, length=(1 << 64) - 1),
        with_header(b"["),
        with_header(b"[" * 100_000),
        with_header(b'{"a":' * 100_000),
        with_header({"ln_f.bias": {**F32, "data_offsets": [0, 1 << 60]}}, b"\0" * 48),
        with_header({"ln_f.bias": {**F32, "data_offsets": [-48, 0]}}, b"\0" * 48),
        with_header({"ln_f.bias": {**F32, "data_offsets": [48, 0]}}, b"\0" * 48),
        with_header(
            {"a": {**F32, "shape": [1 << 62, 1 << 62], "data_offsets": [0, 48]}}, b"\0" * 48
        ),
        with_header(
            {"a": {**F32, "data_offsets": [0, 48]}, "b": {**F32, "data_offsets": [0, 48]}},
            b"\0" * 48,
        ),
        with_header({"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 1]}}, b"\0"),
        with_header({"ln_f.bias": {**F32, "data_offsets": [0, 48]}}, b"\0" * 96),
    ],
    ids=lambda content: repr(content[:24]),
)
def test_headers_that_lie_are_refused(form: Any, content: bytes) -> None:
    """Sizes and offsets past the file, overlaps, nesting and unknown types: damaged, by name."""
    model = form("hugging face")
    model.weights.write_bytes(content)

    with pytest.raises(PvmlError, match=r"model\.safetensors is missing, damaged or cut short"):
        load(model.folder)


@pytest.mark.parametrize("file", ["config.json", "weights"])
@pytest.mark.parametrize("name", ["hugging face", "hugging face bin", "seeds", "lens"])
def test_a_pipe_is_not_read(form: Any, name: str, file: str) -> None:
    """A pipe or a device in a file's place would be read for ever: it is no file."""
    model = form(name)
    path = model.weights if file == "weights" else model.folder / file
    path.unlink()
    os.mkfifo(path)
    no_file = rf"{path.name} is there, and is no file"
    told = no_file if file == "config.json" else rf"{path.name}|there: none"

    with pytest.raises(PvmlError, match=told):
        load(model.folder)


@pytest.mark.parametrize("target", ["model", "nowhere", "/dev/zero"])
def test_links_that_lead_to_no_file_are_refused(form: Any, target: str) -> None:
    """A link to itself, to nothing or to a device is no file; one to a file is read."""
    model = form("hugging face bin")
    kept = model.folder / "kept"
    model.weights.rename(kept)
    link = Path(model.weights.name) if target == "model" else Path(target)
    model.weights.symlink_to(link)
    with pytest.raises(PvmlError, match="is there, and is no file that can be read"):
        load(model.folder)

    model.weights.unlink()
    model.weights.symlink_to(kept)
    assert load(model.folder).model.cfg.d_model == 12


@pytest.mark.parametrize(
    "text",
    [b"[" * 200_000, b'{"a":' * 200_000, b'{"n": ' + b"9" * 100_000 + b"}", b"\xff\xfe", b"[]"],
    ids=["lists", "objects", "digits", "bytes", "no object"],
)
@pytest.mark.parametrize("name", ["hugging face", "seeds", "lens"])
def test_json_that_is_a_trap_is_refused(form: Any, name: str, text: bytes) -> None:
    """Nesting, endless digits, other bytes: the file is damaged, and nothing overflows."""
    model = form(name)
    (model.folder / "config.json").write_bytes(text)

    with pytest.raises(PvmlError, match=r"config\.json is (missing, )?damaged"):
        load(model.folder)


def test_json_without_end_is_not_read(form: Any) -> None:
    """A config.json of gigabytes, here a hole in the disk, is refused by its size."""
    model = form("hugging face")
    with (model.folder / "config.json").open("wb") as file:
        file.truncate(1 << 33)

    with pytest.raises(PvmlError, match=r"config\.json .*more than 67,108,864 bytes"):
        load(model.folder)


HUGE = {"d_model": 2**31 - 1, "n_heads": 1, "d_head": 2**31 - 1, "d_mlp": 2**31 - 1}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("hugging face", {"n_embd": 2**31 - 1, "n_head": 1}),
        ("hugging face", {"vocab_size": 2**31 - 1}),
        ("hugging face", {"n_layer": 10_000}),
        ("lens", {"n_layers": 10_000}),
        ("hugging face", {"n_layer": 10**30}),
        ("hugging face", {"n_positions": -1}),
        ("lens", HUGE),
        ("lens", {"d_vocab": 2**31 - 1, "n_ctx": 2**31 - 1}),
        ("seeds", {"model": {**CFG.to_dict(), **HUGE}}),
        ("seeds", {"model": {**CFG.to_dict(), "n_layers": 10_000}}),
    ],
)
def test_sizes_that_the_file_does_not_hold_cost_nothing(form: Any, name: str, changes: Any) -> None:
    """A config that claims terabytes beside a small file is refused before memory is asked for."""
    model = form(name)
    path = model.folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    with pytest.raises(PvmlError):
        load(model.folder)


@pytest.mark.parametrize("shard", ["../x.bin", "/etc/passwd", "a/b.bin", "..", "x\\y.bin", ""])
def test_an_index_never_leaves_its_folder(form: Any, shard: str) -> None:
    """A shard elsewhere, up, down or absolute, is refused before anything is read."""
    model = form("hugging face bin")
    model.weights.unlink()
    index = {"weight_map": {"wte.weight": shard}}
    (model.folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))

    with pytest.raises(PvmlError, match=r"index\.json (points out of|names the shard)"):
        load(model.folder)


def test_a_tensor_in_two_shards_is_refused(form: Any) -> None:
    """Two shards with one name: which counts is not ours to guess."""
    model = form("hugging face")
    model.weights.unlink()
    for shard in ("a", "b"):
        save_file(model.state, model.folder / f"{shard}.safetensors")
    places = {key: f"{'ab'[i % 2]}.safetensors" for i, key in enumerate(model.state)}
    (model.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    with pytest.raises(PvmlError, match=r"wte\.weight.* in b\.safetensors and in another shard"):
        load(model.folder)


@pytest.mark.parametrize("name", FORMS)
def test_whatever_bytes_change_it_ends_in_a_message(form: Any, name: str) -> None:
    """Bytes overwritten, cut off or put in anywhere: a model of that shape or a PvmlError."""
    model, draw = form(name), random.Random(0)
    whole = model.weights.read_bytes()
    refused = 0
    for _ in range(15):
        harmed = bytearray(whole)
        # most of a file is numbers: what tells how to read them is at its ends
        place = draw.choice(
            [draw.randrange(len(whole)), draw.randrange(900), -draw.randrange(1, 900)]
        )
        if draw.random() < 0.3:
            del harmed[place : place + draw.randrange(1, 2000)]
        else:
            harmed[place : place + 8] = draw.randbytes(8)
        model.weights.write_bytes(harmed)
        try:
            load(model.folder)
        except PvmlError as error:
            assert str(model.folder) in str(error)
            refused += 1
    assert refused > 3


def test_a_script_in_an_archive_is_refused(form: Any) -> None:
    """TorchScript holds code by design: it is told as a file that does not hold tensors."""
    model = form("lens")
    with zipfile.ZipFile(model.weights) as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as script:
        for file, content in entries.items():
            script.writestr(file, content)
        script.writestr("model/constants.pkl", pickle.dumps(()))
    model.weights.write_bytes(buffer.getvalue())

    with pytest.raises(PvmlError, match=r"model\.pt "):
        load(model.folder)
