"""`pvml models`: what comes with the package, at a glance."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pvml.bundled
from pvml.cli.main import main


def test_each_model_has_a_line(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Name, shape, parameters, window, vocabulary, grade and size are those of the files."""
    monkeypatch.setattr(pvml.bundled, "FOLDER", tiny_models)
    assert main(["models"]) == 0
    heading, line, hint = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["model", "shape", "parameters"]
    assert line.startswith("tiny   2 layers, 2 heads, d6, attention only")
    assert "pvml sample tiny" in hint

    assert main(["models", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # E, U and b_U; positions; per block 4 matrices, 4 biases and a LayerNorm; the last LayerNorm
    assert told["parameters"] == 280 * 13 + 13 * 6 + 2 * (4 * 60 + 3 * 10 + 6 + 12) + 12
    assert told["n_ctx"] == 13
    assert told["tokenizer"] == "bpe:280"
    assert told["bytes"] == sum(f.stat().st_size for f in (tiny_models / "tiny").iterdir())
    grades = json.loads((tiny_models / "tiny" / "summary.json").read_text())["bundle"]
    assert told["bits_per_byte"] == grades["bits_per_byte"]["float16"]
    assert f"{told['parameters']:,}" in line
    assert f"{told['bits_per_byte']:.3f}" in line


def test_without_models_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty folder is no error."""
    monkeypatch.setattr(pvml.bundled, "FOLDER", tmp_path)

    assert main(["models"]) == 0
    assert "without models: `pvml train` makes one" in capsys.readouterr().out


def test_it_needs_no_torch() -> None:
    """The list is made of small files."""
    code = "import sys, pvml.cli.models as m; m.main([]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "False"
