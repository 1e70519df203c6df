"""A run at a glance: what is told of it, however far it came and whatever is damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.compare import notes, per_token_compares
from pvml.runs.facts import is_run, planned_steps, read_facts
from pvml.runs.format import RunDir
from pvml.runs.weights import parameter_totals

CFG = Config(d_model=13, n_heads=3, d_head=5, d_mlp=17, n_layers=1, n_ctx=11, d_vocab=263)
ARGS = {"epochs": 3, "max_steps_per_epoch": 100, "batch_size": 4}
GRADES = {"held_out_loss": 2.5, "bits_per_byte": 1.25, "accuracy": 0.375}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of 75 steps, stopped after 30, with a checkpoint and grades at 25."""
    tokenizer = Tokenizer.train(["the cat sat on the mat"] * 3, 263)
    data = {"source": "storybook", "rows": 98}
    run = RunDir.create(tmp_path / "run", cfg=CFG, tokenizer=tokenizer, args=ARGS, data=data)
    for step in range(1, 31):
        run.log({"step": step, "tokens": 44 * step, "seconds": 0.5 * step, "loss": 3.0})
        if step == 25:
            run.log({"step": 25, "seconds": 12.5, **GRADES})
            run.save_checkpoint(25, Transformer(CFG, seed=1), {})
    return run


def test_a_stopped_run(run: RunDir) -> None:
    """How far it came of how many steps, the last grades, and the model's size are told."""
    facts = read_facts(run.path)

    assert (facts.state, facts.status) == ("stopped", "stopped at step 30 of 75, checkpoint at 25")
    assert (facts.steps, facts.planned_steps, facts.tokens, facts.seconds) == (30, 75, 1320, 15.0)
    assert (facts.held_out_loss, facts.bits_per_byte, facts.accuracy) == (2.5, 1.25, 0.375)
    assert (facts.name, facts.n_ctx, facts.tokenizer) == ("run", 11, "bpe:263")
    assert facts.parameters == parameter_totals(Transformer(CFG, seed=1))["total"]


def test_a_finished_run(run: RunDir) -> None:
    """A finished run's figures are its summary's; the metrics are not read."""
    (run.path / "metrics.jsonl").write_text("nonsense\nnonsense\n")
    run.finish(
        {
            "steps": 75,
            "tokens": 3300,
            "seconds": 90.0,
            "parameters": {"total": 999, "non_embedding": 99},
            "final_held_out_loss": 2.0,
            "bits_per_byte": 1.0,
            "final_accuracy": None,
        }
    )
    facts = read_facts(run.path)

    assert (facts.state, facts.status) == ("finished", "finished")
    assert (facts.steps, facts.tokens, facts.parameters) == (75, 3300, 999)
    assert (facts.held_out_loss, facts.bits_per_byte, facts.accuracy) == (2.0, 1.0, None)


def test_a_run_in_progress(run: RunDir) -> None:
    """While a process has the lock the run is running, and the process is named."""
    with run.lock():
        facts = read_facts(run.path)

    assert facts.state == "running"
    assert facts.status.startswith("running, at step 30 of 75, process ")


def test_grades_far_from_the_end_are_found(run: RunDir) -> None:
    """The last epoch's row is found behind more step rows than the first look takes in."""
    for step in range(31, 900):
        run.log({"step": step, "note": "x" * 100})

    assert (run.path / "metrics.jsonl").stat().st_size > 1 << 16
    assert read_facts(run.path).accuracy == 0.375


def test_a_run_without_a_checkpoint(run: RunDir, tmp_path: Path) -> None:
    """A run that was killed at its start is no damaged one."""
    bare = RunDir.create(tmp_path / "bare", cfg=CFG, tokenizer=run.tokenizer(), args={})
    facts = read_facts(bare.path)

    assert (facts.state, facts.steps, facts.planned_steps) == ("no checkpoint", 0, None)


def test_a_run_in_the_seeds_form(tmp_path: Path) -> None:
    """A config.json and a model.pt are a run, of which little is known."""
    (tmp_path / "config.json").write_text(json.dumps({"args": {}, "model": {"n_ctx": 128}}))
    (tmp_path / "model.pt").write_bytes(b"weights")
    facts = read_facts(tmp_path)

    assert (facts.state, facts.status) == ("finished", "the seeds' older form: only weights")
    assert (facts.n_ctx, facts.tokenizer, facts.parameters) == (128, "gpt2", None)


def put(name: str, content: str) -> Callable[[Path], Any]:
    def act(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).write_text(content)

    return act


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (put("config.json", "{"), r"config.json is missing, damaged or cut short"),
        (put("config.json", "[]"), "config.json is damaged: expected a JSON object"),
        (put("config.json", '{"args": 1, "model": {}}'), "lacks the entries args and model"),
        (put("summary.json", "{"), "summary.json is missing, damaged"),
        (put("metrics.jsonl", "{}\n{\n{}\n"), "metrics.jsonl is damaged: line 2"),
        (put("model.safetensors", "short"), "model.safetensors is damaged or cut short"),
        (
            put("checkpoints/step-25/training.pt", "short"),
            "in the checkpoint of step 25 training.pt has 5 bytes instead of",
        ),
        (
            lambda run: (run / "checkpoints" / "step-25" / "model.safetensors").unlink(),
            "in the checkpoint of step 25 model.safetensors is missing",
        ),
        (lambda run: (run / "model.safetensors").unlink(), "model.safetensors is missing"),
    ],
)
def test_damage_is_told_and_not_fatal(
    run: RunDir, damage: Callable[[Path], Any], told: str
) -> None:
    """Whatever is damaged, the run is listed as such, with the reason."""
    damage(run.path)
    facts = read_facts(run.path)

    assert (
        facts.state == "damaged" and facts.status.startswith("damaged: ") and told in facts.status
    )
    assert is_run(run.path)


@pytest.mark.parametrize(
    "model", [{}, {"n_ctx": "many"}, {"n_ctx": None}, {"n_ctx": True}, {"n_ctx": [1]}]
)
def test_settings_of_other_kinds_are_unknown(run: RunDir, model: dict[str, Any]) -> None:
    """A number that is none is told as unknown."""
    config = {**run.config, "model": model, "args": {"epochs": "x"}, "data": {"rows": -1.5}}
    (run.path / "config.json").write_text(json.dumps(config))
    facts = read_facts(run.path)

    assert (facts.n_ctx, facts.planned_steps, facts.state) == (None, None, "stopped")


def test_planned_steps_by_hand() -> None:
    """98 rows in batches of 4 are 25 steps an epoch; a cap of 10 makes it 10."""
    args = {"epochs": 3, "batch_size": 4}

    assert planned_steps({**args, "max_steps_per_epoch": 100}, {"rows": 98}) == 75
    assert planned_steps({**args, "max_steps_per_epoch": 10}, {"rows": 98}) == 30
    assert planned_steps({**args, "max_steps_per_epoch": 10}, {}) is None


@pytest.mark.parametrize(
    ("tokenizers", "data", "args", "compare"),
    [
        ("gpt2", {"held_out_fingerprint": "h", "fingerprint": "b"}, {}, "all"),
        ("bpe:263", {"held_out_fingerprint": "h", "fingerprint": "b"}, {}, "bits"),
        ("bpe:263", {"held_out_fingerprint": "h"}, {"split_seed": 5}, "all"),
        ("gpt2", {"held_out_fingerprint": "i"}, {}, "nothing"),
        ("gpt2", {}, {}, "nothing"),
    ],
)
def test_what_was_held_out_decides_what_compares(
    run: RunDir,
    tokenizers: str,
    data: dict[str, Any],
    args: dict[str, Any],
    compare: str,
) -> None:
    """Text from elsewhere makes grades of other corpora comparable; a learnt vocabulary does not.

    All are put beside a run on corpus a that was graded on text h.
    """
    known = {"fingerprint": "a", "held_out_documents": 7}
    both = []
    for own_data, own_args in (({"held_out_fingerprint": "h"}, {}), (data, args)):
        config = {**run.config, "tokenizer": tokenizers, "data": {**known, **own_data}}
        config["args"] = {**run.args, **own_args}
        (run.path / "config.json").write_text(json.dumps(config))
        both.append(read_facts(run.path))
    told = " ".join(notes(both))

    assert ("different texts" in told) == (compare == "nothing")
    assert ("compare bits per byte" in told) == (compare == "bits")
    assert per_token_compares(both) == (compare != "bits")


def test_other_folders_are_no_runs(tmp_path: Path) -> None:
    """A folder without config.json, or with Hugging Face's, is no run."""
    assert not is_run(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert not is_run(tmp_path)
