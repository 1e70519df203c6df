"""The paper's models in small: each is trained once, measured, and told in words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TINY = (
    "--d-model 16 --n-heads 2 --d-head 8 --n-ctx 32 --data storybook:300 --n-held-out 20 "
    "--tokenizer bpe:300 --precision float32 --epochs 2 --max-steps-per-epoch 6 --warmup-steps 1 "
    "--batch-size 4"
)


def test_each_model_is_trained_and_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line in the results for each, the same words a second time, and nothing trained then."""
    import reproduce

    args: dict[str, Any] = {
        "corpora": ("storybook",),
        "results": tmp_path / "results.jsonl",
        "threads": 1,
        "flags": TINY + " --keep-every 6",
    }
    assert reproduce.main(reproduce.Args(**args, run_dir=tmp_path / "runs")) == 0
    told = capsys.readouterr().out
    assert reproduce.main(reproduce.Args(**args, run_dir=tmp_path / "other")) == 0

    assert told.endswith(capsys.readouterr().out) and not (tmp_path / "other").exists()
    lines = args["results"].read_text().splitlines()
    zero, one, two = (json.loads(line)["found"] for line in lines)
    assert zero["train_bigram"] < zero["train_unigram"] < zero["uniform"]
    assert zero["train_model"] > zero["train_bigram"]
    assert one["heads"] == 2 == len(one["copying"]) and one["copying_heads"] == 0
    assert 0 < len(one["skip_trigrams"]) <= 10
    assert two["over_training"]["steps"] == [0, 6, 12]
    assert two["induction_heads"] == [] and two["kept"] is None
    assert "0 of 2 heads copy" in told and "No induction head formed" in told
    assert reproduce.main(reproduce.Args(**args, run_dir=tmp_path / "other", table=True)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in printed[1:4]] == [
        [str(n), f"{model}-layer", "storybook"] for n, model in enumerate(("zero", "one", "two"), 1)
    ]
    assert f"training text {zero['train_distance']:+.3f}" in printed[1]
    assert "0 of 2 heads copy" in printed[2] and "no induction head" in printed[3]
    assert [line[3:] for line in printed[5:]] == [json.loads(line)["command"] for line in lines]


def test_the_table_has_every_model_and_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """All that the results hold, a line each, and below it the commands under the same numbers."""
    import reproduce

    rows = [json.loads(line) for line in reproduce.RESULTS.read_text().splitlines()]
    assert reproduce.run(["--table"]) == 0
    printed = capsys.readouterr().out.splitlines()
    blank = printed.index("")
    results, commands = printed[1:blank], printed[blank + 1 :]

    assert len(results) == len(commands) == len(rows) == len(reproduce.JOBS)
    for number, job in enumerate(reproduce.JOBS, start=1):
        (row,) = (row for row in rows if (row["model"], row["corpus"]) == job)
        assert results[number - 1].split()[:3] == [str(number), *job]
        assert f"{row['bits_per_byte']:.3f}" in results[number - 1]
        assert commands[number - 1].split(maxsplit=1) == [str(number), row["command"]]
    assert "induction heads 1.0, 1.1, 1.3;" in results[-1] and "at step 800" in results[-1]


def test_what_is_no_model_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An unknown model or corpus is an error that names those there are."""
    import reproduce

    for words in (["--only", "three-layer"], ["--only", "one-layer", "--corpora", "novels"]):
        assert reproduce.run([*words, "--results", str(tmp_path / "none.jsonl")]) == 2
        assert f"'{words[-1]}' is none of" in capsys.readouterr().err


def test_damaged_results_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By file and line, and nothing is trained; a last line that a stop cut short is no damage."""
    import reproduce
    from kept import keep, read

    kept, results = reproduce.RESULTS.read_text().splitlines(keepends=True), tmp_path / "r.jsonl"
    words = ["--list", "--results", str(results)]
    emptied = json.dumps({**json.loads(kept[0]), "found": {}}) + "\n"
    for lines, told in (
        ([kept[0][:60] + "\n", *kept[1:]], "line 1 is not a JSON object"),
        (['{"command": "pvml train"}\n', *kept], "line 1: the row has no model, corpus, minutes"),
        (["{}\n"], "line 1: the row has no command"),
        ([emptied], "damaged in what was found of"),
    ):
        results.write_text("".join(lines))
        assert reproduce.run(words) == 2
        assert told in capsys.readouterr().err
        assert reproduce.run([*words[1:], "--table"]) == 2
        assert told in capsys.readouterr().err
    results.write_text("".join(kept)[:-30])
    assert reproduce.run(words) == 0
    keep(results, {"command": "next"})
    assert [*read(results, {})][-1] == "next"
    assert len(read(results, {})) == len(kept)
    assert reproduce.run(["--list", "--results", str(tmp_path)]) == 2
    assert "cannot be read: Is a directory" in capsys.readouterr().err


def test_a_choice_of_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that reads none of the chosen texts, and no model at all."""
    import reproduce

    for words in (["--only", "zero-layer", "--corpora", "lists"], ["--only"]):
        assert reproduce.run([*words, "--list"]) == 2
        assert "there are zero-layer of stories, " in capsys.readouterr().err
    assert reproduce.run(["--flags=--name mine", "--list"]) == 2
    assert "--flags cannot hold --name" in capsys.readouterr().err


def test_counting_by_hand() -> None:
    """a b a b a: after a comes b, after b comes a, so pairs leave nothing open, and tokens half."""
    from framework import zero_layer

    pairs = zero_layer.counted([[0, 1, 0, 1, 0]], 2)

    assert pairs.tolist() == [[0, 2], [2, 0]]
    assert zero_layer.entropy(pairs) - zero_layer.entropy(pairs.sum(1)) == pytest.approx(0)
    assert zero_layer.entropy(pairs.sum(0)) == pytest.approx(np.log(2))
    assert zero_layer.mean_loss(np.log([[0.5, 0.5], [0.25, 0.75]]), pairs) == pytest.approx(
        (np.log(2) + np.log(4)) / 2
    )
