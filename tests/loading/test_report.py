"""The loading report: every tensor, its source key, what was done; and what was left out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import load_file, save_file

from pvml.config import Config
from pvml.loading import Report, Row, load
from pvml.loading.report import sizes_note, widest
from pvml.reference.huggingface import tiny_gpt2
from pvml.runs.weights import empty_model


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Path:
    """A folder as Hugging Face's save_pretrained writes it, in half precision."""
    model = tiny_gpt2(d_model=12, n_heads=3, n_layers=3, d_vocab=260, dtype=t.float16)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save(tmp_path / "tiny" / "tokenizer.json")
    return tmp_path / "tiny"


def test_every_tensor_stands_in_it_once(folder: Path) -> None:
    """One row for each of the model's tensors, in the model's order, with its true shape."""
    loaded = load(folder)
    expected = {name: tuple(x.shape) for name, x in loaded.model.state_dict().items()}

    assert {row.ours: row.shape for row in loaded.report.rows} == expected
    assert [row.ours for row in loaded.report.rows] == list(expected)
    assert loaded.report.form == "a Hugging Face GPT-2"
    assert loaded.report.where == str(folder / "model.safetensors")


def test_what_was_done_is_told(folder: Path) -> None:
    """By hand: split, as it is, untied and zeros, each beside the key it was made from."""
    rows = {row.ours: (row.theirs, row.done) for row in load(folder).report.rows}
    joint = "transformer.h.1.attn.c_attn.weight"

    assert rows["blocks.1.attn.W_K"] == (joint, "a third of it, split by heads")
    assert rows["blocks.1.attn.W_O"][1] == "split by heads"
    assert rows["blocks.1.mlp.W_in"] == ("transformer.h.1.mlp.c_fc.weight", "as it is")
    assert rows["unembed.W_U"] == ("transformer.wte.weight", "untied: a transposed copy of W_E")
    assert rows["unembed.b_U"] == ("", "zeros: a GPT-2 has no bias here")


def test_numbers_that_are_none_are_told(folder: Path) -> None:
    """A file with NaN or Inf loads, and a note names each tensor with one; a cast may make them."""
    assert not any("NaN" in note for note in load(folder).report.notes)
    state = load_file(folder / "model.safetensors")
    state["transformer.h.1.mlp.c_fc.bias"][3] = float("nan")
    state["transformer.wpe.weight"][0, 0] = float("-inf")
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (note,) = [note for note in load(folder).report.notes if "NaN" in note]
    assert note.startswith("holds NaN or Inf in pos_embed.W_pos, blocks.1.mlp.b_in: ")

    model = tiny_gpt2(d_vocab=260, dtype=t.float64)
    model.transformer.ln_f.bias.data[0] = 1e6
    model.save_pretrained(folder)
    (note,) = [n for n in load(folder, dtype="float16").report.notes if "NaN" in n]
    assert note.startswith("holds NaN or Inf in ln_final.b: ")


def test_tables_that_were_one_are_told(
    folder: Path, tmp_path: Path, tokenizer: Any, make_model: Any
) -> None:
    """Two equal tables are told in every form; one table, or two that differ, are not."""
    equal, other = make_model(d_vocab=260), make_model(d_vocab=260)
    with t.no_grad():
        equal.unembed.W_U.copy_(equal.embed.W_E.T)
    for model, is_told in ((equal, True), (other, False)):
        t.save(model.state_dict(), tmp_path / "alone.pt")
        notes = load(tmp_path / "alone.pt", tokenizer=tokenizer).report.notes
        assert any("training would move them apart" in note for note in notes) is is_told
    assert any("training would move them apart" in n for n in load(folder).report.notes)


def test_a_cast_is_told(folder: Path) -> None:
    """Asked for another type than the file's, each row says from what to what."""
    rows = {row.ours: row.done for row in load(folder, dtype="float32").report.rows}

    assert rows["ln_final.w"] == "cast from float16 to float32"
    assert (
        rows["blocks.0.attn.W_Q"] == "a third of it, split by heads, cast from float16 to float32"
    )
    assert rows["unembed.b_U"] == "zeros: a GPT-2 has no bias here"


def test_the_text_joins_equal_layers(folder: Path) -> None:
    """Printed, layers that agree share a line; each of the model's tensors is under one of them."""
    text = str(load(folder).report)
    lines = text.splitlines()

    assert lines[0] == f"a Hugging Face GPT-2, {folder}/model.safetensors"
    row = next(line for line in lines if line.startswith("blocks.0-2.attn.W_Q "))
    assert row.split(maxsplit=4)[4] == (
        "transformer.h.0-2.attn.c_attn.weight  a third of it, split by heads"
    )
    assert sum("(3, 12, 4)" in line for line in lines) == 3
    assert text.count("blocks.0-2.") == 16


def test_the_numbers_of_layers_that_differ_stand_alone() -> None:
    """A layer that came from elsewhere has a line of its own; gaps are shown as gaps."""
    rows = [Row(f"blocks.{i}.ln1.w", (2,), f"h.{i}.w", "as it is") for i in (0, 1, 2, 5)]
    rows.append(Row("blocks.3.ln1.w", (2,), "", "ones"))
    ignored = {f"h.{i}.mask": "computed" for i in (0, 1)}
    text = str(Report(form="x", where="y", rows=tuple(rows), ignored=ignored, notes=("n",)))

    assert [line.split() for line in text.splitlines()[2:]] == [
        ["blocks.0-2.ln1.w", "(2,)", "h.0-2.w", "as", "it", "is"],
        ["blocks.5.ln1.w", "(2,)", "h.5.w", "as", "it", "is"],
        ["blocks.3.ln1.w", "(2,)", "-", "ones"],
        ["ignored:", "h.0-1.mask", "(computed)"],
        ["note:", "n"],
    ]


def test_as_json_it_is_whole(folder: Path) -> None:
    """Nothing is lost on the way through JSON."""
    report = load(folder).report
    told = json.loads(json.dumps(report.to_dict()))

    rows = tuple(Row(r["ours"], tuple(r["shape"]), r["theirs"], r["done"]) for r in told["rows"])
    assert (rows, tuple(told["notes"])) == (report.rows, report.notes)


def test_gpt2_is_counted_both_ways() -> None:
    """163,087,441 parameters with two tables and 124,439,808 with one, whichever it has."""
    for tied, here in ((False, "two"), (True, "one")):
        note = sizes_note(empty_model(Config(tie_embeddings=tied)))
        assert note.startswith("163,087,441 parameters with a table for the embedding and one for")
        assert note.endswith(f"124,439,808 with one for both: it has {here} here")


def test_the_widest_type_is_of_those_that_compute() -> None:
    """Halves of two kinds need float32; whole numbers and 8-bit floats do not count."""
    half, brain = t.zeros(1, dtype=t.float16), t.zeros(1, dtype=t.bfloat16)

    assert widest({"a": half, "b": brain}) == t.float32
    assert widest({"a": half, "b": t.zeros(1, dtype=t.int64)}) == t.float16
    assert widest({"a": brain.to(t.float8_e4m3fn)}) == widest({}) == t.float32
