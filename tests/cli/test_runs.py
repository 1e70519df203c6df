"""`pvml runs`: a folder of runs, figures side by side, settings that differ."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pvml.bundled
from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

CFG = Config(d_model=11, n_heads=1, n_layers=1, n_ctx=7, d_vocab=260)
SUMMARY = {
    "steps": 5,
    "tokens": 1_234_567,
    "seconds": 90.0,
    "parameters": {"total": 14_122_321},
    "final_held_out_loss": 2.125,
    "bits_per_byte": 1.5,
    "final_accuracy": 0.25,
}


def make(name: str, n_vocab: int = 260, **args: Any) -> RunDir:
    tokenizer = Tokenizer.train(["the cat sat on the mat"] * 3, n_vocab)
    assert tokenizer.d_vocab == n_vocab
    cfg = Config.from_dict({**CFG.to_dict(), "d_vocab": n_vocab})
    run = RunDir.create(Path("runs") / name, cfg=cfg, tokenizer=tokenizer, args=args)
    run.save_checkpoint(5, Transformer(cfg, seed=3), {})
    return run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the current folder, `runs`: a finished run, a stopped one, and folders of other kinds."""
    monkeypatch.chdir(tmp_path)
    make("good", lr=0.1).finish(SUMMARY)
    make("halted", lr=0.2).log({"step": 5, "loss": 1.0})
    make("broken [b]")
    Path("runs/broken [b]/config.json").write_text("{")
    Path("runs/plots").mkdir()
    Path("runs/.hidden").mkdir()
    Path("runs/file").touch()


def rows(text: str) -> dict[str, str]:
    """The table's lines by their first word, with single spaces; not those that go on in a cell."""
    lines = [line for line in text.splitlines() if not line.startswith(" ")]
    return {line.split()[0]: " ".join(line.split()) for line in lines}


def test_runs_are_listed(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a run with its figures, whatever its state; what is no run is named on stderr."""
    assert main(["runs"]) == 0

    out, err = capsys.readouterr()
    listed = rows(out)
    assert list(listed) == ["run", "broken", "good", "halted"]
    assert listed["good"] == "good finished 14.1 M 7 bpe:260 5 1.2 M 2.125 1.500 0.250 1.5"
    assert listed["halted"].startswith("halted stopped at step 5 ")
    assert "[b] damaged: config.json is missing, damaged" in listed["broken"]
    assert err == ""  # what `pvml plot` made is no surprise


def test_one_run_is_listed(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory is listed by itself."""
    assert main(["runs", "runs/good"]) == 0
    assert list(rows(capsys.readouterr().out)) == ["run", "good"]


def test_lines_of_json(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the same, each run as one object."""
    assert main(["runs", "--json"]) == 0

    broken, good, halted = map(json.loads, capsys.readouterr().out.splitlines())
    assert (good["name"], good["state"], good["bits_per_byte"]) == ("good", "finished", 1.5)
    assert (halted["state"], halted["steps"], halted["accuracy"]) == ("stopped", 5, None)
    assert broken["state"] == "damaged"
    assert good.keys() == halted.keys() == broken.keys()


def test_figures_side_by_side(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs are found by name or by path, and each figure is a line."""
    assert main(["runs", "compare", "good", "runs/halted"]) == 0

    listed = rows(capsys.readouterr().out)
    assert listed["run"] == "run good halted"
    assert listed["bits/byte"] == "bits/byte 1.500 -"
    assert listed["loss"] == "loss 2.125 -"
    assert "Not" in listed


@pytest.mark.parametrize(
    "arguments",
    [["good"], ["compare", "good", "halted"], ["diff", "good", "halted"], ["command", "good"]],
)
def test_names_of_runs_mean_the_same_everywhere(
    runs: None, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """NAME is what runs/NAME is, to every command about runs; a folder here goes before it."""
    config = json.loads(Path("runs/good/config.json").read_text())
    config["data"] = {"source": "storybook", "tokenizer": "bpe:260"}
    Path("runs/good/config.json").write_text(json.dumps(config))
    by_path = [f"runs/{word}" if word in ("good", "halted") else word for word in arguments]
    assert main(["runs", *arguments]) == 0
    by_name = capsys.readouterr().out
    assert main(["runs", *by_path]) == 0
    told = capsys.readouterr().out
    for name in ("good", "halted"):
        told = told.replace(f"runs/{name}", name)
    assert by_name.split() == told.split()

    Path(arguments[-1]).mkdir()
    main(["runs", *arguments])
    assert capsys.readouterr().out != by_name


@pytest.mark.parametrize(
    "arguments", [["tiny"], ["compare", "tiny", "good"], ["diff", "tiny", "good"]]
)
def test_bundled_models_are_known_by_name(
    runs: None,
    tiny_models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    """NAME is a bundled model where no run has it, and a run of that name goes before it."""
    by_path = [str(tiny_models / word) if word == "tiny" else word for word in arguments]
    assert main(["runs", *by_path]) == 0
    told = capsys.readouterr().out.replace(str(tiny_models / "tiny"), "tiny")
    monkeypatch.setattr(pvml.bundled, "FOLDER", tiny_models)
    assert main(["runs", *arguments]) == 0
    assert capsys.readouterr().out.split() == told.split()

    make("tiny", lr=0.5)
    assert main(["runs", *arguments]) == 0
    assert capsys.readouterr().out.split() != told.split()


def test_other_tokens_other_losses(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Where tokenizers differ, losses per token are left out, also of the JSON, and a note why."""
    make("other", n_vocab=261).finish(SUMMARY)
    assert main(["runs", "compare", "good", "other"]) == 0
    out = capsys.readouterr().out
    assert "bits/byte" in rows(out) and not {"loss", "accuracy"} & set(rows(out))
    assert "The tokenizers differ" in out

    assert main(["runs", "compare", "good", "other", "--json"]) == 0
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["name"] for line in lines] == ["good", "other"]
    assert all("held_out_loss" not in line and "bits_per_byte" in line for line in lines)
    assert "The tokenizers differ" in last["notes"][0]


def test_settings_that_differ(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """`diff` prints the settings that differ, as a table or as JSON, or that none do."""
    assert main(["runs", "diff", "good", "halted"]) == 0
    assert capsys.readouterr().out.split() == ["setting", "good", "halted", "args.lr", "0.1", "0.2"]
    assert main(["runs", "diff", "good", "halted", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "setting": "args.lr",
        "good": "0.1",
        "halted": "0.2",
    }
    assert main(["runs", "diff", "good", "good"]) == 0
    assert capsys.readouterr().out == "the same settings\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["compare", "good"], "compare takes two runs or more, got 1"),
        (["diff", "good", "nobody"], "nobody does not exist"),
        (["diff", "good", "broken [b]"], "config.json is missing, damaged"),
        (["diff", "good", "plots"], "holds no config.json"),
    ],
)
def test_bad_use(
    runs: None, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """What cannot be listed is told in words, with 2."""
    assert main(["runs", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_folder_without_runs(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder is no error."""
    assert main(["runs", "runs/plots"]) == 0
    assert capsys.readouterr().out == "runs/plots holds no runs: `pvml train` makes them\n"
    assert main(["runs", "runs/plots", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_runs_that_vanish_or_are_foreign(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison shows what is damaged or no run beside the others."""
    shutil.rmtree("runs/halted/checkpoints")
    assert main(["runs", "compare", "good", "plots", "halted"]) == 0
    assert "damaged: runs/plots is not a run directory" in " ".join(capsys.readouterr().out.split())


def test_listing_needs_no_torch(runs: None) -> None:
    """A list, a comparison and a difference are printed without torch."""
    script = (
        "import sys; from pvml.cli.main import main; main(['runs', '--json']); "
        "main(['runs', 'compare', 'good', 'halted']); main(['runs', 'diff', 'good', 'halted']); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_a_run_that_may_not_be_looked_into_hides_no_other(
    runs: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user's run, or one of mode 0, is listed as damaged beside the rest."""
    shutil.copytree("runs/good", "runs/shut")
    for name in ("stat", "open"):  # root may look into everything, so that modes tell nothing
        whole = getattr(Path, name)

        def refuse(path: Path, *args: Any, whole: Any = whole, **more: Any) -> Any:
            if "shut" in path.parent.parts:
                raise PermissionError(13, "Permission denied", str(path))
            return whole(path, *args, **more)

        monkeypatch.setattr(Path, name, refuse)
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert "damaged: runs/shut cannot be looked into: Permission denied" in rows(out)["shut"]
    assert {"good", "halted"} < set(rows(out))
    assert "shut" not in err

    assert main(["plot", "runs", "--format", "svg"]) == 0
    assert "shut cannot be looked into: Permission denied" in capsys.readouterr().out
