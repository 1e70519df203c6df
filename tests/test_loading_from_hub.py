"""MODEL from the Hugging Face hub: reached, out of reach, and remembered."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import HubUnavailable
from pvml.loading import HUB_MODELS, Loaded, load
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

    def do_HEAD(self) -> None:
        self.answer(with_content=False)

    def do_GET(self) -> None:
        self.answer(with_content=True)

    def answer(self, with_content: bool) -> None:
        file = self.folder / self.path.rpartition("/")[2]
        if "/resolve/" not in self.path or not file.is_file():
            self.send_error(404)
            return
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{file.stat().st_size:040x}"')
        self.send_header("X-Repo-Commit", "0123456789" * 4)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub_serving(folder: Path) -> Iterator[str]:
    handler = type("HubOf", (Hub,), {"folder": folder})
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
    again = load("gpt2")  # nobody serves any more

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
    with hub_serving(tmp_path) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(HubUnavailable, match=r"openai-community/gpt2-xl could not be read"):
            load("gpt2-xl")


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
