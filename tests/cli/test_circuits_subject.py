"""`pvml circuits` on models that cannot be read, and flags that no model has an answer to."""

import math
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.main import main
from pvml.config import Config
from pvml.data.sources import open_corpus
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

SIZES: dict[str, Any] = {"d_model": 10, "n_heads": 2, "d_head": 5, "n_ctx": 21, "n_layers": 2}


def saved(path: Path, last: dict[str, float]) -> None:
    """A run of two checkpoints of random weights. last: what one of the last's is set to."""
    tokenizer = Tokenizer.train(list(open_corpus("storybook:30")), 300)
    cfg = Config(**SIZES, attn_only=True, init_range=0.6, d_vocab=tokenizer.d_vocab)
    run = RunDir.create(path, cfg=cfg, tokenizer=tokenizer, args={})
    for step in (0, 5):
        model = Transformer(cfg, seed=step)
        if step:
            for name, value in last.items():
                model.get_parameter(name).data[0, 0, 3] = value
        run.log({"step": step, "loss": 5.0 - step / 10})
        run.save_checkpoint(step, model, {}, keep=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose weights are all right, or in part NaN or infinite."""
    folder = tmp_path_factory.mktemp("subjects")
    saved(folder / "right", {})
    saved(folder / "nan", {"blocks.0.attn.W_V": math.nan})
    saved(folder / "inf", {"blocks.1.attn.W_O": math.inf})
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the runs."""
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("nan", ""),
        ("nan", "copying"),
        ("inf", "compose"),
        ("inf", "ov 0.1"),
        ("nan", "bigram"),
        ("nan", "report"),
        ("inf", "training"),
    ],
)
def test_weights_that_are_not_finite_are_refused(
    run: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By every command alike, whichever head it asks about, naming the weight."""
    name = {"nan": "blocks.0.attn.W_V", "inf": "blocks.1.attn.W_O"}[run]
    assert main(["circuits", run, *words.split()]) == 2
    told = capsys.readouterr()
    assert f"{name} holds {run} at (0, 0, 3)" in told.err and not told.out


@pytest.mark.parametrize(
    "words",
    [
        "demo",
        "train --data storybook:8",
        "sample right a",
        "verify",
        "circuits right",
        "circuits right heads",
        "circuits right copying",
        "circuits right compose",
        "circuits right report",
        "circuits right training",
    ],
)
def test_a_seed_has_one_bound(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every command alike: below 0 or beyond 63 bits is refused before anything is read."""
    for seed in ("-1", str(2**63), str(10**30)):
        assert main([*words.split(), f"--seed={seed}"]) == 2
        told = capsys.readouterr()
        assert "seed must be" in " ".join(told.err.split()) and not told.out


def test_counts_have_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """A number of random heads beyond all reason is refused, not tried."""
    for command in ("heads", "induction"):
        words = ["circuits", "right", command, "--n-random", str(10**30)]
        assert main(words) == 2
        assert f"at most 100,000 heads, got {10**30}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("right ov 0.0 --top 1001", "--top must be at most 1,000 entries, got 1001"),
        ("right survey --out s --top 1001", "top must be at most 1,000 entries of a row"),
        ("right paths cat --most-paths -1", "--most-paths must be at least 1, got -1"),
        ("right scores cat --head 0.0 --most-paths 0", "--most-paths must be at least 1, got 0"),
        ("right paths cat --most-paths 1", "or take one term for each head: `pvml attribute`"),
        ("right report --out=", "--out is empty: give a path, or . for this folder"),
        ("right survey --out=", "--out is empty"),
    ],
)
def test_numbers_and_paths_without_an_answer(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused in words of the command line, and nothing is written."""
    before = sorted(Path().rglob("*"))
    assert main(["circuits", *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert sorted(Path().rglob("*")) == before


def test_an_empty_path_is_refused_in_two_words(capsys: pytest.CaptureFixture[str]) -> None:
    """As a shell gives an unset variable in quotes."""
    assert main(["circuits", "right", "report", "--out", ""]) == 2
    assert "--out is empty" in capsys.readouterr().err
