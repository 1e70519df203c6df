"""The demo's material: any text is cut to size, or refused with a sentence."""

from pathlib import Path

import pytest
import torch as t

from pvml.config import Config
from pvml.data.rows import Rows
from pvml.demos.args import DemoArgs
from pvml.demos.preparing import pace, prepare, training_args
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

SENTENCE = "The {} cat saw {} small birds by the old wall and told nobody about it. "


def text(n: int, end: str = "\n") -> str:
    return "".join(SENTENCE.format(i, i * i % 97).strip() + end for i in range(n))


def args(path: Path, **changes: object) -> DemoArgs:
    return DemoArgs(data=str(path), d_vocab=311, n_ctx=128, **changes)


def rows_of(n: int, n_ctx: int = 8) -> Rows:
    import numpy as np

    return Rows(np.zeros(n * (n_ctx - 1), np.uint16), n_ctx, 0)


@pytest.mark.parametrize(
    "content",
    [text(30), text(90), text(90, end=" "), text(90, end="\n\n"), text(900), "ab " * 700],
    ids=["tiny", "lines", "one long line", "paragraphs", "some", "one word again and again"],
)
def test_small_texts_are_cut_to_size(tmp_path: Path, content: str) -> None:
    """Documents on both sides, rows to train on, and a held-out part that fills a row."""
    path = tmp_path / "own.txt"
    path.write_text(content)
    material = prepare(args(path))

    assert material.train and material.held_out
    assert not set(material.train) & set(material.held_out)
    assert len(material.rows) >= 1
    held_out = sum(len(ids) + 1 for ids in material.tokenizer.encode_batch(material.held_out))
    assert held_out >= material.rows.n_ctx - 1
    assert set("".join(material.train + material.held_out)) <= set(content)


def test_shorter_rows_are_told(tmp_path: Path) -> None:
    """Where rows become shorter and documents are cut, the notes say so."""
    path = tmp_path / "own.txt"
    path.write_text(text(30))
    material = prepare(args(path))

    notes = " ".join(material.notes)
    assert f"Rows have {material.rows.n_ctx} tokens instead of 128" in notes
    assert "so that some can be held out" in notes


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no document"),
        ("Too short.", "has 10 characters: the demo needs at least 1,500"),
        ("x" * 5000, "cannot hold out 1 of 1 documents"),
    ],
)
def test_hopeless_texts_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    """No text, a few words, one endless word: an error that says what is missing."""
    path = tmp_path / "own.txt"
    path.write_text(content)
    with pytest.raises(PvmlError, match=problem):
        prepare(args(path))


def test_a_tenth_is_held_out_at_most() -> None:
    """Of 73 stories 7 are held out; `n_held_out` lowers that."""
    assert len(prepare(DemoArgs(data="storybook:73", d_vocab=311)).held_out) == 7
    assert len(prepare(DemoArgs(data="storybook:73", d_vocab=311, n_held_out=3)).held_out) == 3


@pytest.mark.parametrize(
    ("n_rows", "n_steps", "recipe"),
    [
        (100_000, 800, (32, 5, 160)),  # batch, epochs, steps per epoch
        (3_200, 800, (32, 8, 100)),
        (80, 800, (10, 40, 8)),
        (1, 800, (1, 40, 1)),
        (100_000, 3, (32, 3, 1)),
        (100_000, 1, (32, 1, 1)),
    ],
)
def test_the_recipe_fits_rows_and_steps(
    n_rows: int, n_steps: int, recipe: tuple[int, int, int]
) -> None:
    """Few rows get small batches and more epochs, but never more steps than asked for."""
    made = training_args(DemoArgs(batch_size=32), rows_of(n_rows), n_steps)

    assert (made.batch_size, made.epochs, made.max_steps_per_epoch) == recipe
    assert made.epochs * made.max_steps_per_epoch <= n_steps


def test_timing_steps_leaves_everything_alone() -> None:
    """A long time allows many steps, none at least one; weights and random state stay the same."""
    cfg = Config(d_model=8, n_heads=2, n_layers=1, n_ctx=8, d_vocab=11, attn_only=True)
    model = Transformer(cfg, seed=0)
    before, state = {n: p.clone() for n, p in model.named_parameters()}, t.get_rng_state()
    recipe = training_args(DemoArgs(batch_size=32), rows_of(40), 10)
    threads = t.get_num_threads()
    machine = pace(model, rows_of(40), recipe, 100.0, n_graded=40)

    assert machine.steps > 100
    assert machine.threads in (1, threads)
    assert pace(model, rows_of(40), recipe, 100.0, n_graded=10**9).steps == 1
    assert pace(model, rows_of(40), recipe, 1e-9, n_graded=0).steps == 1
    assert t.get_num_threads() == threads
    assert all(t.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())
    assert t.equal(t.get_rng_state(), state)


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("n_ctx", 8), ("limit", 1), ("d_vocab", 256), ("train_seconds", 0.0)],
)
def test_settings_that_cannot_be_are_refused(field: str, value: float) -> None:
    """The error names the field and the value."""
    with pytest.raises(PvmlError, match=f"{field} must be .* got {value}"):
        DemoArgs(**{field: value})
    with pytest.raises(PvmlError, match="d_model 30 is not a multiple of n_heads 4"):
        DemoArgs(d_model=30)
