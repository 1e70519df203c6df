"""Scores over a run's checkpoints: each is of that step's weights, beside the logged losses."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.heads.over_training import Development, induction_score, score_over_training
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

CFG = Config(d_model=4, n_heads=1, n_layers=1, n_ctx=5, d_vocab=300)
MADE = Development(
    run="made",
    steps=(0, 10, 20, 30),
    scores={"bump": (0.0, 0.1, 0.8, 0.9), "flat": (0.5, 0.5, 0.5, math.nan)},
    loss_steps=(1, 2),
    losses=(2.0, 1.0),
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Three checkpoints, whose W_U holds 0, 4 and 8, and a log of ten steps."""
    made = RunDir.create(
        tmp_path / "run", cfg=CFG, tokenizer=Tokenizer.train(["some words"], 270), args={}
    )
    model = Transformer(CFG, seed=0)
    for step in (0, 4, 8):
        with t.no_grad():
            model.unembed.W_U.fill_(step)
        for logged in range(max(1, step - 3), step + 1):
            made.log({"step": logged, "loss": 1 / logged if logged != 2 else math.nan})
        made.save_checkpoint(step, model, {}, keep=True)
    return made


def largest(model: Transformer) -> dict[str, float]:
    return {"largest": float(model.unembed.W_U.max())}


def test_each_score_is_of_its_own_checkpoint(run: RunDir) -> None:
    """The scores follow the weights, and the losses are the log's, its gap included."""
    told: list[str] = []
    found = score_over_training(run, largest, say=told.append)

    assert found.steps == (0, 4, 8)
    assert found.scores == {"largest": (0.0, 4.0, 8.0)}
    assert found.loss_steps == tuple(range(1, 9))
    assert math.isnan(found.losses[1]) and found.losses[3] == 1 / 4
    assert told[1] == "step 4 (2 of 3): largest 4.000"
    assert score_over_training(run, largest, steps=[8, 4]).steps == (4, 8)


def test_what_cannot_be_followed_is_told(run: RunDir) -> None:
    """Unknown steps, a single one, and scores that change their names are errors that say so."""
    with pytest.raises(PvmlError, match=r"no checkpoint of step 5: there are 0, 4, 8"):
        score_over_training(run, largest, steps=[4, 5])
    with pytest.raises(PvmlError, match="1 checkpoint.*--keep-every"):
        score_over_training(run, largest, steps=[4])
    with pytest.raises(PvmlError, match="scores at step 4 are 4.0, and those before were 0.0"):
        score_over_training(run, lambda model: {str(largest(model)["largest"]): 1.0})


def test_the_bump_is_where_a_score_rose_most() -> None:
    """By hand: from 0.1 to 0.8 between steps 10 and 20; past 0.45, the middle, first at 20."""
    assert MADE.rise("bump") == (10, 20)
    assert MADE.halfway("bump") == 20
    assert MADE.halfway("flat") == 0


def test_a_rise_that_chance_has_too_is_none() -> None:
    """By hand: beside its null a score gains 0.05, then 0.4; the other is nowhere 0.1 above it."""
    null = (0.1, 0.1, 0.3, 0.3)
    beside = {"score": (0.1, 0.15, 0.75, 0.7), "null": null, "drift": (0.1, 0.15, 0.39, 0.39)}
    followed = replace(MADE, scores=beside)
    assert followed.rise("score", above="null") == (10, 20)
    assert followed.rise("drift") == (10, 20)
    assert followed.rise("drift", above="null") is None


def test_a_score_that_never_rises_has_no_bump() -> None:
    """Nothing for a flat score; unknown names, and nothing but NaN, are told."""
    assert MADE.rise("flat") is None
    with pytest.raises(PvmlError, match="no score 'dent': there are bump, flat"):
        MADE.halfway("dent")
    with pytest.raises(PvmlError, match="no finite value"):
        replace(MADE, scores={"nan": (math.nan,) * 4}).halfway("nan")


def test_what_is_followed_tells_a_circuit(make_circuit: Any, circuit_text: Tensor) -> None:
    """The written circuit gains by order alone and has both heads; without 1.2 neither is there."""
    score = induction_score(circuit_text, n_sequences=8)
    whole, half = score(make_circuit()), score(make_circuit(induction=False))

    assert list(whole) == [
        *("advantage", "advantage, reordered", "previous-token", "previous-token, shuffled"),
        *("induction", "induction, shuffled"),
    ]
    assert whole["advantage"] > 1 > whole["advantage, reordered"]
    assert whole["previous-token"] == pytest.approx(1, abs=1e-3) == whole["induction"]
    assert whole["induction, shuffled"] < 0.2 and whole["previous-token, shuffled"] < 0.2
    assert half["previous-token"] == whole["previous-token"]
    assert half["advantage"] == pytest.approx(0, abs=1e-9) and half["induction"] < 0.2
