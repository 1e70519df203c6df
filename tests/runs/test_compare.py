"""Runs beside one another: what may be compared is, and what differs is listed."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvml.errors import RunDirError
from pvml.runs.compare import differences, notes, per_token_compares
from pvml.runs.facts import RunFacts


def facts(**changes: Any) -> RunFacts:
    known = {"name": "run", "path": "run", "state": "finished", "status": "finished"}
    return RunFacts(**{**known, "n_ctx": 128, "tokenizer": "gpt2", "held_out": "a", **changes})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"tokenizer": "bpe:300"}, ["bits per byte"]),
        ({"n_ctx": 512}, ["a longer one makes an easier task"]),
        ({"held_out": "b"}, ["different texts"]),
        ({"state": "stopped"}, ["Not all are finished"]),
        ({"tokenizer": "bpe:300", "n_ctx": 9}, ["bits per byte", "an easier task"]),
    ],
)
def test_what_must_be_known_is_told(changes: dict[str, Any], told: list[str]) -> None:
    """A sentence for each difference that keeps figures from comparing, and no other."""
    said = notes([facts(), facts(**changes)])

    assert len(said) == len(told)
    assert all(words in sentence for words, sentence in zip(told, said, strict=True))


def test_losses_compare_under_one_tokenizer() -> None:
    """A loss per token means the same only where the tokens do."""
    assert per_token_compares([facts(), facts(n_ctx=512)])
    assert not per_token_compares([facts(), facts(), facts(tokenizer="bpe:300")])


def config(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    base = {"args": {"lr": 0.001, "seed": 0}, "model": {"n_ctx": 128}, "data": {"rows": 5}}
    (folder / "config.json").write_text(json.dumps({**base, **changes}))
    return folder


def test_the_settings_that_differ(tmp_path: Path) -> None:
    """Each differing setting is named with both values; one that only one run has is told so."""
    a = config(tmp_path / "a")
    b = config(tmp_path / "b", args={"lr": 0.01, "seed": 0, "schedule": "wsd"}, data={"rows": [5]})

    assert differences(a, b) == [
        ("args.lr", "0.001", "0.01"),
        ("data.rows", "5", "[5]"),
        ("args.schedule", "(not recorded)", '"wsd"'),
    ]
    assert differences(a, a) == []


def test_what_is_no_run_has_no_settings(tmp_path: Path) -> None:
    """A folder that is no run is an error that names it."""
    with pytest.raises(RunDirError, match="nowhere does not exist"):
        differences(config(tmp_path / "a"), tmp_path / "nowhere")
