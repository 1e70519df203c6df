"""MODEL from the Hugging Face hub: reached, out of reach, and remembered."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import HubUnavailable, PvmlError
from pvml.loading import HUB_MODELS, Loaded, load
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model cached from the hub, and no setting of the machine's own in the way."""
    import huggingface_hub.constants
    import huggingface_hub.file_download

    for module in (huggingface_hub.constants, huggingface_hub.file_download):
        if hasattr(module, "HF_HUB_CACHE"):
            monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(
    ("name", "answers", "reason"),
    [("gpt2", False, "refused"), ("distilgpt2", True, "no answer within 3 s|timed out")],
    ids=["refuses", "never answers"],
)
def test_an_unreachable_hub_is_reported(
    monkeypatch: pytest.MonkeyPatch, name: str, answers: bool, reason: str
) -> None:
    """A hub that refuses, or accepts and stays silent for 3 s, is told, with what to do."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if answers:
            server.listen(5)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        told = rf"model {name} .*({reason}).* give a run directory"
        with pytest.raises(HubUnavailable, match=told):
            load(name)


class Hub(BaseHTTPRequestHandler):
    """Enough of the hub to download files from a folder, under any model's name."""

    folder: Path
    has_names = True
    """Whether a file that is missing is told apart from a model that is."""
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.answer(with_content=False)

    def do_GET(self) -> None:
        self.answer(with_content=True)

    def answer(self, with_content: bool) -> None:
        _, _, rest = self.path.partition("/resolve/")
        file = self.folder / rest.partition("/")[2]
        if self.path.startswith("/api/models/") and "/tree/" in self.path:
            paths = [path for path in self.folder.rglob("*") if path.is_file()]
            tree = [
                {"type": "file", "path": str(path.relative_to(self.folder)), "size": 1, "oid": "0"}
                for path in paths
            ]
            self.give(json.dumps(tree).encode(), with_content)
        elif rest and file.is_file():
            content = file.read_bytes()
            self.give(content, with_content, ETag=f'"{sha256(content).hexdigest()}"')
        elif rest and self.has_names:
            self.give(b"", with_content, 404, **{"X-Error-Code": "EntryNotFound"})
        else:
            self.send_error(404)

    def give(self, content: bytes, with_content: bool, code: int = 200, **headers: str) -> None:
        self.asked.append(self.path)
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("X-Repo-Commit", "0123456789" * 4)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub_serving(folder: Path, *, has_names: bool = True) -> Iterator[str]:
    handler = type("HubOf", (Hub,), {"folder": folder, "has_names": has_names})
    Hub.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("empty_cache")
def test_a_model_from_the_hub_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """gpt2 is downloaded once; from then on the network is not asked."""
    theirs = tiny_gpt2(d_model=2, n_heads=1, n_layers=1, n_ctx=3, d_mlp=2, d_vocab=50257)
    theirs.save_pretrained(tmp_path / "served")
    with hub_serving(tmp_path / "served") as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        first = load("gpt2")
    again = load("gpt2-small")  # nobody serves any more, and notebooks call it so

    tokens = t.tensor([[50256, 464, 3797]])
    with t.no_grad():
        expected = theirs(tokens).logits
    t.testing.assert_close(first.model(tokens), expected, rtol=0, atol=1e-5)
    assert t.equal(first.model(tokens), again.model(tokens))
    assert (again.name, again.tokenizer.name) == ("gpt2", "gpt2")
    assert again.source == "openai-community/gpt2 on the Hugging Face hub"


@pytest.mark.usefixtures("empty_cache")
def test_a_hub_without_the_model_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server that answers and does not have the files ends in a message, too."""
    with hub_serving(tmp_path, has_names=False) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(HubUnavailable, match=r"openai-community/gpt2-xl could not be read"):
            load("gpt2-xl")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: None) -> Iterator[Path]:
    """A folder that a hub serves under any model's name, while the test lasts."""
    folder = tmp_path / "served"
    folder.mkdir()
    with hub_serving(folder) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield folder


def save_seeds_form(folder: Path) -> Transformer:
    """A run as the seeds publish one, with their attention's buffers."""
    sizes = {"d_model": 2, "n_heads": 1, "d_head": 2, "d_mlp": 8, "n_layers": 2, "n_ctx": 9}
    cfg = {**sizes, "d_vocab": 50257, "layer_norm_eps": 1e-5, "init_range": 0.02, "debug": False}
    model = Transformer(Config.from_dict(cfg), seed=3)
    buffers = {f"blocks.{i}.attn.IGNORE": t.tensor(-t.inf) for i in range(2)}
    folder.mkdir(exist_ok=True, parents=True)
    t.save({**model.state_dict(), **buffers}, folder / "model.pt")
    args = {"lr": 1e-3, "batch_size": 32, "name": "seeds"}
    (folder / "config.json").write_text(json.dumps({"args": args, "model": cfg}))
    return model.eval()


@pytest.mark.parametrize("word", ["d0mzw/pvml-tinystories", "hf://d0mzw/pvml-tinystories/runs/one"])
def test_the_seeds_form_comes_from_the_hub(
    served: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """owner/name, or a folder in it, in the seeds' form; once it is cached the hub is not asked."""
    model = save_seeds_form(served / "runs" / "one" if "one" in word else served)
    loaded = load(word)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = load(word)

    tokens = t.tensor([[50256, 464, 3797]])
    assert t.equal(loaded.model(tokens), model(tokens))
    assert t.equal(again.model(tokens), model(tokens))
    assert (loaded.name, loaded.tokenizer.name) == (word.rpartition("/")[2], "gpt2")
    assert loaded.source == f"{word} on the Hugging Face hub"
    assert loaded.report.form == "a run in the seeds' form"
    assert set(loaded.report.ignored) == {"blocks.0.attn.IGNORE", "blocks.1.attn.IGNORE"}


def test_a_tokenizer_beside_the_seeds_form_comes_along(tmp_path: Path, tokenizer: Any) -> None:
    """It goes before GPT-2's; and one with too many ids is told as the folder's own."""
    save_seeds_form(tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert load(tmp_path).tokenizer.d_vocab == tokenizer.d_vocab
    model = Transformer(Config(d_model=2, n_heads=1, n_layers=0, n_ctx=9, d_vocab=7), seed=0)
    t.save(model.state_dict(), tmp_path / "model.pt")
    says = {"args": {"lr": 1e-3}, "model": model.cfg.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(says))
    with pytest.raises(PvmlError, match="its tokenizer.json has .* ids, more than the model's 7"):
        load(tmp_path)


@pytest.mark.parametrize("form", ["whole", "shards", "pickle"])
def test_any_gpt2_comes_from_the_hub(
    served: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any, form: str
) -> None:
    """owner/name in one file, in shards or a pickle, with its own tokenizer; and then cached."""
    theirs = tiny_gpt2(d_vocab=260)
    theirs.save_pretrained(served, max_shard_size="8KB" if form == "shards" else "1GB")
    if form == "pickle":
        (served / "model.safetensors").unlink()
        t.save(theirs.state_dict(), served / "pytorch_model.bin")
    tokenizer.save(served / "tokenizer.json")
    loaded = load("some-one/tiny.gpt2_x")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    tokens = t.tensor([[3, 1, 4]])
    with t.no_grad():
        expected = theirs(tokens).logits
    t.testing.assert_close(loaded.model(tokens), expected, rtol=0, atol=1e-12)
    assert (loaded.name, loaded.tokenizer.name) == ("tiny.gpt2_x", "bpe:260")
    assert t.equal(load("some-one/tiny.gpt2_x").model(tokens), loaded.model(tokens))


def test_a_lens_state_dict_comes_from_the_hub(
    served: Path, make_model: Any, tokenizer: Any
) -> None:
    """Settings and a state dict in TransformerLens's names load from the hub, too."""
    model = make_model(d_vocab=260)
    (served / "config.json").write_text(json.dumps(model.cfg.to_dict()))
    t.save(model.state_dict(), served / "model_final.pth")
    tokenizer.save(served / "tokenizer.json")

    assert load("some-one/lens").model.cfg == model.cfg


def test_where_the_models_are_is_told(served: Path) -> None:
    """A repository that keeps its runs in folders: the message lists their addresses."""
    save_seeds_form(served / "one")
    save_seeds_form(served / "two")

    told = "has no config.json: it is in hf://d0mzw/x/one, hf://d0mzw/x/two"
    with pytest.raises(HubUnavailable, match=told):
        load("d0mzw/x")


def test_what_the_hub_lacks_is_named(served: Path, tokenizer: Any) -> None:
    """No weights, or a shard that the index promises: each is named."""
    tiny_gpt2(d_vocab=260).save_pretrained(served, max_shard_size="8KB")
    next(served.glob("*00002*")).unlink()
    with pytest.raises(HubUnavailable, match=r"has no .*00002.*, which model\.safetensors\.index"):
        load("some-one/tiny")
    for file in served.glob("model*"):
        file.unlink()
    with pytest.raises(HubUnavailable, match="has no weights: expected model.safetensors or "):
        load("some-one/other")


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(
    "word", ["hf://one", "hf://", "hf://a/b/../c", "hf://a//b", "hf://a/b/./c"]
)
def test_addresses_that_are_none_are_refused(word: str) -> None:
    """An address names an owner, a model and perhaps a folder below it, never one above."""
    with pytest.raises(PvmlError, match="is no model on the hub: expected hf://owner/name/folder"):
        load(word)


@pytest.mark.usefixtures("empty_cache")
def test_a_name_may_be_meant_for_this_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """owner/name that is neither here nor reachable: the message says both."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(HubUnavailable, match="nothing here is called my/model. The model my/model"):
        load("my/model")


@pytest.mark.network
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["gpt2", "distilgpt2"])
def test_the_real_models_load(name: str) -> None:
    """GPT-2's own weights give GPT-2's shape, 163,087,441 parameters with a table of each kind."""
    loaded = load(name, device="cpu")

    assert isinstance(loaded, Loaded)
    assert loaded.model.cfg == Config(n_layers=12 if name == "gpt2" else 6)
    if name == "gpt2":
        assert loaded.model.parameter_counts()["total"] == 163_087_441


def test_every_hub_model_has_an_address() -> None:
    """The five names of the seeds' family, each with its owner."""
    assert sorted(HUB_MODELS) == ["distilgpt2", "gpt2", "gpt2-large", "gpt2-medium", "gpt2-xl"]
    assert all("/" in repo for repo in HUB_MODELS.values())
