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
