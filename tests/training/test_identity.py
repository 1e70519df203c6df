"""Whose a checkpoint is: of this run, of another, or of a version that did not say."""

from pathlib import Path

import pytest

from pvml.config import Config
from pvml.data.rows import Rows, pack
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.runs.format import RunDir
from pvml.training.identity import identity_of, require_own

TEXTS = ["the cat sat on the mat", "the dog ran to the log"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 270)


@pytest.fixture
def rows(tokenizer: Tokenizer) -> Rows:
    return pack(tokenizer, TEXTS, 5)


@pytest.fixture
def run(tokenizer: Tokenizer, tmp_path: Path) -> RunDir:
    cfg = Config(d_model=4, n_heads=2, n_layers=1, n_ctx=5, d_vocab=tokenizer.d_vocab)
    return RunDir.create(tmp_path / "run", cfg=cfg, tokenizer=tokenizer, args={"seed": 0})


def test_a_run_knows_its_own(run: RunDir, rows: Rows) -> None:
    """What `identity_of` gave is accepted, and so is an older state that only names its rows."""
    identity = identity_of(run, rows, TEXTS)
    require_own(identity, identity, run)
    require_own({"rows": rows.identity}, identity, run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": None}, "it names no rows"),
        ({"rows": "7 rows"}, "was trained on other rows"),
        ({"held_out": "0" * 64}, "graded on other held-out documents"),
        ({"held_out": 5}, "graded on other held-out documents"),
        ({"settings": 5}, "its settings are 5"),
        ({"settings": {}}, r"args.seed \(not recorded\) \(the run: 0\)"),
        ({"settings": {"args": {"seed": 1}}}, r"args.seed 1 \(the run: 0\)"),
    ],
)
def test_anothers_is_refused(
    run: RunDir, rows: Rows, changes: dict[str, object], message: str
) -> None:
    """Each entry that differs is an error that names it."""
    identity = identity_of(run, rows, TEXTS)
    with pytest.raises(RunDirError, match=message):
        require_own({**identity, **changes}, identity, run)


def test_the_order_of_the_held_out_texts_counts(run: RunDir, rows: Rows) -> None:
    """Their rows are cut from one stream, so another order is another test."""
    assert (
        identity_of(run, rows, TEXTS)["held_out"] != identity_of(run, rows, TEXTS[::-1])["held_out"]
    )
