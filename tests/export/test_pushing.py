"""Uploads, with a hub that is not there: what is asked of it, and what is told where it fails."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pvml.errors import HubUnavailable, PvmlError
from pvml.export import pushing

hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")


class FakeApi:
    """What `HfApi` was asked to do; it fails where it is told to."""

    calls: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    failing: ClassVar[Exception | None] = None

    def __init__(self, endpoint: str) -> None:
        self.calls.append(("at", {"endpoint": endpoint}))

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.calls.append(("create", {"repo_id": repo_id, **options}))

    def upload_folder(self, **options: Any) -> None:
        if self.failing is not None:
            raise self.failing
        self.calls.append(("upload", options))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[FakeApi]:
    """The fake hub in the place of the real one, reachable."""
    monkeypatch.setattr(FakeApi, "calls", [])
    monkeypatch.setattr(FakeApi, "failing", None)
    monkeypatch.setattr(hub, "HfApi", FakeApi)
    monkeypatch.setattr(pushing, "require_hub", lambda what, **options: None)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example/")
    return FakeApi


@pytest.mark.parametrize("private", [False, True])
def test_a_repository_is_made_and_filled(api: type[FakeApi], tmp_path: Path, private: bool) -> None:
    """First the repository, public unless asked otherwise, then all of the folder; its address."""
    address = pushing.push_folder(tmp_path, "me/small", private=private)
    assert address == "https://hub.example/me/small"
    (_, at), (first, made), (second, uploaded) = api.calls
    assert (first, second, at["endpoint"]) == ("create", "upload", "https://hub.example")
    assert made == {
        "repo_id": "me/small",
        "repo_type": "model",
        "private": private,
        "exist_ok": True,
    }
    assert (uploaded["repo_id"], uploaded["folder_path"]) == ("me/small", str(tmp_path))


def test_a_refusal_says_what_to_do(
    api: type[FakeApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a login, or under another's name: how to log in, and that the folder stays."""
    response = SimpleNamespace(headers={}, request=None, status_code=401)
    refusal = hub.errors.HfHubHTTPError("401 Unauthorized\nmore", response=response)
    monkeypatch.setattr(FakeApi, "failing", refusal)
    with pytest.raises(PvmlError, match="401 Unauthorized.*hf auth login.*stays") as told:
        pushing.push_folder(tmp_path, "me/small")
    assert not isinstance(told.value, HubUnavailable)


def test_a_broken_upload_says_how_to_go_on(
    api: type[FakeApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks: which command uploads the folder later."""
    monkeypatch.setattr(FakeApi, "failing", ConnectionError("reset"))
    with pytest.raises(HubUnavailable, match="ConnectionError: reset.*`hf upload me/small"):
        pushing.push_folder(tmp_path, "me/small")


def test_without_the_hub_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, the hub's library is not even asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub, "HfApi", None)
    with pytest.raises(HubUnavailable, match="HF_HUB_OFFLINE is set.*is complete and stays"):
        pushing.push_folder(tmp_path, "me/small")


@pytest.mark.parametrize("repo", ["", "a/b/c", "me/-x", "../up", "me/a--b", "me/a b"])
def test_a_name_that_the_hub_does_not_take(repo: str) -> None:
    """Told before anything is exported."""
    with pytest.raises(PvmlError, match="names no repository on the hub"):
        pushing.require_repo(repo)
    pushing.require_repo("me/small")
