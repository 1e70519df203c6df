"""The laptop's 17 minutes: each seed is trained once, and told with its mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvml.errors import PvmlError

TINY = (
    "--d-model 8 --n-heads 2 --n-layers 1 --n-ctx 16 --batch-size 4 --tokenizer bpe:270 "
    "--precision float32 --epochs 2 --max-steps-per-epoch 3 --warmup-steps 1 --sample-prompt None"
)


def test_each_seed_is_trained_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, with what it took; a second call, runs elsewhere, trains nothing."""
    import laptop

    args: dict[str, Any] = {
        "data": "storybook:60",
        "held_out": "storybook:7",
        "seeds": (3, 4),
        "results": tmp_path / "results.jsonl",
        "threads": 1,
        "flags": TINY,
    }
    assert laptop.main(laptop.Args(**args, run_dir=tmp_path / "runs")) == 0
    told = capsys.readouterr().out.splitlines()[-4:]
    assert laptop.main(laptop.Args(**args, run_dir=tmp_path / "other")) == 0

    assert capsys.readouterr().out.splitlines() == told and not (tmp_path / "other").exists()
    rows = [json.loads(line) for line in args["results"].read_text().splitlines()]
    assert [row["seed"] for row in rows] == [3, 4]
    assert all(row["tokens"] == 2 * 3 * 4 * 16 for row in rows)
    mean = sum(row["bits_per_byte"] for row in rows) / 2
    assert told[-1].split() == ["mean", f"{mean:.4f}"]


def test_the_preset_is_what_is_trained() -> None:
    """Without further flags every field is the preset's."""
    import laptop
    from pvml.cli.flags import parse
    from pvml.cli.presets import expanded
    from pvml.cli.train import TrainFlags

    flags = laptop.flags_of(laptop.Args(), 2)
    preset = parse(TrainFlags, "train", expanded(["--preset", "laptop", "--seed", "2"]))
    assert (flags.training, flags.model, flags.tokenizer) == (
        preset.training,
        preset.model,
        preset.tokenizer,
    )


@pytest.mark.parametrize("flag", ["--data storybook", "--name=zz", "--seed 4", "--held-out x"])
def test_flags_cannot_hold_what_the_script_chooses(flag: str) -> None:
    """It would be overwritten without a word."""
    import laptop

    with pytest.raises(PvmlError, match=f"--flags cannot hold {flag[:6]}.*chooses that itself"):
        laptop.flags_of(laptop.Args(flags=f"--n-layers 1 {flag}"), 0)


def test_no_seed_is_told() -> None:
    """Of no seed there is no mean."""
    import laptop

    with pytest.raises(PvmlError, match="--seeds names no seed"):
        laptop.main(laptop.Args(seeds=()))
