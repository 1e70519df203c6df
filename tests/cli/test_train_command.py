"""`pvml runs command`: from a run back to the command that makes it."""

import shlex
from pathlib import Path
from typing import Any

import pytest

import pvml.bundled
from pvml.cli.flags import parse
from pvml.cli.main import main
from pvml.cli.train import ModelFlags, TrainFlags
from pvml.cli.train_command import command_line, recorded_flags, train_arguments
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError, RunDirError
from pvml.runs.format import RunDir
from pvml.training.args import TrainingArgs


def test_only_what_differs_is_told() -> None:
    """Corpus, vocabulary and name are always there; of the rest only what is not the default."""
    flags = TrainFlags(
        data="my tales.txt",
        name="a",
        limit=7,
        model=ModelFlags(d_model=96, attn_only=True),
        training=TrainingArgs(lr=4e-3, seed=2, sample_prompt=None),
    )

    assert command_line(flags) == (
        "pvml train --data 'my tales.txt' --tokenizer bpe:4096 --name a --limit 7 --d-model 96 "
        "--attn-only --lr 0.004 --seed 2 --sample-prompt None"
    )


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({"d_model": 10, "n_heads": 5, "d_mlp": 40}, {}),
        ({"d_model": 10, "n_heads": 5, "d_head": 32, "d_mlp": 512}, {}),
        ({"d_model": 10, "n_heads": 3, "d_head": 32, "tie_embeddings": True}, {}),
        ({"n_layers": 0, "positions": "none", "init_range": 1e-3}, {"optimizer": "muon"}),
        ({"attn_only": True}, {"schedule": "wsd", "decay_share": 0.6, "final_lr_share": 0.1}),
        ({}, {"accumulate": 2, "grad_clip": 1.0, "precision": "bfloat16", "warmup_steps": 9}),
        ({}, {"sample_prompt": "-- it's\n", "packing": "document", "device": "cpu"}),
        ({}, {"sample_prompt": "", "lr": 1 / 3, "checkpoint_every": 11, "n_held_out": 5}),
    ],
)
def test_parsed_back_it_is_the_same(model: dict[str, Any], training: dict[str, Any]) -> None:
    """The words, as a shell hands them on, are parsed to exactly the flags that they came from."""
    flags = TrainFlags(
        data="-odd.txt", name="n", model=ModelFlags(**model), training=TrainingArgs(**training)
    )

    assert parse(TrainFlags, "train", train_arguments(flags)) == flags
    assert shlex.split(command_line(flags)) == ["pvml", "train", *train_arguments(flags)]


def test_a_runs_command_makes_the_same_run(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `pvml runs command` prints for a trained run has its shape, recipe, corpus and place."""
    assert main(["runs", "command", str(finished_run)]) == 0

    pvml, train, *words = shlex.split(capsys.readouterr().out)
    flags, run = parse(TrainFlags, "train", words), RunDir.open(finished_run)
    assert (pvml, train) == ("pvml", "train")
    assert flags.model.with_vocabulary(run.cfg.d_vocab) == run.cfg
    assert flags.training == TrainingArgs.from_dict(run.args)
    assert (flags.data, flags.tokenizer) == ("storybook:50", "bpe:280")
    assert flags.run_dir / str(flags.name) == finished_run


def test_a_bundled_models_command_trains_elsewhere(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is known by its name, and the run that its command makes goes where runs go."""
    monkeypatch.setattr(pvml.bundled, "FOLDER", tiny_models)
    assert main(["runs", "command", "tiny"]) == 0

    flags = parse(TrainFlags, "train", shlex.split(capsys.readouterr().out)[2:])
    assert (flags.run_dir, flags.name) == (Path("runs"), "tiny")


def test_a_run_from_within(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is given as a dot has its folder's name."""
    monkeypatch.chdir(finished_run)

    assert recorded_flags(Path(".")) == recorded_flags(finished_run)


def test_a_run_of_another_kind_has_no_command(tmp_path: Path) -> None:
    """A run that does not say its corpus, or has settings from elsewhere, is refused by name."""
    tokenizer = Tokenizer.train(["the cat"], 258)
    cfg = Config(d_model=3, n_heads=1, n_layers=1, n_ctx=7, d_vocab=tokenizer.d_vocab)
    RunDir.create(tmp_path / "a", cfg=cfg, tokenizer=tokenizer, args={}, data={"source": "x"})
    with pytest.raises(RunDirError, match="a was not made by `pvml train`: .* of data tokenizer,"):
        recorded_flags(tmp_path / "a")

    data = {"source": "x", "tokenizer": "bpe:258"}
    args = {"warp": 9}
    RunDir.create(tmp_path / "b", cfg=cfg, tokenizer=tokenizer, args=args, data=data)
    with pytest.raises(PvmlError, match="unknown training fields warp"):
        recorded_flags(tmp_path / "b")
