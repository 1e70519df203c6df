"""`pvml verify --module`: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pvml.cli.main import main
from pvml.cli.verify_module import ModuleCheck, verify_module
from pvml.errors import PvmlError

EMBED = """
import torch
from torch import nn
class Embed(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.W_E = nn.Parameter(torch.zeros(cfg.d_vocab, cfg.d_model))
    def forward(self, tokens):
        return self.W_E[tokens]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(EMBED)
    return tmp_path / "own.py"


def test_a_right_class(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, the first trial's table, a line for each trial and the verdict."""
    assert verify_module(ModuleCheck(module=f"{file}:Embed", d_model=6, n_heads=2)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Embed in own.py as embed: d_model 6, n_heads 2, d_head 3")
    assert [line.split()[0] for line in lines if line.endswith("  ok")] == ["out", "grad"]
    assert sum(line.endswith(", ok") for line in lines) == 5
    assert lines[-1] == "Embed is right: 5 of 5 trials"


def test_a_wrong_class(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and the likely cause."""
    file.write_text(EMBED.replace("[tokens]", "[tokens - 1]"))
    assert verify_module(ModuleCheck(module=f"{file}:Embed", kind="embed", seed=3)) == 1
    assert "likely cause: token i takes row i - 1 of W_E" in capsys.readouterr().out


def test_a_file_that_raises(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and the line."""
    file.write_text("import torch\n1 / 0\n")
    assert verify_module(ModuleCheck(module=str(file))) == 1
    assert "own.py, line 2: ZeroDivisionError" in capsys.readouterr().out


def test_bad_use(file: Path) -> None:
    """A class that is not there is bad use, which the command line ends with 2 for."""
    with pytest.raises(PvmlError, match="did you mean 'Embed'"):
        verify_module(ModuleCheck(module=f"{file}:Embedd"))


def test_the_flags_bring_no_torch() -> None:
    """Importing the command's file loads no torch, so that help answers at once."""
    code = "import sys, pvml.cli.verify_module; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_as_a_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pvml verify --module` takes kind, seed and sizes; what it has no use for is refused."""
    own = ["verify", "--module", str(file)]
    assert main([*own, "--kind", "embed", "--seed", "2", "--d-model", "6", "--n-heads", "2"]) == 0
    assert "d_model 6, n_heads 2, d_head 3, d_mlp 24" in capsys.readouterr().out
    assert main([*own, "--d-head", "4"]) == 0
    assert "d_head 4" in capsys.readouterr().out
    for extra, told in (
        (["--dtype", "float32"], "--dtype cannot be given with --module: a class is"),
        (["gpt2", "--attn-only"], "--attn-only, MODEL (gpt2) cannot be given"),
        (["--d-model", "0"], "d_model must be"),
        (["--kind", "lens"], "there is no kind 'lens'"),
        (["--device", "cpu"], "What can: --kind, --seed, --brief, --json, --d-model, --n-heads"),
    ):
        assert main([*own, *extra]) == 2
        assert told in capsys.readouterr().err


ONE_OFF = EMBED.replace("[tokens]", "[tokens - 1]").replace("return", "print('here'); return")


def test_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object on stdout, whatever the class prints; the exit codes are the same."""
    own = ["verify", "--module", f"{file}:Embed", "--json"]
    assert main(own) == 0
    right = json.loads(capsys.readouterr().out)
    assert (right["command"], right["kind"], right["agrees"]) == ("verify", "embed", True)
    assert right["verdict"] == "Embed is right: 5 of 5 trials" and right["first_wrong"] is None
    assert [trial["agrees"] for trial in right["trials"]] == [True] * 5
    assert [row["name"] for row in right["trials"][0]["rows"]] == ["out", "grad W_E"]
    assert set(right["trials"][0]["rows"][0]) == {
        *("name", "shape", "absolute", "relative", "ulps", "allowed", "verdict")
    }
    file.write_text(
        EMBED.replace("return self.W_E[tokens]", "return {'out': self.W_E[tokens], 5: 3}")
    )
    assert main(own) == 1
    misnamed = json.loads(capsys.readouterr().out)
    assert not misnamed["agrees"] and "returned '5', no name here" in misnamed["problems"][0]
    file.write_text(ONE_OFF)
    assert main(own) == 1
    shown = capsys.readouterr()
    wrong = json.loads(shown.out)
    assert "here" in shown.err and not wrong["agrees"]
    assert wrong["first_wrong"] == "out" and wrong["problems"] == []
    assert wrong["causes"] == ["token i takes row i - 1 of W_E"]
    assert [row["verdict"] for row in wrong["trials"][0]["rows"]] == ["WRONG"]


def test_as_json_without_a_class_to_try(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters that do not fit, and a file that raises: problems, and the same names."""
    own = ["verify", "--module", f"{file}:Embed", "--json"]
    found = []
    for source in (EMBED.replace("W_E", "W"), "1 / 0"):
        file.write_text(source)
        assert main(own) == 1
        found.append(json.loads(capsys.readouterr().out))
    assert found[0].keys() == found[1].keys()
    assert not any(one["agrees"] or one["trials"] for one in found)
    assert found[0]["problems"][0].startswith("missing: W_E (29, 15)")
    assert "own.py, line 1: ZeroDivisionError" in found[1]["problems"][0]


def test_briefly(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict, with what is told of it; in JSON, the trials and rows that are wrong."""
    own = ["verify", "--module", f"{file}:Embed", "--brief"]
    assert main(own) == 0
    assert capsys.readouterr().out == "Embed is right: 5 of 5 trials\n"
    assert main([*own, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == []
    file.write_text(EMBED.replace("self.W_E[tokens]", "self.W_E[tokens].detach()"))
    assert main(own) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("- own.py: no gradient can flow") and len(lines) == 3
    assert lines[1] == "Embed is wrong"
    file.write_text(EMBED.replace("W_E", "W"))
    assert main(own) == 1
    assert "- missing: W_E (29, 15) (d_vocab d_model)" in capsys.readouterr().out
