"""The hub's probe: bounded in time whatever the network does, and clear about what to do."""

import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pvml.errors import HubUnavailable
from pvml.hub import endpoint, offline, require_hub


@pytest.fixture(autouse=True)
def _plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


@contextmanager
def listening() -> Iterator[int]:
    """A port whose connections are accepted (by the kernel) and never answered."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(5)
        yield server.getsockname()[1]


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """A port where an HTTP server gives this answer to every HEAD request."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def require_refusal(timeout_s: float, message: str) -> None:
    """Which reason is told says how it ended: a probe that waited for longer would tell another.

    No clock is read: how long a slow machine takes is not asked.
    """
    with pytest.raises(HubUnavailable, match=message):
        require_hub("The corpus", timeout_s, instead="Read a file.")


@pytest.mark.parametrize("status", [200, 401, 404])
def test_an_answer_is_enough(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """A server that answers anything of its own is a hub that can be reached."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()

    with serving(answer) as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}/")
        require_hub("The corpus", 2.0)


def test_a_gateway_error_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 503 comes from whatever stands in front of an absent hub."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(503)
        handler.end_headers()

    with serving(answer) as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        require_refusal(2.0, "HTTP 503")


def test_a_refusing_endpoint_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on the port: the error names the endpoint, the want and the way out."""
    with listening() as port:
        pass
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")

    require_refusal(60.0, rf"^The corpus .*127\.0\.0\.1:{port}.*refused.* Read a file\.$")


def test_a_silent_endpoint_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and never answers is waited for as long as the timeout says."""
    with listening() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        require_refusal(0.3, "no answer within 0.3 s|timed out")


def test_a_trickling_endpoint_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then renews a socket's timeout; the probe's total time stays bounded."""
    stop = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
        while not stop.wait(0.1):
            handler.wfile.write(b".")
            handler.wfile.flush()

    with serving(answer) as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        try:
            require_refusal(0.4, "no answer within 0.4 s")
        finally:
            stop.set()


def test_a_hanging_name_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking the name up has no timeout of its own; the probe's total time stays bounded."""
    release = threading.Event()

    def hang(*args: object, **kwargs: object) -> list[object]:
        release.wait()
        raise OSError("name server gone")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    try:
        require_refusal(0.3, "no answer within 0.3 s")
    finally:
        release.set()
        for thread in threading.enumerate():
            if thread.name == "hub-probe":
                thread.join()


def test_the_default_stays_under_five_seconds() -> None:
    """An unreachable hub is reported within 5 s: the default timeout leaves a margin."""
    assert inspect.signature(require_hub).parameters["timeout_s"].default <= 4.5


@pytest.mark.parametrize("word", ["1", "true", "Yes", "ON"])
def test_offline_is_respected(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """HF_HUB_OFFLINE is an answer in itself: nothing is sent."""
    monkeypatch.setenv("HF_HUB_OFFLINE", word)
    with listening() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        require_refusal(2.0, "HF_HUB_OFFLINE is set. Read a file.")
    assert offline()


@pytest.mark.parametrize("address", ["hub.example", "file:///etc/hosts"])
def test_a_wrong_endpoint_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """An HF_ENDPOINT that is no web address is an error, and is not opened."""
    monkeypatch.setenv("HF_ENDPOINT", address)
    require_refusal(2.0, f"{address} .*must begin with https")


def test_the_endpoint_without_settings_is_the_hub() -> None:
    """Without HF_ENDPOINT the public hub is asked."""
    assert endpoint() == "https://huggingface.co"
    assert not offline()
