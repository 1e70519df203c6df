"""`pvml plot`: which runs it finds, where the files go, and what it does with bad input."""

from collections.abc import Callable
from pathlib import Path

import pytest

import pvml.bundled
from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.runs.format import RunDir

Make = Callable[[str], Path]


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make an unfinished run of five steps at a path in the current folder."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer.train(["the cat sat on the mat"], 260)
    cfg = Config(d_model=11, n_heads=1, n_layers=1, n_ctx=7, d_vocab=tokenizer.d_vocab)

    def make(path: str) -> Path:
        run = RunDir.create(path, cfg=cfg, tokenizer=tokenizer, args={})
        for step in range(1, 6):
            run.log({"step": step, "epoch": 0, "loss": 5.0 / step, "seconds": 0.5 * step})
        return run.path

    return make


def files(out: str) -> list[Path]:
    return [Path(line) for line in out.splitlines() if Path(line).suffix in (".png", ".svg")]


def test_all_runs_of_a_folder_are_drawn(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The runs in `runs` go into its `plots`, which is no run and is not told about."""
    make_run("runs/a")
    make_run("runs/b")
    assert main(["plot", "--format", "svg"]) == 0
    capsys.readouterr()
    assert main(["plot", "--format", "svg"]) == 0

    out = capsys.readouterr().out
    written = files(out)
    assert written and all(path.parent == Path("runs/plots") for path in written)
    assert sorted(Path("runs/plots").iterdir()) == sorted(written)
    assert "runs/plots is not" not in out
    assert "b (unfinished, step 5)" in written[0].read_text()


def test_one_run_gets_every_step_too(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """A single run gets its own losses, in both formats, and --out says where."""
    make_run("runs/a")
    assert main(["plot", "runs/a", "--out", "drawn"]) == 0

    assert files(capsys.readouterr().out)[-2:] == [Path("drawn/loss.png"), Path("drawn/loss.svg")]
    assert Path("drawn/loss.png").read_bytes().startswith(b"\x89PNG")


def test_several_are_drawn_together(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs and folders of runs can be given side by side; the files stand beside the first."""
    make_run("here/a")
    make_run("there/b")
    assert main(["plot", "here/a", "there", "--format", "svg,svg"]) == 0

    written = files(capsys.readouterr().out)
    assert len(written) == len(set(written))
    assert all(path.parent == Path("here/plots") for path in written)
    assert all(f"{name} (unfinished" in written[0].read_text() for name in "ab")


def test_a_run_is_found_by_its_name(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """NAME is runs/NAME, and its files lie where the run does."""
    make_run("runs/a")
    assert main(["plot", "a", "--format", "svg"]) == 0

    assert {file.parent for file in files(capsys.readouterr().out)} == {Path("runs/a/plots")}


def test_a_bundled_model_is_drawn_here(
    tiny_models: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By name or by path, its files go into `plots` in this folder, none into the package."""
    monkeypatch.setattr(pvml.bundled, "FOLDER", tiny_models)
    monkeypatch.chdir(tmp_path)
    for word in ("tiny", str(tiny_models / "tiny")):
        assert main(["plot", word, "--format", "svg"]) == 0
        written = files(capsys.readouterr().out)
        assert written[-1] == Path("plots/loss.svg")
        assert {file.parent for file in written} == {Path("plots")}


@pytest.mark.parametrize("where", ["empty", "nowhere"])
def test_nothing_to_draw_is_bad_use(
    make_run: Make, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """A folder without a run, or none at all, is told and leaves no files."""
    Path("empty").mkdir()
    assert main(["plot", where]) == 2

    said = capsys.readouterr()
    assert "left out" in said.out and f"{where}: nothing here can be drawn" in said.err
    assert not Path(where, "plots").exists()


def test_another_format_is_bad_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Only png and svg are made; anything else is told before a run is read."""
    for words in ("pdf", "png,", ""):
        assert main(["plot", "--format", words]) == 2
        assert f"--format must be png, svg or png,svg, got {words!r}" in capsys.readouterr().err
