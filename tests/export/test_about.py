"""What a run's files tell of its model, and how its card tells it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvml.export.about import About, about_run, run_behind
from pvml.export.certificate import Certificate
from pvml.export.model_card import model_card
from pvml.export.nanogpt import FORM
from pvml.runs.format import RunDir


@pytest.fixture
def run(make_loaded: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """In the current folder, runs/tiny with checkpoints at steps 2 and 4, graded at both."""
    monkeypatch.chdir(tmp_path)
    loaded = make_loaded(tie_embeddings=True)
    run = RunDir.create(
        "runs/tiny",
        cfg=loaded.model.cfg,
        tokenizer=loaded.tokenizer,
        args={"lr": 3e-3, "batch_size": 4, "seed": 0},
        data={"source": "a|b.txt", "documents": 1234, "fingerprint": "f00", "held_out": "c.txt"},
    )
    for step in (2, 4):
        graded = {"held_out_loss": 6.0 / step, "accuracy": 0.25, "bits_per_byte": 3.0 / step}
        run.log({"step": step, "tokens": 96 * step, **graded})
        run.save_checkpoint(step, loaded.model, {})
    run.finish({"steps": 4, "tokens": 384, "seconds": 90.0, "device": "cpu"})
    return run


def test_the_run_behind_a_word(run: RunDir, make_loaded: Callable[..., Any]) -> None:
    """A name, a folder or a checkpoint of a run; no other folder, and no name on the hub."""
    assert run_behind("tiny") == (Path("runs/tiny"), None)
    assert run_behind(run.path) == (run.path, None)
    folder, step = run_behind("runs/tiny/checkpoints/step-2") or (None, None)
    assert folder == run.path.resolve() and step == 2
    Path("hf").mkdir()
    (Path("hf") / "config.json").write_text('{"model_type": "gpt2"}')
    assert run_behind("hf") is None and run_behind("gpt2") is None and run_behind(".") is None


def test_a_bundled_model_is_a_run() -> None:
    """What comes with the package has a run behind it, too."""
    folder, step = run_behind("attn-1l") or (Path(), 0)
    assert (folder / "config.json").is_file() and step is None


def test_the_facts_are_those_of_the_step(run: RunDir) -> None:
    """The whole run tells its end; a checkpoint, where it stood and what it was graded at."""
    end, early = about_run(run.path), about_run(run.path, 2)
    assert (end.trained["steps"], early.trained["steps"]) == ("4", "2")
    assert (end.trained["tokens read"], early.trained["tokens read"]) == ("384", "192")
    assert end.grades["loss on held-out text"] == "1.5000 nats per token"
    assert early.grades["loss on held-out text"] == "3.0000 nats per token"
    assert end.grades["bits per byte there"] == "0.7500"
    assert end.trained["documents"] == "1,234" and end.trained["time"] == "1.5 minutes"
    assert "time" not in early.trained and "optimizer" not in end.trained


def test_a_step_that_was_not_graded_has_no_grades(run: RunDir) -> None:
    """Grades of another step are not told as this one's."""
    assert about_run(run.path, 3).grades == {}


def test_a_seeds_style_run_tells_what_it_has(tmp_path: Path) -> None:
    """Without data, versions, logs or a summary nothing is invented."""
    (tmp_path / "config.json").write_text('{"args": {"lr": 0.001}, "model": {}}')
    assert about_run(tmp_path).trained == {"vocabulary": "gpt2", "lr": "0.001"}


CERTIFICATE = Certificate(
    form="nanogpt",
    library="torch 2",
    torch="2",
    pvml="0.1.0",
    stored_as="float32",
    tokens=(1, 2),
    greedy_prompt=(1,),
    greedy=(),
    comparisons=(),
    same_ids=None,
)


def test_the_card_tells_all_of_it(run: RunDir, make_loaded: Callable[..., Any]) -> None:
    """Sizes, data, grades, the command, the certificate; a stroke closes no cell of a table."""
    loaded = make_loaded(tie_embeddings=True)
    about = replace(about_run(run.path), command="pvml train --data a|b.txt")
    card = model_card(loaded, FORM, CERTIFICATE, "there", about)
    assert card.startswith("---\nlibrary_name: nanogpt\n")
    for told in (
        "| d_model | 12 |",
        "| text | a\\|b.txt |",
        "| loss on held-out text | 1.5000 nats per token |",
        "$ pvml train --data a|b.txt",
        'torch.load("there/ckpt.pt", weights_only=True)',
        "None: the weights are as they were trained or loaded.",
        CERTIFICATE.text(),
        "Every row it was trained on began with the token",
    ):
        assert told in card, told


def test_processing_is_told(make_loaded: Callable[..., Any]) -> None:
    """A model whose weights were rewritten says so."""
    loaded = make_loaded(tie_embeddings=True)
    loaded.model.processing = ("centre_unembedding",)
    card = model_card(loaded, FORM, CERTIFICATE, "there", About())
    assert "Applied before the export: centre_unembedding." in card
    assert "How it was trained" not in card and "```console" not in card


def test_a_hostile_name_stays_on_its_line(make_loaded: Callable[..., Any]) -> None:
    """Line ends and backquotes in a name open no heading and close no block."""
    loaded = replace(make_loaded(tie_embeddings=True), name="the run `x`\n# Mine")
    card = model_card(loaded, FORM, CERTIFICATE, "a\n```\n# b", About())
    assert "\n# Mine" not in card and "\n# b" not in card
    assert "# a ''' # b" in card
