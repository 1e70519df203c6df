"""Checkpoints: whole or absent, damage is seen, the one before is used (case 12)."""

import errno
import hashlib
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.checksums import last_fault
from pvml.runs.format import RunDir

CFG = Config(d_model=13, n_heads=3, d_head=5, d_mlp=17, n_layers=1, n_ctx=11, d_vocab=263)

Create = Callable[[str], RunDir]


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat"] * 3, 263)


@pytest.fixture
def create(tokenizer: Tokenizer, tmp_path: Path) -> Create:
    def make(name: str) -> RunDir:
        return RunDir.create(tmp_path / name, cfg=CFG, tokenizer=tokenizer, args={})

    return make


@pytest.fixture
def run(create: Create) -> RunDir:
    """A run with checkpoints at the steps 10 and 20."""
    run = create("run")
    save(run, 10, 20)
    return run


@pytest.fixture
def faults(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmarks' list of the calls that reach the disk."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("faults")


def save(run: RunDir, *steps: int, **options: Any) -> None:
    for step in steps:
        for row in range(max(0, step - 10), step):
            run.log({"step": row + 1})
        run.save_checkpoint(step, model_at(step), {"at": step}, **options)


def model_at(step: int) -> Transformer:
    return Transformer(CFG, seed=step)


def same(a: Transformer, b: Transformer) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(t.equal(ours[k], theirs[k]) for k in ours)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def flip_a_bit(path: Path) -> None:
    """Damage a file in its middle, and not the file that is the same under another name."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def cut(path: Path, length: int) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:length])


# Laws


def test_the_last_two_are_kept(run: RunDir) -> None:
    """Of four checkpoints the last two stay, and `latest` names the last."""
    save(run, 30, 40)

    assert run.checkpoints() == [30, 40]
    assert names(run.path / "checkpoints") == ["latest", "step-30", "step-40"]
    assert (run.path / "checkpoints" / "latest").read_text() == "step-40\n"
    assert (run.has_checkpoint, run.latest_step()) == (True, 40)


def test_a_marked_one_is_never_removed(create: Create) -> None:
    """keep=True keeps a checkpoint beside the last two, and its weights can be asked for."""
    run = create("run")
    save(run, 10, keep=True)
    save(run, 20, 30, 40)
    save(run, 50, keep=True)
    save(run, 60, 70)

    assert run.checkpoints() == [10, 50, 60, 70]
    for step in run.checkpoints():
        assert same(run.load_model(step=step), model_at(step))
    assert same(run.load_model(), model_at(70))
    with pytest.raises(RunDirError, match="no checkpoint of step 20; there are: 10, 50, 60, 70"):
        run.load_model(step=20)


def test_the_checksums_are_those_of_the_files(run: RunDir) -> None:
    """checksums.json holds each file's size and SHA-256, as other programs compute them."""
    folder = run.path / "checkpoints" / "step-20"
    sums = json.loads((folder / "checksums.json").read_text())["files"]

    assert names(folder) == ["checksums.json", "model.safetensors", "training.pt"]
    assert sums == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name in ("model.safetensors", "training.pt")
        for content in [(folder / name).read_bytes()]
    }


def test_a_whole_checkpoint_has_no_note(run: RunDir) -> None:
    """The last one is used where it is whole, and rewinding to it changes nothing on the disk."""
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    point = run.load_checkpoint()
    run.rewind(20)
    (run.path / "lock").unlink()

    assert (point.step, point.state, point.note) == (20, {"at": 20}, "")
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


# Damage


def whole_folder(folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.unlink()


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    ("model.safetensors is missing", lambda at: (at / "model.safetensors").unlink()),
    ("training.pt is missing", lambda at: (at / "training.pt").unlink()),
    ("is missing", whole_folder),
    ("model.safetensors has 700 bytes instead of", lambda at: cut(at / "model.safetensors", 700)),
    ("training.pt has 0 bytes instead of", lambda at: cut(at / "training.pt", 0)),
    ("model.safetensors has another checksum", lambda at: flip_a_bit(at / "model.safetensors")),
    ("training.pt has another checksum", lambda at: flip_a_bit(at / "training.pt")),
    ("checksums.json is damaged", lambda at: cut(at / "checksums.json", 30)),
    ("checksums.json is damaged", lambda at: (at / "checksums.json").write_text('{"files": 3}')),
]


@pytest.mark.parametrize(("told", "damage"), DAMAGES)
def test_a_damaged_last_one_is_told_and_the_one_before_used(
    run: RunDir, told: str, damage: Callable[[Path], object]
) -> None:
    """Whatever is wrong with step 20, step 10 is used, a note says why, and the run goes on."""
    damage(run.path / "checkpoints" / "step-20")
    again = RunDir.open(run.path)
    point = again.load_checkpoint()
    again.rewind(point.step)

    assert (point.step, point.state) == (10, {"at": 10}) and same(point.model, model_at(10))
    assert told in point.note and "step-20 is damaged" in point.note
    assert point.note.endswith("The checkpoint of step 10 is whole and is used instead")
    assert [row["step"] for row in again.rows()] == [*range(1, 11)]
    assert same(again.load_model(), model_at(10)) and again.checkpoints() == [10]
    save(again, 20)
    assert same(again.load_checkpoint().model, model_at(20)) and again.checkpoints() == [10, 20]


def test_damage_in_all_is_told_of_each(run: RunDir) -> None:
    """With no whole checkpoint left, the error names each fault and the ways out."""
    flip_a_bit(run.path / "checkpoints" / "step-20" / "model.safetensors")
    (run.path / "checkpoints" / "step-10" / "training.pt").unlink()
    with pytest.raises(RunDirError) as caught:
        run.load_checkpoint()

    message = str(caught.value)
    assert "step-20 is damaged: model.safetensors has another checksum" in message
    assert "step-10 is damaged: training.pt is missing" in message
    assert "from a copy" in message and "--overwrite" in message


def test_kept_weights_that_are_damaged_are_refused(run: RunDir) -> None:
    """A step that is asked for by name is not replaced by another."""
    flip_a_bit(run.path / "checkpoints" / "step-10" / "model.safetensors")
    with pytest.raises(RunDirError, match="step-10 is damaged: model.safetensors has another"):
        run.load_model(step=10)


@pytest.mark.parametrize("content", [None, "", "step-", "nonsense", "step-99\n", "step-1"])
def test_latest_is_for_people(run: RunDir, content: str | None) -> None:
    """Missing, torn or naming nothing, `latest` stops no one, and resuming mends it."""
    latest = run.path / "checkpoints" / "latest"
    latest.unlink() if content is None else latest.write_text(content)
    point = run.load_checkpoint()
    run.rewind(point.step)

    assert (point.step, point.note, run.latest_step()) == (20, "", 20)
    assert latest.read_text() == "step-20\n"


def test_a_checkpoint_without_checksums_is_read(run: RunDir) -> None:
    """What an older version wrote has none: it loads, and a file cut short is still noticed."""
    folder = run.path / "checkpoints" / "step-20"
    (folder / "checksums.json").unlink()
    assert run.load_checkpoint().state == {"at": 20} and last_fault(run.path) is None
    cut(folder / "training.pt", 200)

    point = run.load_checkpoint()
    assert point.step == 10 and "training.pt is missing, damaged or cut short" in point.note


def test_what_does_not_fit_is_not_damage(run: RunDir) -> None:
    """Whole weights of another shape are an error of their own: an older one would not fit better.

    Nor is a checkpoint of the run's own silently passed over.
    """
    config = json.loads((run.path / "config.json").read_text())
    config["model"] |= {"n_heads": 5, "d_head": 3}
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunDirError, match=r"step-20/model\.safetensors does not hold this model's"):
        RunDir.open(run.path).load_checkpoint()


def test_a_glance_sees_sizes_and_not_content(run: RunDir) -> None:
    """Without hashes, a missing or cut file is seen, and a flipped bit is not."""
    folder = run.path / "checkpoints" / "step-20"
    assert last_fault(run.path) is None
    flip_a_bit(folder / "training.pt")
    assert last_fault(run.path) is None
    size = (folder / "training.pt").stat().st_size
    cut(folder / "training.pt", 9)
    assert last_fault(run.path) == f"training.pt has 9 bytes instead of {size:,}"


# A disk that refuses, and a process that is killed


def require_sound(run: RunDir, least: int = 10) -> int:
    """The checkpoint that would be used is whole, and the run goes on from it."""
    point = RunDir.open(run.path).load_checkpoint()
    assert point.note == "" and point.step >= least
    assert point.state == {"at": point.step} and same(point.model, model_at(point.step))
    again = RunDir.open(run.path)
    again.rewind(point.step)
    assert [row["step"] for row in again.rows()] == [*range(1, point.step + 1)]
    assert same(again.load_model(), model_at(point.step))
    save(again, point.step + 10)
    assert names(run.path / "checkpoints") == [
        "latest",
        f"step-{point.step}",
        f"step-{point.step + 10}",
    ]
    return point.step


def moments(calls: list[str]) -> list[int]:
    """Where to strike: at every call, but not at all of the many writes of the training state."""
    writes = [at for at, call in enumerate(calls) if call == "write"]
    return [at for at in range(len(calls)) if at not in writes[4:-4] or at % 6 == 0]


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_a_full_disk_at_every_call(
    create: Create, faults: Any, tmp_path: Path, lasting: bool
) -> None:
    """Whichever call of a save fails, the error says why and what stays, and nothing is lost."""
    first = create("first")
    save(first, 10)
    for row in range(10, 20):
        first.log({"step": row + 1})
    with faults.WatchedDisk() as watched:
        shutil.copytree(first.path, tmp_path / "watched")
        n_copying = len(watched.calls)
        RunDir.open(tmp_path / "watched").save_checkpoint(20, model_at(20), {"at": 20})
    calls = watched.calls[n_copying:]
    steps = []
    for at in moments(calls):
        run = RunDir.open(shutil.copytree(first.path, tmp_path / f"fails-{at}"))
        try:
            with faults.WatchedDisk(at, faults.full, lasting):
                run.save_checkpoint(20, model_at(20), {"at": 20})
        except RunDirError as error:
            told = run.latest_step()
            assert "No space left on device" in str(error) and str(run.path) in str(error)
            assert str(error).endswith(f"step {told} stays, and --resume goes on from it")
        else:
            assert calls[at] in ("link", "unlink", "rmdir", "rename")  # there is a way without
            assert run.latest_step() == 20
        steps.append(require_sound(run))
        shutil.rmtree(run.path)

    assert set(calls) >= {"open", "write", "save_file", "fsync", "mkdir", "rename", "replace"}
    assert steps.count(10) >= 15 and steps.count(20) >= 5


def test_a_folder_that_cannot_be_written(run: RunDir, faults: Any) -> None:
    """Without permission the reason is given, for a checkpoint as for a row of the log."""

    def forbid() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for act in (lambda: save(run, 30), lambda: run.log({"step": 21}), lambda: run.finish({})):
        with faults.WatchedDisk(0, forbid, lasting=True):
            with pytest.raises(RunDirError, match=r"run.*Permission denied.* step 20 stays, and"):
                act()
    assert require_sound(run) == 20


@pytest.fixture
def at_most(request: pytest.FixtureRequest) -> Iterator[Callable[[int], None]]:
    """Lets the system itself refuse files larger than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda n_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("limit", "state"), [(3000, 0), (100_000, 50_000)])
def test_what_the_libraries_say_reaches_the_reader(
    run: RunDir, at_most: Callable[[int], None], limit: int, state: int
) -> None:
    """Refused by the system in the weights' file or in the training state's, the reason is told."""
    at_most(limit)
    with pytest.raises(RunDirError, match=r"step-30 could not be written .*File too large"):
        run.save_checkpoint(30, model_at(30), {"at": 30, "numbers": t.zeros(state)})
    assert run.checkpoints() == [10, 20]


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import torch as t
t.set_num_threads(1)
os.fsync = lambda handle: None
from faults import WatchedDisk, die
from pvml.config import Config
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

model = Transformer(Config(**{sizes}), seed=30)
for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        with WatchedDisk(int(path.rpartition("-")[2]), die):
            RunDir.open(Path(path)).save_checkpoint(30, model, {{"at": 30}})
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


def test_a_process_killed_at_every_call(
    run: RunDir, faults: Any, root: Path, tmp_path: Path
) -> None:
    """Killed (SIGKILL) at each call of a save: 20 or 30 is there, whole, and nothing else."""
    for row in range(20, 30):
        run.log({"step": row + 1})
    with faults.WatchedDisk() as watched:
        shutil.copytree(run.path, tmp_path / "watched")
        n_copying = len(watched.calls)
        RunDir.open(tmp_path / "watched").save_checkpoint(30, model_at(30), {"at": 30})
    at_calls = moments(watched.calls[n_copying:])
    paths = [shutil.copytree(run.path, tmp_path / f"killed-{at}") for at in at_calls]
    script = KILLED.format(sizes=CFG.to_dict(), benchmarks=str(root / "benchmarks"))
    arguments = [sys.executable, "-c", script, *map(str, paths)]
    ended = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split()
    steps = [require_sound(RunDir.open(path), least=20) for path in paths]

    assert ended == ["9"] * len(paths)  # the signal's number
    assert steps.count(20) >= 15 and steps.count(30) >= 5
