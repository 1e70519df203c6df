"""Whatever stops a write, what is on the disk is the old or the new, whole (case 12)."""

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pvml import atomic
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.runs.format import RunDir

CFG = Config(d_model=13, n_heads=3, d_head=5, d_mlp=17, n_layers=2, n_ctx=11, d_vocab=263)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat"] * 3, 263)


@pytest.fixture
def create(tokenizer: Tokenizer, tmp_path: Path) -> Callable[[str], RunDir]:
    def make(name: str) -> RunDir:
        return RunDir.create(tmp_path / name, cfg=CFG, tokenizer=tokenizer, args={})

    return make


# Laws


def test_a_file_is_replaced_or_left(tmp_path: Path) -> None:
    """A write that ends replaces the file; one that fails leaves it, and nothing beside it."""
    path = tmp_path / "file"
    atomic.write_whole(path, "old\n")
    with pytest.raises(ZeroDivisionError), atomic.replacing(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old\n"
    atomic.write_whole(path, "new\n")

    assert path.read_text() == "new\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    """What a link leads to gets the text, through several links and where nothing is yet."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_text("old")
    (tmp_path / "one").symlink_to("deep/file")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "new").symlink_to("deep/fresh")
    for name in ("two", "new"):
        atomic.require_writable(tmp_path / name)
        atomic.write_whole(tmp_path / name, name)
        assert (tmp_path / name).is_symlink()

    assert {file.name: file.read_text() for file in (tmp_path / "deep").iterdir()} == {
        "file": "two",
        "fresh": "new",
    }


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    """A pipe, a socket, a device, a folder, and links to them or to themselves are refused."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    (tmp_path / "folder").mkdir()
    for name, target in (("device", os.devnull), ("loop", "loop"), ("link", "pipe")):
        (tmp_path / name).symlink_to(target)
    kinds = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    for write in (atomic.require_writable, lambda path: atomic.write_whole(path, "x")):
        for path in kinds:
            with pytest.raises(RunDirError, match=rf"{path.name} is a .* left as it is"):
                write(path)

    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == kinds
    assert len(kinds) == 6


def test_a_place_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    """Asking whether a file can be written leaves nothing, and names the one that cannot be."""
    (tmp_path / "there").write_text("old")
    for name in ("there", "new"):
        atomic.require_writable(tmp_path / name)
    with pytest.raises(RunDirError, match="none/x could not be written"):
        atomic.require_writable(tmp_path / "none" / "x")

    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("there", "old")]


def test_a_folder_is_there_whole_or_not(tmp_path: Path) -> None:
    """A folder appears with all its files; one that fails half-way never appears."""
    with pytest.raises(ZeroDivisionError), atomic.new_folder(tmp_path / "half") as partial:
        (partial / "a").write_text("a")
        raise ZeroDivisionError
    with atomic.new_folder(tmp_path / "deep" / "whole") as partial:
        (partial / "a").write_text("a")
        assert not (tmp_path / "deep" / "whole").exists()

    assert [entry.name for entry in tmp_path.iterdir()] == ["deep"]
    assert [entry.name for entry in (tmp_path / "deep" / "whole").iterdir()] == ["a"]


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    """Half a folder of this name, made or removed by a process that died, is swept; others stay."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    others = [f".new.part-{os.getppid()}", ".new.part-mine", f".news.part-{dead.pid}", "old"]
    for name in (f".new.part-{dead.pid}", f".new.removed-{dead.pid}", *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("half")
    with atomic.new_folder(tmp_path / "new"):
        pass

    assert {entry.name for entry in tmp_path.iterdir()} == {"new", *others}


def test_a_folder_is_removed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is out of sight before its files go, and a disk that refuses stops nobody."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("a")
    genuine = atomic.shutil.rmtree

    def watched(path: Path, ignore_errors: bool) -> None:
        assert not (tmp_path / "folder").exists() and path.name.startswith(".folder.")
        genuine(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(atomic.shutil, "rmtree", watched)
    atomic.remove_folder(tmp_path / "folder")
    atomic.remove_folder(tmp_path / "nowhere")

    assert list(tmp_path.iterdir()) == []


def test_a_file_is_hashed_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size and SHA-256 are the file's own, also where the system takes few bytes at a time."""
    content, genuine = bytes(range(256)) * 5, os.write
    monkeypatch.setattr(atomic.os, "write", lambda handle, data: genuine(handle, data[:7]))
    with atomic.HashedFile(tmp_path / "file") as file:
        assert (file.write(content[:300]), file.write(memoryview(content)[300:])) == (300, 980)

    assert (tmp_path / "file").read_bytes() == content
    assert (file.size, file.sha256) == (1280, hashlib.sha256(content).hexdigest())


def test_a_hashed_file_keeps_what_the_disk_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused write is raised and remembered; a file that is there is not written over."""
    refusal = OSError(28, "No space left on device")

    def refuse(*args: Any) -> None:
        raise refusal

    monkeypatch.setattr(atomic.os, "write", refuse)
    with atomic.HashedFile(tmp_path / "file") as file:
        with pytest.raises(OSError, match="No space left"):
            file.write(b"abc")
    assert file.error is refusal
    with pytest.raises(FileExistsError):
        atomic.HashedFile(tmp_path / "file")


def test_a_copy_survives_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placed copy replaces what is there, with or without hard links, and survives its source."""
    (tmp_path / "there").write_text("old")
    (tmp_path / "source").write_text("new")
    atomic.place_copy(tmp_path / "source", tmp_path / "there")

    def no_links(*args: Any) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr(atomic.os, "link", no_links)
    atomic.place_copy(tmp_path / "source", tmp_path / "other")
    (tmp_path / "source").unlink()

    assert (tmp_path / "there").read_text() == (tmp_path / "other").read_text() == "new"


# Contracts: refused by the disk (checkpoints are in runs/test_checkpoints.py)


def test_a_summary_is_whole_or_absent(
    create: Callable[[str], RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary that could not be written leaves the run unfinished and no file behind."""
    run = create("run")

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "replace", refuse)
        with pytest.raises(RunDirError, match=r"summary\.json could not be written"):
            run.finish({"steps": 3})
    assert not run.finished and not list(run.path.glob(".*"))
    with pytest.raises(RunDirError, match="not finished"):
        run.summary()
    run.finish({"steps": 3, "loss": float("nan")})

    assert run.finished and run.summary() == {"steps": 3, "loss": None}
