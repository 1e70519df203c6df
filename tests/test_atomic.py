"""Whatever stops a write, what is on the disk is the old or the new, whole (case 12)."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml import atomic
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.modules.transformer import Transformer
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


def model_at(step: int) -> Transformer:
    return Transformer(CFG, seed=step)


def same(a: Transformer, b: Transformer) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(t.equal(ours[k], theirs[k]) for k in ours)


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


# Contracts: killed or refused by the disk while saving (case 12)


@pytest.mark.parametrize("call", ["replace", "rename", "fsync"])
def test_a_disk_that_refuses_leaves_the_checkpoint_before(
    create: Callable[[str], RunDir], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whichever call of a save fails, it is a clear error and a whole checkpoint is loaded."""
    genuine = getattr(os, call)
    for fails_at in range(12):
        run, calls = create(f"{call}-{fails_at}"), 0
        run.log({"step": 1})
        run.save_checkpoint(1, model_at(1), {"at": 1})

        def failing(*args: Any, fails_at: int = fails_at, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > fails_at:
                raise OSError(28, "No space left on device")
            return genuine(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, call, failing)
            try:
                run.save_checkpoint(2, model_at(2), {"at": 2})
            except RunDirError as error:
                assert "No space left" in str(error)
            else:
                assert fails_at > 0
                return
        reopened = RunDir.open(run.path)
        point = reopened.load_checkpoint()
        assert point.state == {"at": point.step} and same(point.model, model_at(point.step))
        assert any(same(reopened.load_model(), model_at(step)) for step in (1, 2))
        reopened.save_checkpoint(3, model_at(3), {"at": 3})
        assert same(reopened.load_model(), model_at(3))
        assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["latest", "step-3"]
    raise AssertionError("no save got through in 12 calls")


KILLED = """
import os, signal, sys
from pathlib import Path
import torch as t
t.set_num_threads(1)
from pvml.config import Config
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

cfg = Config(**{sizes})
for moment in sys.argv[2:]:
    call, at = moment.split("-")
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    run = RunDir.open(Path(sys.argv[1]) / moment)
    genuine, left = getattr(os, call), [int(at)]

    def killing(*args, **options):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return genuine(*args, **options)

    setattr(os, call, killing)
    run.save_checkpoint(2, Transformer(cfg, seed=2), {{"at": 2}})
    os._exit(0)
"""


def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(
    create: Callable[[str], RunDir], tmp_path: Path
) -> None:
    """Killed (SIGKILL) at each of the calls of a save: a whole checkpoint, old or new, is there."""
    times = {"rename": 1, "link": 1, "replace": 2, "fsync": 8, "rmdir": 1}
    moments = [f"{call}-{at}" for call, n in times.items() for at in range(n)]
    first = create("first")
    first.save_checkpoint(1, model_at(1), {"at": 1})
    for moment in moments:
        shutil.copytree(first.path, tmp_path / moment)
    script = KILLED.format(sizes=CFG.to_dict())
    subprocess.run([sys.executable, "-c", script, str(tmp_path), *moments], check=True)
    steps = []
    for moment in moments:
        run = RunDir.open(tmp_path / moment)
        point = run.load_checkpoint()
        assert point.state == {"at": point.step} and same(point.model, model_at(point.step))
        assert any(same(run.load_model(), model_at(step)) for step in (1, 2))
        steps.append(point.step)

    assert steps.count(1) >= 6 and steps.count(2) >= 2  # killed before, and after, it was whole


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
