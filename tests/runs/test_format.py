"""The run directory: what goes in comes out, damage is named, nothing foreign is touched."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import load_file

from pvml import atomic
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs import lock
from pvml.runs.format import RunDir

CFG = Config(d_model=13, n_heads=3, d_head=5, d_mlp=17, n_layers=2, n_ctx=11, d_vocab=263)
ARGS = {"batch_size": 5, "lr": 1e-3}
DATA = {"source": "storybook", "fingerprint": "ab12", "n_held_out": 7}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat"] * 3, 263)


@pytest.fixture
def create(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., RunDir]:
    def make(name: str = "run", cfg: Config = CFG, **options: Any) -> RunDir:
        return RunDir.create(
            tmp_path / name, cfg=cfg, tokenizer=tokenizer, args=ARGS, data=DATA, **options
        )

    return make


def model_at(step: int, cfg: Config = CFG) -> Transformer:
    return Transformer(cfg, seed=step)


def same(a: Transformer, b: Transformer) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(t.equal(ours[k], theirs[k]) for k in ours)


def everything(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its content; what a rename or a write could have changed."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# Laws


def test_a_run_comes_back_as_it_was_made(create: Callable[..., RunDir]) -> None:
    """Model, args, data, tokenizer and versions are read back equal by another RunDir."""
    made = create()
    run = RunDir.open(made.path)

    assert (run.cfg, run.args, run.data, run.name) == (CFG, ARGS, DATA, "run")
    assert run.tokenizer().to_json() == made.tokenizer().to_json()
    assert run.tokenizer_name == run.tokenizer().name == "bpe:263"
    assert run.config["versions"].keys() == {"pvml", "torch", "python"}
    assert (run.finished, run.is_seeds_form, run.latest_step()) == (False, False, None)
    assert list(run.rows()) == list(run.samples()) == []


@pytest.mark.parametrize(
    "changes", [{}, {"tie_embeddings": True}, {"attn_only": True}, {"normalization": "none"}]
)
def test_weights_come_back_as_the_same_bits(
    create: Callable[..., RunDir], changes: dict[str, Any]
) -> None:
    """Saved and loaded, every weight is the same bits, and W_Q keeps the layout that is fast."""
    cfg = Config.from_dict({**CFG.to_dict(), **changes})
    run, model = create(cfg=cfg), model_at(1, cfg)
    run.save_checkpoint(1, model, {})
    loaded = run.load_model()

    assert same(loaded, model)
    for name, parameter in model.named_parameters():
        assert loaded.get_parameter(name).stride() == parameter.stride()
        assert loaded.get_parameter(name).requires_grad == parameter.requires_grad
    assert not loaded.training
    assert run.load_model(dtype="bfloat16").dtype == t.bfloat16


def test_a_tied_table_is_stored_once(create: Callable[..., RunDir]) -> None:
    """A tied model's file has no W_U; loaded, one optimiser step moves both ways of reading it."""
    cfg = Config.from_dict({**CFG.to_dict(), "tie_embeddings": True})
    run = create(cfg=cfg)
    run.save_checkpoint(1, model_at(1, cfg), {})
    loaded = run.load_model()
    optimizer = t.optim.SGD(loaded.parameters(), lr=1.0)
    loaded(t.tensor([[3, 5, 7]])).logsumexp(-1).mean().backward()
    optimizer.step()

    assert "unembed.W_U" not in load_file(run.path / "model.safetensors")
    assert not t.equal(loaded.embed.W_E, model_at(1, cfg).embed.W_E)
    assert t.equal(loaded.unembed.W_U, loaded.embed.W_E.T)


def test_a_checkpoint_comes_back_with_its_state(create: Callable[..., RunDir]) -> None:
    """Optimizer and random states survive bit for bit."""
    run, model = create(), model_at(1)
    optimizer = t.optim.AdamW(model.parameters())
    for step in (3, 7):
        model(t.tensor([[3, 5, 7]])).logsumexp(-1).mean().backward()
        optimizer.step()
        run.save_checkpoint(step, model, {"optimizer": optimizer.state_dict(), "seconds": 1.5})
    point = RunDir.open(run.path).load_checkpoint("cpu")
    saved, read = optimizer.state_dict()["state"], point.state["optimizer"]["state"]

    assert (point.step, point.state["seconds"], run.latest_step()) == (7, 1.5, 7)
    assert same(point.model, model) and same(run.load_model(), model)
    assert all(t.equal(saved[i]["exp_avg"], read[i]["exp_avg"]) for i in saved)
    assert all(saved[i]["exp_avg"].stride() == read[i]["exp_avg"].stride() for i in saved)


def test_who_may_read_one_file_may_read_all(create: Callable[..., RunDir]) -> None:
    """Every file of a run has the permissions that the user's other new files have."""
    run = create()
    run.save_checkpoint(1, model_at(1), {})
    run.log({"step": 1})
    (run.path.parent / "ordinary").touch()
    files = [path for path in run.path.rglob("*") if path.is_file()]

    assert {path.stat().st_mode for path in files} == {
        (run.path.parent / "ordinary").stat().st_mode
    }


def test_loading_draws_no_random_number(create: Callable[..., RunDir]) -> None:
    """Creating, saving and loading leave torch's generator where it was."""
    run, model, before = create(), model_at(1), t.get_rng_state()
    run.save_checkpoint(1, model, {})
    run.load_model()
    run.load_checkpoint()

    assert t.equal(t.get_rng_state(), before)


def test_logs_are_cut_after_a_step(create: Callable[..., RunDir]) -> None:
    """`cut_logs(2)` keeps rows up to step 2 in both logs, and the next row follows them."""
    run = create()
    for step in (1, 2, 3):
        run.log({"step": step, "loss": 0.5})
        run.log_sample({"step": step, "text": "é\n"})
    run.log({"step": 2, "accuracy": 0.1})
    run.cut_logs(2)
    run.log({"step": 3, "accuracy": 0.2})

    assert [row["step"] for row in run.rows()] == [1, 2, 3]
    assert list(run.rows("accuracy")) == [{"step": 3, "accuracy": 0.2}]
    assert list(run.samples()) == [{"step": s, "text": "é\n"} for s in (1, 2)]


# Contracts: an existing run, and folders that are none


def test_an_existing_run_is_refused(create: Callable[..., RunDir]) -> None:
    """A second run of the same name names --resume, --overwrite and --name, and changes nothing."""
    run = create()
    run.log({"step": 1})
    before = everything(run.path)
    with pytest.raises(RunDirError, match=r"--resume.*--overwrite.*--name"):
        create()

    assert everything(run.path) == before


def test_overwriting_begins_anew(create: Callable[..., RunDir], tmp_path: Path) -> None:
    """With overwrite the old run's logs and weights are gone, and nothing else is left beside."""
    run = create()
    run.log({"step": 1})
    run.save_checkpoint(1, model_at(1), {})
    again = create(overwrite=True)

    assert list(again.rows()) == [] and again.latest_step() is None
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_failed_overwrite_gives_the_old_run_back(
    create: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the new run cannot take its place, the old one is where it was."""
    run = create()
    run.log({"step": 1})
    before, genuine = everything(run.path), os.rename

    def refuse(source: Path, to: Path) -> None:
        if ".part-" in str(source):
            raise OSError(28, "No space left on device")
        genuine(source, to)

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "rename", refuse)
        with pytest.raises(RunDirError, match="No space left"):
            create(overwrite=True)

    assert everything(run.path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"args": {}, "model": {}}'])
def test_only_our_own_runs_are_overwritten(
    create: Callable[..., RunDir], tmp_path: Path, content: str | None
) -> None:
    """A folder without our config.json is left alone, byte for byte, with overwrite too."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    if content is not None:
        (folder / "config.json").write_text(content)
    before = everything(folder)
    for overwrite in (False, True):
        with pytest.raises(RunDirError, match="is left alone: --name"):
            create(overwrite=overwrite)

    assert everything(folder) == before


def test_a_run_that_is_being_trained_is_left_alone(
    create: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a run is locked, nobody overwrites or rewinds it; its lock may be nested."""
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.0)
    run = create()
    with run.lock(), run.lock():
        with pytest.raises(RunDirError, match=f"being trained by process {os.getpid()} on .*so it"):
            create(overwrite=True)
        with pytest.raises(RunDirError, match=f"is being trained by process {os.getpid()} on "):
            RunDir.open(run.path).rewind(0)
    RunDir.open(run.path).rewind(0)
    create(overwrite=True)


def test_links_and_files_are_never_overwritten(
    create: Callable[..., RunDir], tmp_path: Path
) -> None:
    """A file, a link to a run and a link to nothing are left alone; an empty folder is used."""
    target = create("target")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(target.path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "dangling"):
        with pytest.raises(RunDirError, match="is left alone"):
            create(name, overwrite=True)
    (tmp_path / "empty").mkdir()

    assert create("empty").name == "empty"
    assert (tmp_path / "file").read_text() == "mine" and target.cfg == CFG


def test_a_folder_that_cannot_be_made_is_a_clear_error(
    create: Callable[..., RunDir], tmp_path: Path
) -> None:
    """A run below a file is an error that names the run."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunDirError, match="run could not be written"):
        create("file/run")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """A missing folder, a file, a folder without config.json or with another's: each is named."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("nowhere", "nowhere does not exist"),
        ("file", "file is not a folder"),
        ("folder", r"folder is not a run directory: it holds no config\.json"),
    ):
        with pytest.raises(RunDirError, match=message):
            RunDir.open(tmp_path / name)
    (tmp_path / "folder" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(RunDirError, match="lacks the entries args and model"):
        RunDir.open(tmp_path / "folder")


def test_another_version_is_refused(create: Callable[..., RunDir]) -> None:
    """A format version that this program does not know is an error that names both."""
    run = create()
    config = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**config, "version": 2}))
    with pytest.raises(RunDirError, match="version 2; this program reads 'pvml run', version 1"):
        RunDir.open(run.path)


def test_unknown_model_fields_are_refused(create: Callable[..., RunDir]) -> None:
    """A model field of another program is an error that names file and field."""
    run = create()
    config = json.loads((run.path / "config.json").read_text())
    config["model"]["rotary"] = True
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunDirError, match=r"config\.json, model: unknown model fields rotary"):
        _ = RunDir.open(run.path).cfg


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "checkpoints/step-5/model.safetensors",
        "checkpoints/step-5/training.pt",
        "summary.json",
    ],
)
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.98])
def test_a_file_cut_short_is_named(create: Callable[..., RunDir], name: str, keep: float) -> None:
    """Truncated to nothing, to half, or by its last bytes, a file is an error that names it."""
    run = create()
    run.save_checkpoint(5, model_at(5), {"numbers": t.arange(99.0)})
    run.finish({"steps": 5, "seconds": 17.5, "device": "cpu", "note": "x" * 99})
    path = run.path / name
    whole = path.read_bytes()
    path.unlink()  # model.safetensors may be one file under two names
    path.write_bytes(whole[: min(int(keep * len(whole)), len(whole) - 3)])

    def read_all() -> None:
        opened = RunDir.open(run.path)
        opened.tokenizer()
        opened.load_model()
        opened.load_checkpoint()
        opened.summary()

    *_, folder, file = ("", *name.split("/"))
    with pytest.raises(RunDirError, match=f"{folder}.*{file}".replace(".s", r"\.s")):
        read_all()


def test_a_run_without_weights_says_so(create: Callable[..., RunDir]) -> None:
    """Before the first checkpoint there is nothing to load, and the error says that."""
    run = create()
    with pytest.raises(RunDirError, match="holds no weights yet"):
        run.load_model()
    with pytest.raises(RunDirError, match="holds no checkpoint"):
        run.load_checkpoint()


def test_checkpoints_only_go_forward(create: Callable[..., RunDir]) -> None:
    """A step that is not later than the last checkpoint is refused: two runs would be mixed."""
    run = create()
    run.save_checkpoint(5, model_at(5), {})
    for step in (4, 5):
        with pytest.raises(RunDirError, match="has a checkpoint at step 5"):
            run.save_checkpoint(step, model_at(step), {})

    assert same(run.load_model(), model_at(5))
