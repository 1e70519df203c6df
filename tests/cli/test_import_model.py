"""`pvml import SOURCE NAME`: the report is printed, the run is there, or nothing is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.data.tokenizer import Tokenizer
from pvml.loading import load
from pvml.modules.transformer import Transformer


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_model: Any) -> Transformer:
    """In the current folder, `model.pt` in TransformerLens's names, and its tokenizer elsewhere."""
    monkeypatch.chdir(tmp_path)
    Path("words").mkdir()
    Tokenizer.train(["the cat sat"], 260).save("words/tokenizer.json")
    model: Transformer = make_model(d_vocab=260)
    t.save(model.state_dict(), "model.pt")
    return model


def run(*arguments: str) -> int:
    return main(["import", *arguments, "--tokenizer", "words/tokenizer.json"])


def test_a_model_becomes_a_run(source: Transformer, capsys: pytest.CaptureFixture[str]) -> None:
    """The report goes to stdout with a command to try; the run has the source's weights."""
    assert run("model.pt", "mine") == 0

    out = capsys.readouterr().out
    assert out.startswith("a state dict in TransformerLens's names, model.pt\ntensor ")
    row = next(line for line in out.splitlines() if line.startswith("blocks.0-1.attn.W_Q"))
    assert row.split(maxsplit=5)[1:] == ["(3,", "13,", "5)", "blocks.0-1.attn.W_Q", "as it is"]
    assert "sample runs/mine 'Once upon a time'" in out.splitlines()[-1]
    assert t.equal(load("mine", dtype="float64").model.embed.W_E, source.embed.W_E)


def test_as_json_every_tensor_is_there(
    source: Transformer, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json prints one object: where the run is, and a row for each tensor."""
    assert run("model.pt", "mine", "--json", "--run-dir", "kept", "--dtype", "float16") == 0

    told = json.loads(capsys.readouterr().out)
    assert told["run"] == "kept/mine"
    assert [row["ours"] for row in told["rows"]] == list(source.state_dict())
    assert told["rows"][0]["done"] == "cast from float64 to float16"
    assert load("kept/mine", dtype="float16").model.dtype == t.float16


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["model.pt", "there"], "runs/there exists already, and is left alone"),
        (["model.pt", "a/b"], "NAME 'a/b' is not the name of one folder"),
        (["model.pt", "../up"], "NAME '../up' is not the name of one folder"),
        (["model.pt", ".hidden"], "NAME .hidden begins with a dot"),
        (["model.pt", ""], "NAME '' is not the name of one folder"),
        (["nothing", "new"], "MODEL 'nothing' is not known"),
        (["words", "new"], "words is neither a run directory nor"),
        (["broken.pt", "new"], "broken.pt is missing, damaged or cut short"),
        (["model.pt", "new", "--dtype", "int8"], "dtype must be one of"),
    ],
)
def test_what_cannot_be_done_leaves_nothing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """Exit code 2, a message, and no run: no name is taken, no other one harmed."""
    Path("runs/there").mkdir(parents=True)
    Path("broken.pt").write_bytes(b"PK\3\4")

    assert run(*arguments) == 2
    assert told in capsys.readouterr().err
    assert [path.name for path in Path("runs").iterdir()] == ["there"]
    assert not Path("up").exists() and not any(Path("runs/there").iterdir())


def test_without_the_tokenizer_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2's vocabulary does not fit 260 ids: the message says where the model's own may lie."""
    assert main(["import", "model.pt", "mine"]) == 2

    assert "50257 ids, more than the model's 260" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_other_commands_read_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Listed, sampled, graded; what needs a training says that there was none."""
    assert run("model.pt", "mine") == 0
    Path("text.txt").write_text("the cat sat")
    capsys.readouterr()

    assert main(["runs"]) == 0
    assert "mine  finished" in capsys.readouterr().out
    assert main(["sample", "mine", "the", "--max-new-tokens", "3", "--device", "cpu"]) == 0
    assert main(["evaluate", "mine", "--data", "text.txt", "--device", "cpu"]) == 0
    assert main(["runs", "command", "mine"]) == 2
    assert "was not made by `pvml train`" in capsys.readouterr().err


def test_a_name_that_looks_like_a_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """After `--` a dash is read as a name, which no command could be given again."""
    assert main(["import", "--tokenizer", "words/tokenizer.json", "--", "model.pt", "-x"]) == 2
    assert "NAME -x begins with a dash" in capsys.readouterr().err and not Path("runs").exists()
