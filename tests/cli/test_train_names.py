"""`pvml train --name`: names that a folder can have, a listing shows, and a disk takes."""

import json
from pathlib import Path

import pytest

from pvml.cli.main import main
from pvml.cli.train import LONGEST_NAME, default_name
from pvml.config import Config

WORDS = ["cat", "dog", "bird", "fish", "cow", "hen", "fox", "bee", "ant", "owl", "pig"]
STORIES = [f"The {a} saw the {b}. The {b} ran." for a in WORDS for b in WORDS[:4]]
SIZES = ["--d-model", "12", "--n-heads", "3", "--n-layers", "1", "--n-ctx", "11"]
SHORT = ["--epochs", "1", "--max-steps-per-epoch", "1", "--batch-size", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tales.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in STORIES))
    return tmp_path


def train(*flags: str) -> int:
    corpus = ["--data", "tales.jsonl", "--tokenizer", "bpe:300", "--sample-prompt", "None"]
    return main(["train", *corpus, *SIZES, *SHORT, *flags])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "/tmp/a", "a\\b", "a\nb", "a\udcff"]
)
def test_a_name_is_one_folder(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A name that would lead elsewhere is refused, and --run-dir is named."""
    before = sorted(tmp_path.rglob("*"))

    assert train(f"--name={name}") == 2
    assert "--run-dir says where" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".hid", "--name .hid begins with a dot: such a folder is hidden"),
        ("-x", "--name -x begins with a dash: every command would take it for a flag"),
        ("a" * 201, "has 201 bytes: give at most 200"),
        ("é" * 101, "has 202 bytes: give at most 200"),
    ],
)
def test_a_name_can_be_listed_and_written(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hidden name, and one too long for a disk, are refused before the corpus is read."""
    assert train(f"--name={name}") == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_longest_name_has_room_for_all_that_is_made_of_it() -> None:
    """200 bytes: trained, overwritten, and with a seed's number behind."""
    name = "é" * 100
    assert train("--name", name) == 0
    assert train("--name", name, "--overwrite") == 0
    assert train("--name", name, "--seeds", "4294967295") == 0


def test_a_corpus_with_a_long_name_makes_a_shorter_default() -> None:
    """The run's default name keeps to the limit, sizes and steps whole, and is a whole text."""
    cfg = Config(d_model=128, n_layers=6, n_heads=4, n_ctx=128)
    name = default_name("é" * 240, cfg, 5000)
    assert name.endswith("é-d128-l6-h4-ctx128-5k")
    assert len(name.encode()) in (LONGEST_NAME, LONGEST_NAME - 1)
