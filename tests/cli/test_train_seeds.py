"""`pvml train --seeds` on runs that are there already: damaged, or begun on other documents."""

import json
from pathlib import Path

import pytest

from pvml.cli.main import main

WORDS = ["cat", "dog", "bird", "fish", "cow", "hen", "fox", "bee", "ant", "owl", "pig"]
STORIES = [f"The {a} saw the {b}. The {b} ran." for a in WORDS for b in WORDS[:4]]
SIZES = ["--d-model", "12", "--n-heads", "3", "--n-layers", "1", "--n-ctx", "11"]
SHORT = ["--epochs", "1", "--max-steps-per-epoch", "2", "--batch-size", "2", "--device", "cpu"]


def write(texts: list[str]) -> None:
    Path("tales.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def train(seeds: str, *flags: str) -> int:
    corpus = ["--data", "tales.jsonl", "--tokenizer", "bpe:300", "--sample-prompt", "None"]
    return main(["train", *corpus, *SIZES, *SHORT, "--name", "s", "--seeds", seeds, *flags])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(STORIES)
    return tmp_path


def test_a_damaged_summary_is_told_before_anything_is_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A grade that is missing or no number is named, with its file; no other seed is begun."""
    assert train("0") == 0
    path = Path("runs/s-seed0/summary.json")
    summary = json.loads(path.read_text())
    for changes, name in (
        ({"bits_per_byte": "x"}, "bits_per_byte"),
        ({"final_accuracy": None}, "final_accuracy"),
        ({"final_held_out_loss": 10**400}, "final_held_out_loss"),
        ({"final_held_out_loss": True}, "final_held_out_loss"),
    ):
        path.write_text(json.dumps({**summary, **changes}))
        assert train("0,1", "--resume") == 2
        told = f"s-seed0/summary.json is damaged: its {name} is no number"
        assert told in capsys.readouterr().err
    for text, told in (("{}", "final_held_out_loss is no number"), ("[" * 10**5, "damaged")):
        path.write_text(text)
        assert train("0,1", "--resume") == 2
        assert told in capsys.readouterr().err
    assert not Path("runs/s-seed1").exists()


def test_all_seeds_are_of_the_same_documents(capsys: pytest.CaptureFixture[str]) -> None:
    """A seed begun after the corpus changed would be put into one table with those before."""
    assert train("0") == 0
    write([*STORIES[1:], STORIES[0]])
    capsys.readouterr()
    assert train("0,1", "--resume") == 2
    assert "runs/s-seed0 was begun on other documents" in capsys.readouterr().err
    assert not Path("runs/s-seed1").exists()

    assert train("1") == 0
    assert train("0,1", "--resume") == 2
    assert "begun on different documents" in capsys.readouterr().err
    write(STORIES)
    assert train("1", "--overwrite") == 0
    assert train("0,1", "--resume") == 0


@pytest.mark.parametrize("seeds", ["9" * 5000, "0," + "1" * 400])
def test_a_seed_of_thousands_of_digits(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused like any other that is none, and not repeated in full."""
    assert train(seeds) == 2
    err = capsys.readouterr().err
    assert "--seeds takes whole numbers" in err
    assert len(err) < 300
